"""Reads values that others write only after checking their size.

A value may grow between the check and the read; then the next check refuses it. A key of another
type counts as missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from es_queue.protocol.messages import WORKER_ID

MAX_LIST = 4 * 2**20  # bytes in Redis; a hundred of the largest requests take 0.8 MB
MAX_HASH = 2**13
MAX_FIELDS = 128  # of one worker's hash
#: The fields of a worker's hash that a master reads; the others are for people.
WORKER_FIELDS = ("host", "pid", "rq_name", "numerics", "refuses", "busy")
MAX_HASHES = 32 * 2**20  # all of a run's workers together
MAX_COUNTS = 2**28
MAX_WORKERS, MAX_WORKERS_SET = 20_000, 16 * 2**20  # as in the scripts
MAX_QUEUE, MAX_QUEUED = 32 * 2**20, 500_000  # jobs of RQ
MAX_IN_HAND = 20_000  # jobs between RQ's queue and its registry: briefly one per worker
MAX_REGISTRY, MAX_REGISTERED = 16 * 2**20, 50_000
MAX_FIELD = 2**15  # bytes
#: Redis visits every item to measure a key, so larger keys are not measured.
MAX_MEASURED = 100_000
SCANNED_AT_ONCE = 500
COUNT_COMMANDS = {
    "string": "strlen",
    "list": "llen",
    "set": "scard",
    "zset": "zcard",
    "hash": "hlen",
    "stream": "xlen",
}


def memory_size(client: Any, key: str) -> int:
    """Bytes that a key takes in Redis; 0 if it is missing.

    The server visits every element of a hash, a set or a sorted set, and blocks of 8 kB of a list.
    Check the number of elements first.
    """
    return int(client.memory_usage(key, samples=0) or 0)  # twice: yes


def has_type(client: Any, key: str, kind: bytes, most: int) -> bool:
    return client.type(key) == kind and memory_size(client, key) <= most  # twice: yes


def _none_on_wrong_type(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except Exception as error:
        if str(error).startswith("WRONGTYPE"):
            return None
        raise


def read_list(
    client: Any, key: str, start: int, stop: int, most: int = MAX_LIST, longest: int = MAX_LIST
) -> list[bytes] | None:
    """LRANGE; None for a key that is not a list, or too large."""
    length = _none_on_wrong_type(lambda: client.llen(key))  # twice: yes
    if length is None or length > longest or (length and memory_size(client, key) > most):
        return None
    entries: list[bytes] | None = (
        _none_on_wrong_type(lambda: client.lrange(key, start, stop)) if length else []
    )  # twice: yes
    return entries


def read_field(client: Any, key: str, name: str, most: int = MAX_FIELD) -> bytes | None:
    """None if it is missing, or too long."""
    value: bytes | None = (
        client.hget(key, name) if 0 < client.hstrlen(key, name) <= most else None
    )  # twice: yes
    return value


def _replies(pipeline: Any) -> list[Any]:
    """Replies in order; the error for a key of another type. Raises other errors: an outage must
    not look like a missing key.
    """
    replies: list[Any] = pipeline.execute(raise_on_error=False)
    for reply in replies:
        if isinstance(reply, Exception) and "WRONGTYPE" not in str(reply):
            raise reply
    return replies


def read_hashes(
    client: Any, names: Sequence[str], fields: Sequence[str]
) -> list[dict[bytes, bytes]]:
    """These fields of each hash, if they exist. Empty for a key that is missing, not a hash, larger
    than es-queue's own, or beyond the total limit.
    """
    lengths, sizes, reads = (client.pipeline(transaction=False) for _ in range(3))
    for name in names:
        lengths.hlen(name)  # twice: yes
    counts = _replies(lengths) if names else []
    short = [
        name
        for name, count in zip(names, counts, strict=True)
        if isinstance(count, int) and 0 < count <= MAX_FIELDS
    ]
    for name in short:
        sizes.memory_usage(name, samples=0)  # twice: yes
    taken, fitting = 0, set[str]()
    for name, size in zip(short, sizes.execute() if short else [], strict=True):
        if 0 < (size or 0) <= MAX_HASH and taken + size <= MAX_HASHES:
            taken += size
            fitting.add(name)
    kept = [name in fitting for name in names]
    for name, keep in zip(names, kept, strict=True):
        if keep:
            reads.hmget(name, fields)  # twice: yes
    wanted = [field.encode() for field in fields]
    read = iter(_replies(reads))
    abouts = [next(read) if keep else [] for keep in kept]
    return [
        {field: value for field, value in zip(wanted, about, strict=True) if value is not None}
        if isinstance(about, list) and about
        else {}
        for about in abouts
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


def read_counts(client: Any, key: str) -> dict[bytes, bytes]:
    """HGETALL of slot counts; empty for a key that is not a hash, or too large."""
    fields: dict[bytes, bytes] = (
        client.hgetall(key) if has_type(client, key, b"hash", MAX_COUNTS) else {}
    )  # twice: yes
    return fields


def read_worker_ids(client: Any, key: str) -> list[str]:
    """The sorted ids in a run's set of workers; empty if there are too many, until reconcile clears
    it.
    """
    count = _none_on_wrong_type(lambda: client.scard(key))  # twice: yes
    if not 0 < (count or 0) <= MAX_WORKERS or memory_size(client, key) > MAX_WORKERS_SET:
        return []
    names = [name.decode("ascii", "replace") for name in client.smembers(key)]  # twice: yes
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


# --- RQ's own keys, which every worker may write


def is_readable_registry(client: Any, key: str) -> bool:
    """Whether a key is a registry of RQ, and small enough to be read.

    It does not measure a registry with too many jobs: that would take the server too long.
    """
    count = _none_on_wrong_type(lambda: client.zcard(key))  # twice: yes
    return (
        count is not None and count <= MAX_REGISTERED and memory_size(client, key) <= MAX_REGISTRY
    )


# --- for a process that only reads, with little memory


@dataclass(frozen=True)
class KeySize:
    """The size of a key.

    type: of COUNT_COMMANDS; count: bytes of a string, else items; memory: bytes, None if there are
    too many items to measure.
    """

    type: str
    count: int
    memory: int | None

    def fits(self, most_bytes: int) -> bool:
        return self.memory is not None and self.memory <= most_bytes

    def format_count(self) -> str:
        """Such as ``1 member`` or ``1,000 entries``."""
        unit, units = {
            "string": ("byte", "bytes"),
            "set": ("member", "members"),
            "zset": ("member", "members"),
            "hash": ("field", "fields"),
            "stream": ("entry", "entries"),
        }.get(self.type, ("item", "items"))
        return f"{self.count:,} {unit if self.count == 1 else units}"

    def __str__(self) -> str:
        has_bytes = self.memory is not None and self.type != "string"
        return self.format_count() + (f" of {self.memory:,} bytes" if has_bytes else "")


#: Sends commands of redis-py, each a name and arguments. Returns replies in order, None for errors.
Ask = Callable[[Iterable[tuple[Any, ...]]], list[Any]]


def key_sizes(ask: Ask, names: Sequence[str]) -> dict[str, KeySize]:
    """Of the existing keys."""
    types = [
        reply.decode("ascii", "replace") if isinstance(reply, bytes) else "none"
        for reply in ask(("type", name) for name in names)
    ]
    there = [
        (name, kind) for name, kind in zip(names, types, strict=True) if kind in COUNT_COMMANDS
    ]
    counts = [count or 0 for count in ask((COUNT_COMMANDS[kind], name) for name, kind in there)]
    small = [
        name
        for (name, kind), count in zip(there, counts, strict=True)
        if kind != "string" and count <= MAX_MEASURED
    ]
    memory = dict(zip(small, ask(("memory_usage", name, 0) for name in small), strict=True))
    return {
        name: KeySize(kind, count, count if kind == "string" else memory.get(name))
        for (name, kind), count in zip(there, counts, strict=True)
    }


def hash_fields(
    ask: Ask, names: Sequence[str], fields: Sequence[str], longest: int, most: int
) -> tuple[list[dict[str, bytes]], int]:
    """The fields of each existing hash of at most ``longest`` bytes, and the number of omitted
    hashes.

    A hash is omitted, and empty here, once those before it take ``most`` bytes.
    """
    lengths = iter(ask([("hstrlen", name, field) for name in names for field in fields]))
    taken, left_out, wanted = 0, 0, list[list[str]]()
    for _ in names:
        sizes = {field: next(lengths) or 0 for field in fields}
        some = {field: size for field, size in sizes.items() if 0 < size <= longest}
        fits = taken + sum(some.values()) <= most
        taken += sum(some.values()) if fits else 0
        left_out += not fits
        wanted.append(list(some) if fits else [])
    values = iter(
        ask([("hmget", name, some) for name, some in zip(names, wanted, strict=True) if some])
    )
    hashes = [dict(zip(some, next(values) or (), strict=False)) if some else {} for some in wanted]
    return [
        {field: value for field, value in values_by_field.items() if value is not None}
        for values_by_field in hashes
    ], left_out


def set_members(ask: Ask, key: str, most: int) -> list[bytes]:
    """The first ``most`` members of a measured set, unordered."""
    cursor, members = 0, set[bytes]()
    while True:
        (reply,) = ask([("sscan", key, cursor, None, SCANNED_AT_ONCE)])
        if reply is not None:
            cursor = int(reply[0])
            members.update(reply[1])
        if reply is None or cursor == 0 or len(members) >= most:
            return list(members)[:most]
