"""Reading what others write only after Redis has said how large it is: nobody's memory is theirs to fill.

It may grow between the question and the reading; then the next look refuses it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

MAX_LIST = 4 * 2**20  # bytes in Redis; a hundred of the largest requests take 0.8 MB
MAX_HASH = 2**16


def elements(client: Any, key: str, start: int, stop: int) -> list[bytes] | None:
    """LRANGE; None for a list that is larger than any of ours."""
    if (client.memory_usage(key, samples=0) or 0) > MAX_LIST:  # twice: yes
        return None
    found: list[bytes] = client.lrange(key, start, stop)  # twice: yes
    return found


def hashes(client: Any, names: Sequence[str]) -> list[dict[bytes, bytes]]:
    """HGETALL of each; empty for one that is missing, or larger than any of ours."""
    sizes, found = client.pipeline(transaction=False), client.pipeline(transaction=False)
    for name in names:
        sizes.memory_usage(name, samples=0)  # twice: yes
    kept = [(size or 0) <= MAX_HASH for size in sizes.execute()]
    for name, keep in zip(names, kept, strict=True):
        if keep:
            found.hgetall(name)  # twice: yes
    read = iter(found.execute())
    return [next(read) if keep else {} for keep in kept]
