"""Publishes a generation and collects its results. Each second, it renews the lease, reconciles,
and checks seats, workers and the display.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

from es_queue.errors import RedisError
from es_queue.protocol import messages
from es_queue.protocol.channel import PublishRequest, PublishResult
from es_queue.protocol.messages import Block, publication_generation
from master.collect.audit import Audit
from master.collect.blocks.block_scheduler import BlockScheduler
from master.collect.blocks.reissuer import CollectorParts, LateAnswers, Reissuer
from master.collect.ledger import Ledger, LedgerContext, StreamReader
from master.collect.recovery_statistics import REDIS_AWAY
from master.collect.worker_watch import CollectorCallbacks, MasterLease, WorkerSource, WorkerWatch
from master.control.inbox import ControlInbox
from master.fleet.worker_registry import WorkerRegistry

LOGGER = logging.getLogger("es_queue.collect")
#: Between two looks at the audit, once all results are there.
AUDIT_SECONDS = 0.02
#: Blocks that are published with the parameters, in all and for each worker; the others follow, so
#: many in one script.
FIRST_BLOCKS, FIRST_BLOCKS_PER_WORKER, BLOCKS_PER_SCRIPT = 1024, 4, 8192
MOST_STAGING_ATTEMPTS = 10
GENERATION_LOST = "Redis has lost this generation: it is published again"
FORMER_GENERATION_LOST = (
    "Redis has lost the previous generation, or has another one: this one replaces it"
)


class Interrupted(Exception):  # noqa: N818 - it is no error: a person asked to stop
    """A request to stop the master, between two reads of the results."""


class Unserved(Interrupted):
    """Training has ended, and no worker is there for the evaluations that follow."""


@dataclass
class PauseClock:
    """Seconds of pauses since ``take_seconds``."""

    paused_at: float | None = None
    seconds: float = 0.0

    def update(self, *, paused: bool) -> bool:
        """Whether a pause has ended."""
        now, was_paused = time.monotonic(), self.paused_at is not None
        if self.paused_at is not None:
            self.seconds += now - self.paused_at
        self.paused_at = now if paused else None
        return was_paused and not paused

    def take_seconds(self) -> float:
        """Since the last call."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds


class RunProgress:
    """Progress of the run, published each second. queue: of its workers"""

    def __init__(self, parts: CollectorParts, inbox: ControlInbox, queue: str) -> None:
        self._parts, self._inbox, self._queue = parts, inbox, queue
        self._ledger: Ledger | None = None
        self.scale = 1.0
        self._former_refused: Counter[str] = Counter()

    def open(self, ledger: Ledger, scale: float) -> None:
        """Another publication is open. scale: the run's"""
        self._former_refused, self._ledger = self.refused(), ledger
        self.scale = scale

    def refused(self) -> Counter[str]:
        """What was refused under this master, by reason."""
        return self._former_refused + (Counter() if self._ledger is None else self._ledger.refused)

    def fields(self, ledger: Ledger) -> dict[str, str]:
        context, (done, total) = self._parts.context, ledger.answer_counts()
        busy, starting = self._parts.workers.busy, self._parts.workers.idle_monitor.starting
        fleet = context.fleet
        return {
            "queue": self._queue,
            "workers": str(len(self._parts.workers.present)),
            "starting": str(starting) if starting else "",
            "busy": "" if busy is None else f"{busy:.3f}",
            "scale": f"{self.scale:g}",
            "answered": f"{done}/{total}",
            "training_slots": "" if ledger.training_slots is None else str(ledger.training_slots),
            "updated": f"{time.time():.3f}",
            "answered_at": f"{self._parts.reader.answered_at:.3f}",
            **self._inbox.progress_fields(),
            "recoveries": context.recoveries.to_json(),
            **({} if fleet is None else fleet.progress_fields()),
        }


class BlockPublisher:
    """Publishes a ledger's slots in the scheduler's blocks."""

    def __init__(
        self,
        lease: MasterLease,
        scheduler: BlockScheduler,
        workers: WorkerWatch,
    ) -> None:
        self._lease, self._scheduler, self._workers = lease, scheduler, workers
        self._request = PublishRequest("", b"", (), "", {})
        self._parameters = b""

    def open(
        self, ledger: Ledger, request: PublishRequest, parameters: bytes, *, adopted: bool
    ) -> bool:
        """Publish, unless a former master left it open. False if Redis had a publication open that
        is not this master's last.
        """
        before = self._request.publication
        self._request, self._parameters = request, parameters
        if adopted:
            return True
        opened = self.publish(ledger)
        # ours: sent again after a lost reply
        return not before or opened.previous in (before, ledger.publication)

    def publish(self, ledger: Ledger) -> PublishResult:
        """Stage, then publish the unanswered slots (rules 3, 4).

        Blocks that are needed late in the generation follow at once. If a master ends between the
        two, its successor finds these slots unanswered, because todo is only a hint (rules 1, 8).
        """
        count = self._workers.expected_count()
        blocks = iter(ledger.closing.blocks(ledger, self._scheduler, count))
        most = max(FIRST_BLOCKS, FIRST_BLOCKS_PER_WORKER * len(self._workers.present))
        first = list(islice(blocks, most))
        request = replace(self._request, blocks=first, keep=ledger.closing.prior_publications)
        for _ in range(MOST_STAGING_ATTEMPTS):
            self._lease.channel.stage(ledger.publication, self._parameters)
            opened = self._lease.channel.publish(self._lease.token, request)
            if opened.succeeded:
                self._issue(ledger, blocks, new=True)
                return opened
        raise RedisError(
            f"the parameters of publication {ledger.publication} disappeared from Redis "
            f"{MOST_STAGING_ATTEMPTS} times before they were published: find out what removes "
            f"keys there"
        )

    def extend(self, ledger: Ledger) -> None:
        """Issue the slots that the ledger now requires."""
        count = self._workers.expected_count()
        self._issue(ledger, ledger.closing.more_blocks(ledger, self._scheduler, count))

    def refill(self, ledger: Ledger) -> None:
        count = self._workers.live_count()
        self._issue(ledger, ledger.closing.refill(ledger, self._scheduler, count))

    def learn_durations(self, ledger: Ledger) -> None:
        """Size the next blocks by this generation's durations."""
        for kind in ledger.required:
            seconds = ledger.tally.seconds_per_slot(kind)
            if seconds is not None:
                self._scheduler.seconds[kind] = seconds

    def _issue(self, ledger: Ledger, blocks: Iterable[Block], *, new: bool = False) -> None:
        """``new``: the publication has just been opened."""
        extend = partial(self._lease.channel.extend, self._lease.token, ledger.publication)
        rest = iter(blocks)
        while chunk := list(islice(rest, BLOCKS_PER_SCRIPT)):
            extend(chunk, new=new)


class Collector:
    """Reads results of the open publication into its ledger and keeps the publication alive.

    context: shared by its ledgers; idle_work: optional work for the next generation in idle moments
    """

    def __init__(
        self,
        lease: MasterLease,
        scheduler: BlockScheduler,
        callbacks: CollectorCallbacks | None = None,
        inbox: ControlInbox | None = None,
        source: WorkerSource | None = None,
        *,
        strict: bool = False,
        audit: Audit | None = None,
    ) -> None:
        callbacks, source = callbacks or CollectorCallbacks(), source or WorkerSource()
        channel = lease.channel
        self.context = LedgerContext(WorkerRegistry(channel.workers, strict))
        self._audit = audit
        self.inbox = inbox or ControlInbox(channel)
        self.idle_work: deque[Callable[[], object]] = deque()
        self._lease, self._callbacks = lease, callbacks
        reader = StreamReader(channel, lease.clocks.reconcile)
        workers = WorkerWatch(lease, self.context, callbacks, source.local)
        self._parts = CollectorParts(reader, workers, self.context)
        self._publisher = BlockPublisher(lease, scheduler, workers)
        self._reissuer = Reissuer(lease, scheduler, self._parts)
        self._progress = RunProgress(self._parts, self.inbox, source.queue)
        self.pauses = PauseClock()
        self._next_tick = 0.0

    @property
    def fleet(self) -> WorkerRegistry:
        assert self.context.fleet is not None, "a collector has one"
        return self.context.fleet

    @property
    def late_answers(self) -> LateAnswers:
        """Results that came too late, as reported by living workers."""
        return self._reissuer.late

    @property
    def is_without_workers(self) -> bool:
        return self._parts.workers.idle_monitor.is_unserved

    # --- opening

    def refused(self) -> Counter[str]:
        """Results that were refused under this master, by reason."""
        return self._progress.refused()

    def progress_field(self, name: str) -> str | None:
        """A field that a former master left in the run's progress."""
        return self._lease.channel.progress_field(name)

    def leave_poll_seconds(self) -> float:
        """Seconds between a worker's polls of the leave flags: at most 2,500 polls per second in
        all.
        """
        return max(self._lease.clocks.leave_poll, len(self._parts.workers.present) / 2500)

    def open(
        self,
        ledger: Ledger,
        request: PublishRequest,
        parameters: bytes,
        *,
        adopted: bool,
        scale: float = 1.0,
    ) -> None:
        self.idle_work.clear()
        self._progress.open(ledger, scale)
        self._reissuer.forget_copies()
        if self._audit is not None:
            self._audit.begin(request.task, parameters)
        self._parts.reader.open(ledger.publication, ledger.closing.prior_publications)
        began = time.monotonic()
        is_next = self._publisher.open(ledger, request, parameters, adopted=adopted)
        if adopted:
            self._next_tick = 0.0
            ledger.failures.restore_deaths(self._lease.channel.deaths())
        if not is_next:
            LOGGER.warning(FORMER_GENERATION_LOST)
            self._reissuer.record_loss(began)

    def extend(self, ledger: Ledger) -> None:
        self._publisher.extend(ledger)

    # --- reading

    def collect(self, ledger: Ledger, is_over: Callable[[], bool] = lambda: False) -> bool:
        """Collect until the ledger is complete and the run is not paused, or until ``is_over``.
        Returns whether the ledger is complete.

        Waiting entries do not delay the lease. Raises Interrupted, FencedError, RedisError,
        EnvironmentFailure.
        """
        if ledger.is_complete():
            self._raise_if_interrupted()
            if time.monotonic() >= self._next_tick:
                self.tick(ledger)
        while self._is_audit_pending(ledger) or self.inbox.paused_by or not ledger.is_complete():
            longest = AUDIT_SECONDS if ledger.is_complete() else self._lease.clocks.collect_wait
            wait = min(longest, max(0.001, self._next_tick - time.monotonic()))
            if self.drain(ledger, wait):
                self._work_while_idle(ledger)
            self._raise_if_interrupted()
            if time.monotonic() >= self._next_tick or ledger.needs_reconcile:
                self.tick(ledger)
            if not self.inbox.paused_by and not ledger.is_complete() and is_over():
                return False
        self._publisher.learn_durations(ledger)
        return True

    def _is_audit_pending(self, ledger: Ledger) -> bool:
        return self._audit is not None and self._audit.is_pending(
            ledger, self._parts.workers.live_count()
        )

    def _raise_if_interrupted(self) -> None:
        if self._callbacks.is_interrupted() or self.inbox.stopped_by:
            raise Interrupted

    def _work_while_idle(self, ledger: Ledger) -> None:
        ledger.extend_prefix()
        if self.idle_work and not ledger.is_complete():
            self.idle_work.popleft()()

    def drain(self, ledger: Ledger, wait: float) -> bool:
        """Read results in bulk, and issue new slots if the ledger needs more. Returns whether
        nothing is left.
        """
        drained = self._parts.reader.drain(ledger, wait, len(self._parts.workers.present))
        if not self.inbox.paused_by:
            self._publisher.refill(ledger)
        return drained

    # --- each second

    def tick(self, ledger: Ledger) -> None:
        """Handle requests, renew the lease, reconcile, and update workers and display."""
        began, clocks = time.monotonic(), self._lease.clocks
        self._next_tick = began + min(clocks.renew, clocks.reconcile)
        ledger.start_reconcile()
        self._poll_requests(ledger)
        self._renew(ledger, began)
        self._reissuer.notice_outage(ledger)
        reader, workers = self._parts.reader, self._parts.workers
        workers.update()
        paused_by, scale = self.inbox.paused_by, self._progress.scale
        workers.maintain(ledger, reader.has_results, paused_by, scale)
        if reader.drain_fully(ledger, len(workers.present)):
            pause = self._reissuer.update(ledger, paused=bool(self.inbox.paused_by))
            self._next_tick = min(self._next_tick, time.monotonic() + pause)
        if not self.inbox.paused_by:
            self._publisher.refill(ledger)  # in place of what was read here

    def _poll_requests(self, ledger: Ledger) -> None:
        is_training = messages.TRAIN in ledger.required
        self.inbox.poll(publication_generation(ledger.publication), is_training=is_training)
        if self.pauses.update(paused=bool(self.inbox.paused_by)):
            self._parts.reader.mark_answered()  # a pause is no stall
            self._reissuer.forget_copies()  # it took the copies out of todo

    def _renew(self, ledger: Ledger, began: float) -> None:
        """Renew the lease; publish again what Redis has lost."""
        channel = self._lease.channel
        stored = channel.renew(
            self._lease.token,
            self._lease.holder,
            self._lease.clocks.lease,
            self._progress.fields(ledger) | (self._audit.progress_fields() if self._audit else {}),
            self._progress.refused(),
        )
        if stored.publication != ledger.publication or not stored.is_complete:
            self._publisher.publish(ledger)
            LOGGER.warning(GENERATION_LOST)
            self._reissuer.record_loss(began)
        if ended := channel.ended_outages():
            # What failed one after the other within a second failed by one cause.
            self.context.recoveries.record_recovery(REDIS_AWAY, sum(ended))
