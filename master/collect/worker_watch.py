"""The present workers, read once per second for the display, warnings and seats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from zlib import crc32

from es_queue.protocol.channel import MasterChannel
from es_queue.protocol.timing import Clocks
from master.collect.ledger import Ledger, LedgerContext
from master.display.format import Record, busy_workers
from master.fleet.idle_monitor import IdleMonitor, MissingAfterOutage

#: Up to so many workers are read whole each second.
MOST_READ_WHOLE = 100
#: Of more, one in so many.
REFRESH_TURNS = 10
#: Those that refuse or have not joined yet are all read each second, unless there are more of them
#: than this.
MANY_NEW = 2000


class WorkerPoller:
    """Reads the information of workers when they join, and again every few seconds, because reading
    thousands of workers each second would take much of the master's time. Whether they live is read
    each time.
    """

    def __init__(self) -> None:
        self._workers: dict[str, dict[str, str]] = {}
        self._turn = 0

    def poll(self, channel: MasterChannel) -> dict[str, dict[str, str]]:
        """The living workers, by id. The information of refusing and joining workers is new, unless
        there are very many.
        """
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


Maintain = Callable[[Mapping[str, Mapping[str, str]], bool, bool], list[str]]


@dataclass(frozen=True)
class MasterLease:
    """The channel of the master that holds a run's lease. holder: its name; token: fences every
    write
    """

    channel: MasterChannel
    token: str
    holder: str
    clocks: Clocks


@dataclass(frozen=True)
class WorkerSource:
    """Where a run's workers come from. local: how many its master's host starts"""

    queue: str = ""
    local: int = 0


@dataclass(frozen=True)
class CollectorCallbacks:
    """What a collector calls. show_live: once per second; is_interrupted: whether a person asked to
    stop; maintain: other work of each second, given the workers, whether any answer ever counted,
    and whether the run is paused; it returns the workers that should leave
    """

    show_live: Callable[[Record], None] = lambda _: None
    is_interrupted: Callable[[], bool] = lambda: False
    maintain: Maintain = lambda *_: []


class WorkerWatch:
    """present: the workers that do not refuse to work, by id; busy: how many of them are busy on
    average, None if unknown; idle_monitor: whether any is; give_way: those that should leave for
    another run
    """

    def __init__(
        self,
        lease: MasterLease,
        context: LedgerContext,
        callbacks: CollectorCallbacks,
        local_workers: int,
    ) -> None:
        self._channel, self._context, self._callbacks = lease.channel, context, callbacks
        self._poller = WorkerPoller()
        self.idle_monitor = IdleMonitor(local_workers)
        self._missing_check = MissingAfterOutage(lease.clocks.lease + lease.clocks.beat_ttl)
        self.present: dict[str, dict[str, str]] = {}
        self.busy: float | None = None
        self.give_way: list[str] = []

    def live_count(self) -> int:
        return max(1, len(self.present))

    def expected_count(self) -> int:
        """The number of workers; a new master has not read it yet."""
        return max(1, len(self.present or self._poller.poll(self._channel)))

    def update(self) -> None:
        workers = self._poller.poll(self._channel)
        self.present = {name: about for name, about in workers.items() if "refuses" not in about}
        self.busy = busy_workers(self.present.values())
        self.idle_monitor.update(workers)
        self._missing_check.update(workers, self._channel.outages, self.give_way)
        if self._context.fleet is not None:
            self._context.fleet.update(self.present)

    def maintain(
        self, ledger: Ledger, has_results: bool, paused_by: str, scale: float = 1.0
    ) -> None:
        self.give_way = self._callbacks.maintain(self.present, has_results, bool(paused_by))
        if paused_by:
            self.idle_monitor.notice_pause()
        else:
            self.idle_monitor.note_idle(len(self.present), self.busy, ledger.training_slots, scale)
        done, total = ledger.answer_counts()
        waiting: Record = {}
        if paused_by:
            waiting["waiting"] = f"paused by {paused_by}"
        elif self.idle_monitor.starting and not self.present:
            waiting["waiting"] = "local workers are starting"
        if self.busy is not None:
            waiting["busy"] = self.busy
        self._callbacks.show_live(
            {"workers": len(self.present), "answered": done, "slots": total, **waiting}
        )
