"""Roster: who lives, second by second."""

from __future__ import annotations

from zlib import crc32

from es_queue.protocol.channel import MasterChannel

#: Up to so many workers are read whole each second.
FEW = 100
#: Of more, one in so many.
TURNS = 10


class Roster:
    """What workers say of themselves is read when they come, and again every few seconds: reading thousands of them
    each second would take the master a good part of it. Whether they live is asked each time."""

    def __init__(self) -> None:
        self._seen: dict[str, dict[str, str]] = {}
        self._turn = 0

    def look(self, channel: MasterChannel) -> dict[str, dict[str, str]]:
        """The living workers, by id; what one says that refuses to work, or has not joined yet, is always new."""
        self._turn = (self._turn + 1) % TURNS
        known = {name: about for name, about in self._seen.items() if not self._due(name, about)}
        self._seen = channel.workers(known)
        return self._seen

    def _due(self, name: str, about: dict[str, str]) -> bool:
        return len(self._seen) <= FEW or "refuses" in about or not about.get("numerics") or crc32(name.encode()) % TURNS == self._turn
