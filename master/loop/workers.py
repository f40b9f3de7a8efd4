"""The run's workers, as the master sees them each second: which are present, which have other
arithmetic, and whether any can work.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from es_queue.protocol.keys import Clocks
from es_queue.protocol.messages import KINDS
from es_queue.protocol.store import MasterStore
from es_queue.slots import Slots, worker_mark
from master.fleet.idle_monitor import IdleMonitor, MissingAfterOutage
from master.fleet.worker_registry import WorkerRegistry
from master.status.figures import Record, busy_workers

#: Up to so many workers are read whole each second, and of more one in so many.
MOST_READ_WHOLE, REFRESH_TURNS = 100, 10
#: Those that refuse or have not joined yet are all read each second, unless there are more of them
#: than this.
MANY_NEW = 2000
MOST_MARKS = 100_000
#: Every worker reads which workers should leave, so only a few of those with other arithmetic.
LEAVING_NAMED = 100

Maintain = Callable[[Mapping[str, Mapping[str, str]], bool, bool], list[str]]


class Workers:
    """present: those that do not refuse to work, by id; busy: how many of them are busy on average,
    None if unknown; late: results that came too late, as all of them report; give_way: those that
    should leave for another run
    """

    def __init__(
        self,
        store: MasterStore,
        clocks: Clocks,
        *,
        strict: bool = False,
        local: int = 0,
        maintain: Maintain = lambda workers, served, paused: [],
    ) -> None:
        """``maintain``: other work of each second, given the workers, whether any result has ever
        counted, and whether the run is paused; returns the workers that should leave.
        """
        self._store, self._strict, self._maintain = store, strict, maintain
        self.registry = WorkerRegistry(store.workers, strict)
        self.idle_monitor = IdleMonitor(local)
        self._missing = MissingAfterOutage(clocks.lease + clocks.beat_ttl)
        self._known: dict[str, dict[str, str]] = {}
        self._turn = 0
        self._names: dict[int, str] = {}
        self._late_of: dict[str, int] = {}
        self._late_taken = 0
        self.present: dict[str, dict[str, str]] = {}
        self.busy: float | None = None
        self.give_way: list[str] = []

    # --- each second

    def update(self) -> None:
        self._note(self._poll())

    def _poll(self) -> dict[str, dict[str, str]]:
        """The living workers, by id. Their information is read when they join and every few
        seconds, because reading thousands of workers each second takes much of the master's time;
        that of refusing and joining ones each time.
        """
        self._turn = (self._turn + 1) % REFRESH_TURNS
        idle = [
            name
            for name, about in self._known.items()
            if "refuses" in about or not about.get("numerics")
        ]
        news = set(idle) if len(idle) <= MANY_NEW else set[str]()
        known = {
            name: about
            for name, about in self._known.items()
            if name not in news and not self._is_refresh_due(name)
        }
        self._known = self._store.workers(known)
        return self._known

    def _is_refresh_due(self, name: str) -> bool:
        is_few = len(self._known) <= MOST_READ_WHOLE
        return is_few or crc32(name.encode()) % REFRESH_TURNS == self._turn

    def _note(self, workers: Mapping[str, dict[str, str]]) -> None:
        self.present = {name: about for name, about in workers.items() if "refuses" not in about}
        self.busy = busy_workers(self.present.values())
        self.idle_monitor.update(workers)
        self._missing.update(workers, self._store.outages, self.give_way)
        self.registry.update(self.present)
        for name, about in self.present.items():
            self._names[worker_mark(name)] = name
            if (late := about.get("late", "0")).isdecimal():
                self._late_of[name] = int(late[:9])
        while len(self._names) > MOST_MARKS:
            del self._names[next(iter(self._names))]

    def maintain(self, *, served: bool, paused: bool) -> None:
        self.give_way = self._maintain(self.present, served, paused)

    def leaving(self) -> list[str]:
        """Workers that should leave: for another run, or because --strict refuses them."""
        return [*self.give_way, *self.registry.dismissed_workers()[:LEAVING_NAMED]]

    # --- questions

    def live_count(self) -> int:
        return max(1, len(self.present))

    def expected_count(self) -> int:
        """The number of workers; a new master has not read it yet."""
        if not self.present:
            self.update()
        return self.live_count()

    def name_of(self, mark: int) -> str:
        """The id of the worker whose results have this mark."""
        if mark not in self._names:
            self._note(self._store.workers())
        return self._names.get(mark, f"an unknown worker ({mark:08x})")

    def reporter_of(self, mark: int) -> str:
        """A worker's identity over all its seats; its id if it is unknown."""
        identity = self.registry.identity(name := self.name_of(mark))
        return name if identity is None else str(identity)

    def refuses(self, marks: NDArray[np.uint32]) -> NDArray[np.bool_]:
        """bool [A]: whether --strict refuses the results with these marks."""
        if not self._strict:
            return np.zeros(len(marks), np.bool_)
        other = [
            mark
            for mark in np.unique(marks).tolist()
            if self.registry.has_other_numerics(self.name_of(mark))
        ]
        return np.isin(marks, other)

    def reported_reason(self, slots: Slots, row: int) -> str:
        """Why the row failed, as a worker has reported it."""
        about = slots.table[row]
        expected = (slots.generation, KINDS[about["kind"]], int(about["number"]))
        for text in reversed(self._store.errors()):
            try:
                report = json.loads(text)
                found = (report.get("generation"), report.get("kind"), report.get("slot"))
            except (ValueError, AttributeError, RecursionError):
                continue
            if found == expected:
                return str(report.get("reason", ""))
        return "the reports of workers do not say why"

    def live_figures(self, slots: int | None, scale: float, paused_by: str) -> Record:
        """What people at the terminal see; notes workers that have too little to do.

        slots: training slots of the generation, None if they are unlimited, or there are none
        """
        figures: Record = {"workers": len(self.present)}
        if paused_by:
            self.idle_monitor.notice_pause()
            figures["waiting"] = f"paused by {paused_by}"
        else:
            self.idle_monitor.note_idle(len(self.present), self.busy, slots, scale)
            if self.idle_monitor.starting and not self.present:
                figures["waiting"] = "local workers are starting"
        if self.busy is not None:
            figures["busy"] = self.busy
        return figures

    def progress_fields(self) -> dict[str, str]:
        starting = self.idle_monitor.starting
        return {
            "workers": str(len(self.present)),
            "starting": str(starting) if starting else "",
            "busy": "" if self.busy is None else f"{self.busy:.3f}",
            **self.registry.progress_fields(),
        }

    def take_late(self) -> int:
        """Results that came too late, since the last call."""
        total = sum(self._late_of.values())
        fresh, self._late_taken = max(0, total - self._late_taken), total
        return fresh
