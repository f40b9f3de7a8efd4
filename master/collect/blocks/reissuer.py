"""Issues again the slots that no worker holds and that have no result, and copies stragglers."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from es_queue.protocol.channel import MasterChannel, ReconcileReport
from es_queue.protocol.messages import Block
from master.collect.blocks.block_scheduler import BlockScheduler
from master.collect.blocks.stragglers import STRAGGLER_CHECK_SECONDS, StragglerTracker
from master.collect.ledger import Ledger, LedgerContext, StreamReader
from master.collect.recovery_statistics import REDIS_LOST, STRAGGLER
from master.collect.worker_watch import MasterLease, WorkerWatch

#: Every worker reads which workers should leave, so only a few of those with other arithmetic.
LEAVING_NAMED = 100


class OutageWatch:
    """Declares no worker dead shortly after an outage of Redis, which interrupts heartbeats (rule
    7).
    """

    def __init__(self, channel: MasterChannel, grace: float) -> None:
        self._channel, self._grace = channel, grace
        self._outages = channel.outages
        self._until = 0.0

    def has_ended(self) -> bool:
        """Whether Redis was away since the last call."""
        if self._channel.outages == self._outages:
            return False
        self._outages = self._channel.outages
        self.begin_grace()
        return True

    def begin_grace(self) -> None:
        self._until = time.monotonic() + self._grace

    def is_grace(self) -> bool:
        return time.monotonic() < self._until


@dataclass
class LateAnswers:
    """Results that came too late, as reported by living workers."""

    count: int = 0
    taken: int = 0

    def update(self, count: int) -> None:
        self.count = max(self.count, count)

    def take(self) -> int:
        """Count since the last call."""
        fresh, self.taken = max(0, self.count - self.taken), self.count
        return fresh


@dataclass(frozen=True)
class CollectorParts:
    """Inputs and outputs of reconciling: streams, workers, and the counts of all publications."""

    reader: StreamReader
    workers: WorkerWatch
    context: LedgerContext


class Reissuer:
    """late: results that came too late; outages: whether Redis was away"""

    def __init__(
        self,
        lease: MasterLease,
        scheduler: BlockScheduler,
        parts: CollectorParts,
    ) -> None:
        self._lease, self._scheduler, self._parts = lease, scheduler, parts
        self.late, self.outages = LateAnswers(), OutageWatch(lease.channel, lease.clocks.beat_ttl)
        self._stragglers = StragglerTracker(scheduler, lease.clocks.overdue)

    def forget_copies(self) -> None:
        self._stragglers.reset()

    def record_loss(self, began: float) -> None:
        """Record data that Redis lost and got again, from ``began`` on."""
        self._parts.reader.restart()
        self.forget_copies()
        self._parts.context.recoveries.record_recovery(REDIS_LOST, time.monotonic() - began)
        self.outages.begin_grace()

    def notice_outage(self, ledger: Ledger) -> bool:
        """Whether Redis was away since the last call."""
        has_ended = self.outages.has_ended()
        if has_ended:
            self._parts.reader.rewind()
            ledger.failures.restore_deaths(self._lease.channel.deaths())
        return has_ended

    def update(self, ledger: Ledger, *, paused: bool) -> float:
        """Return the blocks of dead workers, copy those of stragglers, and reissue slots that
        nobody holds. Returns seconds until stragglers are worth another look.
        """
        report = self._reconcile(ledger, (), paused=paused)
        if report is None:
            return math.inf
        self._record_deaths(ledger, report)
        self.late.update(sum(report.late.values()))
        now, present = time.monotonic(), self._parts.workers.present
        self._stragglers.update(ledger.publication, report, now)
        has_idle = any(report.claims.get(worker) == () for worker in present)
        copies = has_idle and not report.todo and not paused
        if copies and (overdue := self._stragglers.take_overdue(ledger, now)):
            blocks = [Block(ledger.publication, kind, slot, slot + 1) for kind, slot in overdue]
            self._lease.channel.extend(self._lease.token, ledger.publication, blocks)
            self._parts.context.recoveries.start_recovery(STRAGGLER, overdue)
            ledger.tally.count_reissued(len(overdue))
        # Workers that have answered before that look hold nothing any more.
        if ledger.closing.prior_publications and self._drain_fully(ledger):
            held = {block.publication for blocks in report.claims.values() for block in blocks}
            ledger.closing.update_held(held)
        self._reissue(ledger, report, paused=paused)
        return STRAGGLER_CHECK_SECONDS if copies else math.inf

    def _drain_fully(self, ledger: Ledger) -> bool:
        return self._parts.reader.drain_fully(ledger, len(self._parts.workers.present))

    def _reconcile(
        self, ledger: Ledger, only: Sequence[tuple[str, int, int]], *, paused: bool
    ) -> ReconcileReport | None:
        self.notice_outage(ledger)  # it may have been away since the tick began
        fleet = self._parts.context.fleet
        dismissed = fleet.dismissed_workers() if fleet else []
        request = ledger.reconcile_request(
            self._block_size(ledger),
            self.outages.is_grace(),
            [*self._parts.workers.give_way, *dismissed[:LEAVING_NAMED]],
        )
        # What is owed to nobody leaves todo: the workers of a paused run finish what they hold and
        # wait.
        ranges = () if paused else request.ranges
        return self._lease.channel.reconcile(
            self._lease.token, replace(request, only=only, ranges=ranges)
        )

    def _block_size(self, ledger: Ledger) -> int:
        workers = self._parts.workers.live_count()
        return ledger.closing.reissue_size(ledger, self._scheduler, workers)

    def _record_deaths(self, ledger: Ledger, report: ReconcileReport) -> None:
        for _, blocks in report.dead:
            ledger.record_death(blocks)

    def _reissue(self, ledger: Ledger, report: ReconcileReport, *, paused: bool) -> None:
        """Reissue slots that nobody held at that look and that have no result since.

        A result and the end of its claim are one step: a worker without a claim has returned, or
        never will.
        """
        if not report.unclaimed or not self._drain_fully(ledger):
            return
        second = self._reconcile(ledger, report.unclaimed, paused=paused)
        if second is None:
            return
        self._record_deaths(ledger, second)
        if second.requeued:
            self._parts.reader.reread()
            ledger.tally.count_reissued(second.requeued)
