"""Reading what others write only after Redis has said how large it is: nobody's memory is theirs to fill.

It may grow between the question and the reading; then the next look refuses it. A key of another type is as good as missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from es_queue.protocol.messages import WORKER_ID

MAX_LIST = 4 * 2**20  # bytes in Redis; a hundred of the largest requests take 0.8 MB
MAX_HASH = 2**13
MAX_FIELDS = 128  # of one worker's hash
MAX_HASHES = 32 * 2**20  # all of a run's workers together
MAX_COUNTS = 2**28
MAX_WORKERS, MAX_WORKERS_SET = 20_000, 16 * 2**20  # as the scripts have it
MAX_QUEUE, MAX_QUEUED = 32 * 2**20, 500_000  # jobs of RQ
MAX_IN_HAND = 20_000  # jobs between RQ's queue and its registry: one for each worker, for a moment
MAX_REGISTRY, MAX_REGISTERED = 16 * 2**20, 50_000
LONGEST_FIELD = 2**15  # a hundred names in quarantine


def size_of(client: Any, key: str) -> int:
    """Bytes that a key takes in Redis; 0 where it is missing.

    The server looks at every element of a hash, a set or a sorted set: know their number first. Of a list it looks at blocks of 8 kB.
    """
    return int(client.memory_usage(key, samples=0) or 0)  # twice: yes


def typed(client: Any, key: str, kind: bytes, most: int) -> bool:
    """Whether a key is of that type, and no larger."""
    return client.type(key) == kind and size_of(client, key) <= most  # twice: yes


def _unless_of_another_type(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except Exception as error:
        if str(error).startswith("WRONGTYPE"):
            return None
        raise


def elements(client: Any, key: str, start: int, stop: int, most: int = MAX_LIST, longest: int = MAX_LIST) -> list[bytes] | None:
    """LRANGE; None for what is no list, or one of more bytes or elements than any of ours."""
    length = _unless_of_another_type(lambda: client.llen(key))  # twice: yes
    if length is None or length > longest or (length and size_of(client, key) > most):
        return None
    found: list[bytes] | None = _unless_of_another_type(lambda: client.lrange(key, start, stop)) if length else []  # twice: yes
    return found


def field(client: Any, key: str, name: str, most: int = LONGEST_FIELD) -> bytes | None:
    """A hash's field; None where it is missing, or longer than any of ours."""
    found: bytes | None = client.hget(key, name) if 0 < client.hstrlen(key, name) <= most else None  # twice: yes
    return found


def _replies(pipeline: Any) -> list[Any]:
    """Replies in order; for a key of another type its error. Raises any other error: an outage must not look like a missing key."""
    found: list[Any] = pipeline.execute(raise_on_error=False)
    for reply in found:
        if isinstance(reply, Exception) and "WRONGTYPE" not in str(reply):
            raise reply
    return found


def hashes(client: Any, names: Sequence[str]) -> list[dict[bytes, bytes]]:
    """HGETALL of each; empty for one that is missing or no hash, larger than any of ours, or beyond what all may take."""
    lengths, sizes, found = (client.pipeline(transaction=False) for _ in range(3))
    for name in names:
        lengths.hlen(name)  # twice: yes
    fields = _replies(lengths) if names else []
    short = [name for name, count in zip(names, fields, strict=True) if isinstance(count, int) and 0 < count <= MAX_FIELDS]
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
            found.hgetall(name)  # twice: yes
    read = iter(_replies(found))
    abouts = [next(read) if keep else {} for keep in kept]
    return [about if isinstance(about, dict) else {} for about in abouts]


def present(client: Any, names: Mapping[str, str]) -> set[str]:
    """Which of these have their key, given by name."""
    asked = client.pipeline(transaction=False)
    for key in names.values():
        asked.exists(key)  # twice: yes
    return {name for name, there in zip(names, asked.execute() if names else [], strict=True) if there}


def counts(client: Any, key: str) -> dict[bytes, bytes]:
    """HGETALL of counts of slots; empty for what is no hash, or a larger one than any of ours."""
    found: dict[bytes, bytes] = client.hgetall(key) if typed(client, key, b"hash", MAX_COUNTS) else {}  # twice: yes
    return found


def workers(client: Any, key: str) -> list[str]:
    """The ids in a run's set of workers, sorted; none where there are more than can be, until reconcile has cleared it."""
    count = _unless_of_another_type(lambda: client.scard(key))  # twice: yes
    if not 0 < (count or 0) <= MAX_WORKERS or size_of(client, key) > MAX_WORKERS_SET:
        return []
    names = [name.decode("ascii", "replace") for name in client.smembers(key)]  # twice: yes
    return sorted(name for name in names if WORKER_ID.fullmatch(name))


def text(data: bytes | None) -> str | None:
    """What it reads as, whatever it is."""
    return None if data is None else data.decode("utf-8", "replace")


def texts(data: Mapping[bytes, bytes]) -> dict[str, str]:
    """A hash as it reads."""
    return {name.decode("utf-8", "replace"): value.decode("utf-8", "replace") for name, value in data.items()}


# --- RQ's own keys, which every worker may write


def registry_fits(client: Any, key: str) -> bool:
    """Whether a registry of RQ is one, and small enough to be read.

    More jobs than that are not even measured: that would take the server longer than they are worth.
    """
    count = _unless_of_another_type(lambda: client.zcard(key))  # twice: yes
    return count is not None and count <= MAX_REGISTERED and size_of(client, key) <= MAX_REGISTRY
