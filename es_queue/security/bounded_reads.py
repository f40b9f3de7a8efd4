"""Reads of values that others write. A key of another type counts as missing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from es_queue.protocol.messages import WORKER_ID

#: The fields of a worker's hash that a master reads; the others are for people.
WORKER_FIELDS = ("host", "pid", "rq_name", "numerics", "refuses", "busy", "late")
MAX_FIELD = 2**15  # bytes


def none_on_wrong_type(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except Exception as error:
        if str(error).startswith("WRONGTYPE"):
            return None
        raise


def read_list(client: Any, key: str, start: int, stop: int) -> list[bytes] | None:
    """LRANGE; None for a key that is not a list."""
    entries: list[bytes] | None = none_on_wrong_type(
        lambda: client.lrange(key, start, stop)
    )  # twice: yes
    return entries


def read_field(client: Any, key: str, name: str, most: int = MAX_FIELD) -> bytes | None:
    """None if it is missing, or too long."""
    value: bytes | None = (
        client.hget(key, name) if 0 < client.hstrlen(key, name) <= most else None
    )  # twice: yes
    return value


def read_hashes(
    client: Any, names: Sequence[str], fields: Sequence[str]
) -> list[dict[bytes, bytes]]:
    """These fields of each hash, if they exist. Empty for a key that is missing, or not a hash.

    Raises other errors: an outage must not look like a missing key.
    """
    pipeline = client.pipeline(transaction=False)
    for name in names:
        pipeline.hmget(name, fields)  # twice: yes
    replies = pipeline.execute(raise_on_error=False) if names else []
    for reply in replies:
        if isinstance(reply, Exception) and "WRONGTYPE" not in str(reply):
            raise reply
    return [
        {
            field.encode(): value
            for field, value in zip(fields, reply, strict=True)
            if value is not None and len(value) <= MAX_FIELD
        }
        if isinstance(reply, list)
        else {}
        for reply in replies
    ]


def existing_names(client: Any, names: Mapping[str, str]) -> set[str]:
    pipeline = client.pipeline(transaction=False)
    for key in names.values():
        pipeline.exists(key)  # twice: yes
    return {
        name
        for name, there in zip(names, pipeline.execute() if names else [], strict=True)
        if there
    }


def read_worker_ids(client: Any, key: str) -> list[str]:
    """The sorted ids in a run's set of workers."""
    members = none_on_wrong_type(lambda: client.smembers(key)) or ()  # twice: yes
    names = [name.decode("ascii", "replace") for name in members]
    return sorted(name for name in names if WORKER_ID.fullmatch(name))


def to_text(data: object) -> str:
    return data.decode("utf-8", "replace") if isinstance(data, bytes) else str(data)


def decode_text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", "replace")


def decode_hash(data: Mapping[bytes, bytes]) -> dict[str, str]:
    return {
        name.decode("utf-8", "replace"): value.decode("utf-8", "replace")
        for name, value in data.items()
    }
