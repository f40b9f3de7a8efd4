"""WorkerPoller: reads once per second which workers are alive."""

from __future__ import annotations

from collections.abc import Mapping
from zlib import crc32

from es_queue.protocol.channel import MasterChannel

#: Up to so many workers are read whole each second.
MOST_READ_WHOLE = 100
#: Of more, one in so many.
REFRESH_TURNS = 10
#: Those that refuse or have not joined yet are all read each second, unless there are more of them
#: than this.
MANY_NEW = 2000


class WorkerPoller:
    """What workers say of themselves is read when they come, and again every few seconds: reading
    thousands of them each second would take the master a good part of it. Whether they live is
    asked each time.
    """

    def __init__(self) -> None:
        self._workers: dict[str, dict[str, str]] = {}
        self._turn = 0
        self._refusals: dict[str, int] = {}

    def poll(
        self, channel: MasterChannel, answers: Mapping[str, int] | None = None
    ) -> dict[str, dict[str, str]]:
        """The living workers, by id; what one says that refuses to work, or has not joined yet, is
        new, unless very many do.

        ``answers``: how many answers of each counted so far. A worker that answers does not refuse:
        then somebody else has written that into its hash, and it is left out.
        """
        workers, counts = self._read(channel), answers or {}
        self._refusals = {
            name: self._refusals.get(name, counts.get(name, 0))
            for name, about in workers.items()
            if "refuses" in about
        }
        false = {name for name, count in self._refusals.items() if counts.get(name, 0) > count}
        if not false:
            return workers
        return {
            name: {
                key: text for key, text in about.items() if key != "refuses" or name not in false
            }
            for name, about in workers.items()
        }

    def _read(self, channel: MasterChannel) -> dict[str, dict[str, str]]:
        self._turn = (self._turn + 1) % REFRESH_TURNS
        idle = [
            name
            for name, about in self._workers.items()
            if "refuses" in about or not about.get("numerics")
        ]
        news = set(idle) if len(idle) <= MANY_NEW else set[str]()
        known = {
            name: about
            for name, about in self._workers.items()
            if not (name in news or self._is_refresh_due(name))
        }
        self._workers = channel.workers(known)
        return self._workers

    def _is_refresh_due(self, name: str) -> bool:
        return (
            len(self._workers) <= MOST_READ_WHOLE
            or crc32(name.encode()) % REFRESH_TURNS == self._turn
        )
