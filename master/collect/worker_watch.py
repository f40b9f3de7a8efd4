"""The present workers, read once per second for the display, warnings and seats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from es_queue.protocol.channel import MasterChannel
from es_queue.protocol.timing import Clocks
from es_queue.security.bounded_reads import MAX_WORKERS
from master.collect.ledger import Ledger, LedgerContext
from master.display.format import Record
from master.fleet.idle_monitor import IdleMonitor, MissingAfterOutage
from master.fleet.worker_poller import WorkerPoller

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
class CollectorCallbacks:
    """What a collector calls. show_live: once per second; is_interrupted: whether a person asked to
    stop; maintain: what else must be looked after each second, given the workers, whether any
    answer ever counted, and whether the run is paused; the workers that should leave
    """

    show_live: Callable[[Record], None] = lambda _: None
    is_interrupted: Callable[[], bool] = lambda: False
    maintain: Maintain = lambda *_: []


class WorkerWatch:
    """present: the workers that do not refuse to work, by id; give_way: those that should leave for
    another run
    """

    def __init__(
        self, lease: MasterLease, context: LedgerContext, callbacks: CollectorCallbacks
    ) -> None:
        self._channel, self._context, self._callbacks = lease.channel, context, callbacks
        self._poller = WorkerPoller()
        self._idle_monitor = IdleMonitor()
        self._missing_check = MissingAfterOutage(lease.clocks.lease + lease.clocks.beat_ttl)
        self.present: dict[str, dict[str, str]] = {}
        self.give_way: list[str] = []

    @property
    def is_unserved(self) -> bool:
        """Whether nobody has been there for a while who would work."""
        return self._idle_monitor.is_unserved

    def live_count(self) -> int:
        return max(1, len(self.present))

    def expected_count(self) -> int:
        """A new master has not looked yet."""
        return max(1, len(self.present or self._poller.poll(self._channel)))

    def update(self) -> None:
        """Who is there, and who refuses."""
        answers = self._context.answers
        workers = self._poller.poll(self._channel, answers)
        self.present = {name: about for name, about in workers.items() if "refuses" not in about}
        self._idle_monitor.update(workers)
        self._missing_check.update(workers, self._channel.outages, self.give_way)
        if self._context.fleet is not None:
            self._context.fleet.update(self.present)
        if len(answers) > MAX_WORKERS:  # whoever answers names itself
            for name in set(answers) - set(workers):
                del answers[name]

    def maintain(self, ledger: Ledger, has_results: bool, paused_by: str) -> None:
        """Seats, supervision, and the display."""
        self.give_way = self._callbacks.maintain(self.present, has_results, bool(paused_by))
        self._idle_monitor.note_waiting(len(self.present), ledger.training_slots)
        done, total = ledger.answer_counts()
        waiting = {"waiting": f"paused by {paused_by}"} if paused_by else {}
        self._callbacks.show_live(
            {"workers": len(self.present), "answered": done, "slots": total, **waiting}
        )
