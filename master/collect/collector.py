"""Collecting answers, and all that must happen each second meanwhile: renew, reconcile, seats,
supervision, display.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Protocol

from es_queue.errors import RedisError
from es_queue.protocol import messages
from es_queue.protocol.channel import (
    MasterChannel,
    PublishRequest,
    PublishResult,
    ReconcileReport,
    StreamEntry,
)
from es_queue.protocol.messages import Block, publication_generation
from es_queue.protocol.timing import Clocks
from es_queue.security.bounded_reads import MAX_WORKERS
from master.collect.audit import Audit
from master.collect.block_scheduler import BlockScheduler, blocks_of_slots
from master.collect.ledger import Ledger, Slot
from master.collect.observation_limits import format_implausible
from master.collect.recovery_statistics import REDIS_AWAY, REDIS_LOST, STRAGGLER, RecoveryStatistics
from master.collect.stragglers import (
    BLOCKS_GIVEN,
    ISSUES_TO_ALL,
    STRAGGLER_CHECK_SECONDS,
    DirectIssue,
    IdleWorkers,
    StragglerTracker,
    slots_of,
)
from master.collect.verification import Verification
from master.control.inbox import ControlInbox
from master.display.limited_notes import LimitedNotes
from master.fleet.idle_monitor import IdleMonitor
from master.fleet.lost_workers import LostWorkerCheck
from master.fleet.silent_workers import SilentWorkers
from master.fleet.worker_poller import WorkerPoller
from master.fleet.worker_registry import WorkerRegistry
from master.loop.learner import Record

MOST_READ, FIRST_READ = 1000, 4
#: Entries a second that are read again at the most, and how many seconds a flood may keep reconcile
#: waiting.
MOST_REREAD_PER_SECOND, MOST_POSTPONED_TICKS = 5000, 10
MOST_READ_BYTES = 4 * 2**20  # of one reply, as far as its size can be told from the one before
#: Blocks that are published with the parameters, in all and for each worker; the others follow, so
#: many in one script.
FIRST_BLOCKS, FIRST_BLOCKS_PER_WORKER, BLOCKS_PER_SCRIPT = 1024, 4, 8192
MOST_STAGING_ATTEMPTS, MOST_DEAD = 10, 1000
MOST_LATE = 10  # late answers of a worker that are believed, for each of its answers that counted
#: Between two looks at what the master plays itself.
VERIFYING_SECONDS = 0.02
GENERATION_LOST = "Redis has lost this generation: it is published again"
FORMER_GENERATION_LOST = (
    "Redis has lost the generation before this one, or holds another: this one is published over it"
)


class Interrupted(Exception):  # noqa: N818 - it is no error: a person asked to stop
    """Somebody asked the master to stop; it happens between two looks at the results."""


@dataclass
class StreamCursor:
    """How far the stream of an open publication was read; the cursor may go back, and what was
    ``seen`` does not count twice.
    """

    cursor: str = "0"
    seen: set[str] = field(default_factory=set)


class MaintenanceTask(Protocol):
    """What else must be looked after each second while the master waits."""

    def tick(
        self,
        channel: MasterChannel,
        workers: Mapping[str, Mapping[str, str]],
        served: bool,
        paused: bool,
    ) -> list[str]: ...


class Collector:
    """Reads answers of the open publication into its ledger and keeps the publication alive.

    contributors: workers whose answers counted; fleet: who works, and on what arithmetic; about:
    what else progress says of the run; idle_work: work of the next generation that is done in idle
    moments, or not at all.
    """

    def __init__(
        self,
        channel: MasterChannel,
        token: str,
        holder: str,
        clocks: Clocks,
        block: int,
        maintenance: MaintenanceTask | None,
        show_live: Callable[[Record], None],
        note: Callable[[str], None],
        is_interrupted: Callable[[], bool] = lambda: False,
        inbox: ControlInbox | None = None,
        audit: float = 0.0,
        strict: bool = False,
        verification: Verification | None = None,
    ) -> None:
        """``verification``: what plays again the evaluations that decide something; None where only
        the master's own workers can answer.
        """
        self.inbox = inbox or ControlInbox(channel, note)
        self.fleet = WorkerRegistry(note, channel.workers, strict, lambda: time.monotonic())
        self.audit = Audit(
            self.fleet, audit, note, play=None if verification is None else verification.play
        )
        self.verification = verification
        self.recoveries = RecoveryStatistics()
        self.extra_progress: dict[str, str] = {}
        self.idle_work: deque[Callable[[], object]] = deque()
        self.scheduler = BlockScheduler(fixed=block)
        self._paused_at: float | None = None
        self._paused_for = 0.0
        self._answered_at = time.time()
        self._channel, self._token, self._holder, self._clocks = channel, token, holder, clocks
        self._maintenance, self._show_live, self._note, self._is_interrupted = (
            maintenance,
            show_live,
            note,
            is_interrupted,
        )
        self._publication = PublishRequest("", b"", (), "", {})
        self._parameters = b""
        self._cursors: dict[str, StreamCursor] = {}
        self._read_count = FIRST_READ
        self._outages = channel.outages
        self._postponed_ticks = 0
        self._next_reread = 0.0
        self._open_publication = ""
        self._poller = WorkerPoller()
        self._lost_worker_check = LostWorkerCheck(clocks.lease + clocks.beat_ttl, note)
        self._next_tick = 0.0
        self._grace_until = 0.0
        self._stragglers = StragglerTracker(self.scheduler, clocks.overdue)
        self._direct = DirectIssue()
        self._idle, self._silent = IdleWorkers(), SilentWorkers(LimitedNotes(note))
        self._answers: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._workers: dict[str, dict[str, str]] = {}
        self._late = self._late_reported = self._issues = 0
        self._idle_monitor = IdleMonitor(note)
        self._give_way: list[str] = []
        self._has_results = False
        self._implausible = ""  # the first worker whose moments were left out
        self._ledger: Ledger | None = None
        self.contributors: set[str] = set()

    # --- opening

    def leave_poll_seconds(self) -> float:
        """Seconds between a worker's looks at the leave flags: 2,500 looks a second of all workers
        together at the most.
        """
        return max(self._clocks.leave_poll, len(self._workers) / 2500)

    def open(
        self, ledger: Ledger, request: PublishRequest, parameters: bytes, *, adopted: bool
    ) -> None:
        """Publish what the ledger wants, unless a former master has left it open."""
        self._publication, self._parameters, self._issues = request, parameters, 0
        self.idle_work.clear()
        self._stragglers.reset()
        self._direct.begin(self._answers)
        self._refused += self._ledger.refused if self._ledger is not None else Counter()
        self._ledger = ledger
        ledger.recoveries, ledger.answers = self.recoveries, self._answers
        # Of what a former master published it is unknown when it was; its answers are bounded all
        # the same.
        since = time.monotonic() - (self._clocks.grace if adopted else 0.0)
        ledger.longest = lambda: time.monotonic() - since
        self.audit.begin(sum(ledger.required.values()))
        ledger.fleet, ledger.guarded = (
            self.fleet,
            bool(self.audit.fraction or self.fleet.strict or self.fleet.quarantined),
        )
        ledger.audit = self.audit if self.audit.fraction else None
        self.contributors = ledger.contributors
        before, self._open_publication = self._open_publication, ledger.publication
        self._cursors = {
            publication: self._cursors.get(publication, StreamCursor())
            for publication in ledger.prior_publications
        }
        if adopted:
            self._cursors[ledger.publication], self._next_tick = StreamCursor(), 0.0
            ledger.restore_deaths(self._channel.deaths())
        else:
            began, opened = time.monotonic(), self._publish(ledger)
            if before and opened.previous not in (
                before,
                ledger.publication,
            ):  # ours: sent again after a lost reply
                self._note_loss(FORMER_GENERATION_LOST, began)

    def _publish(self, ledger: Ledger) -> PublishResult:
        """Stage, then publish the unanswered slots; reading starts again at 0 (rules 3, 4, 9).

        Nobody waits for blocks that come late in the generation: they follow at once. Of a master
        that ends between the two its successor finds them owed, for todo is a hint (rules 1, 8).
        """
        named = self._direct.share_blocks(self._schedule_blocks(ledger), self._workers)
        blocks = iter(() if named else self._schedule_blocks(ledger))
        first = list(
            islice(blocks, max(FIRST_BLOCKS, FIRST_BLOCKS_PER_WORKER * len(self._workers)))
        )
        self._cursors[ledger.publication] = StreamCursor()
        for _ in range(MOST_STAGING_ATTEMPTS):
            self._channel.stage(ledger.publication, self._parameters)
            opened = self._channel.publish(
                self._token,
                replace(self._publication, blocks=first, keep=ledger.prior_publications),
            )
            if opened.succeeded:
                self._issue_blocks(ledger, blocks, new=True)
                for worker, some in named.items():
                    self._channel.extend(self._token, ledger.publication, some, to=worker)
                return opened
        raise RedisError(
            f"the parameters of publication {ledger.publication} went from Redis "
            f"{MOST_STAGING_ATTEMPTS} times before they were published: "
            "find out what removes keys there"
        )

    def _note_loss(self, text: str, began: float) -> None:
        """Redis had forgotten something and was told again; it took from ``began`` on."""
        self._note(text)
        self._cursors = {
            publication: StreamCursor() for publication in self._cursors
        }  # what is there again may have ids that others had
        self._stragglers.reset()  # copies are gone, too
        self.recoveries.record_recovery(REDIS_LOST, time.monotonic() - began)
        self._grace_until = time.monotonic() + self._clocks.beat_ttl

    def extend(self, ledger: Ledger) -> None:
        """Issue the slots that the ledger has come to want."""
        self._issue_blocks(ledger, iter(self._schedule_blocks(ledger)))

    def _issue_blocks(self, ledger: Ledger, blocks: Iterator[Block], *, new: bool = False) -> None:
        while chunk := list(islice(blocks, BLOCKS_PER_SCRIPT)):
            self._channel.extend(self._token, ledger.publication, chunk, new=new)

    def _schedule_blocks(self, ledger: Ledger) -> Iterable[Block]:
        workers = self._workers or self._poller.poll(
            self._channel
        )  # a new master has not looked yet
        return self.scheduler.iterate_blocks(
            ledger.publication, ledger.unanswered_ranges(), max(1, len(workers))
        )

    # --- reading

    def collect(self, ledger: Ledger) -> None:
        """Until the ledger is complete and the run not paused. Raises Interrupted, FencedError,
        RedisError, EnvironmentFailure.
        """
        while (
            (verifying := self._verifying(ledger))
            or self.inbox.paused_by
            or not ledger.is_complete()
        ):
            longest = VERIFYING_SECONDS if verifying else self._clocks.collect_wait
            wait = min(longest, max(0.001, self._next_tick - time.monotonic()))
            if self.drain(ledger, wait):
                self._work_while_idle(ledger)
            if self._is_interrupted() or self.inbox.stopped_by:
                raise Interrupted
            if time.monotonic() >= self._next_tick or ledger.needs_reconcile:
                self.tick(ledger)
        if ledger.implausible and not self._implausible:
            self._implausible = ledger.implausible
            self._note(
                format_implausible(self._implausible, publication_generation(ledger.publication))
            )
        for kind in ledger.required:
            seconds = ledger.seconds_per_slot(kind)
            if seconds is not None:
                self.scheduler.seconds[kind] = seconds

    def _verifying(self, ledger: Ledger) -> bool:
        return self.verification is not None and self.verification.is_pending(ledger)

    def _work_while_idle(self, ledger: Ledger) -> None:
        """With nothing left to read, what can be done before the last answer is there."""
        ledger.extend_prefix()
        if self.idle_work and not ledger.is_complete():
            self.idle_work.popleft()()

    def drain(self, ledger: Ledger, wait: float) -> bool:
        """Drain what is there, in bulk, but no flood for ever: a thousand entries, or 32 MiB, and
        the other duties come first.

        Whether nothing is left.
        """
        number = size = 0
        self._cursors.setdefault(ledger.publication, StreamCursor())
        while number < MOST_READ and size < 8 * MOST_READ_BYTES:
            limit = self._read_count
            cursors = {publication: tail.cursor for publication, tail in self._cursors.items()}
            entries_by_publication = self._channel.collect_each(
                cursors, limit, 0.0 if number else wait, ledger.largest_answer
            )
            length = sum(
                len(entry.payload)
                for entries in entries_by_publication.values()
                for entry in entries
            )
            number, size = number + sum(map(len, entries_by_publication.values())), size + length
            for publication, entries in entries_by_publication.items():
                self._accept_entries(ledger, publication, entries)
            if self._channel.is_cut:  # what was read, its length says nothing of what was asked for
                limit = max(1, sum(map(len, entries_by_publication.values())))
            elif all(len(entries) < limit for entries in entries_by_publication.values()):
                self._read_count = FIRST_READ
                return True
            # Large entries are read one by one: a reply of a thousand of them would fill this
            # process.
            self._read_count = max(
                1, min(MOST_READ, 4 * limit, MOST_READ_BYTES * limit // (length + 1))
            )
        return False

    def _drain_fully(self, ledger: Ledger) -> bool:
        """Read to the end: what is unread would look as if nobody held it. A flood that does not
        end puts reconcile off for a while only.
        """
        until = time.monotonic() + self._clocks.reconcile
        while not self.drain(ledger, 0.0):
            if time.monotonic() > until:
                self._postponed_ticks += 1
                return self._postponed_ticks > MOST_POSTPONED_TICKS
        self._postponed_ticks = 0
        return True

    def _accept_entries(
        self, ledger: Ledger, publication: str, entries: Sequence[StreamEntry]
    ) -> None:
        """What did not count is deleted, so that a flood does not stay (rule 6)."""
        cursor = self._cursors[publication]
        if (
            not cursor.seen and not entries[0].payload
        ):  # the header; any other entry without an answer is refused
            cursor.seen.add(entries[0].id)
        unseen = [entry for entry in entries if entry.id not in cursor.seen]
        cursor.seen.update(entry.id for entry in unseen)
        refused = [
            entry.id for entry in unseen if not ledger.accept(entry.payload, len(self._workers))
        ]
        self._channel.discard(publication, refused)
        cursor.seen.difference_update(refused)  # they are gone: a flood is not remembered either
        cursor.cursor = entries[-1].id
        self._has_results = self._has_results or bool(ledger.contributors)
        if len(refused) < len(unseen):
            self._answered_at = time.time()

    # --- each second

    def tick(self, ledger: Ledger) -> None:
        """Take up requests, renew, notice loss, reconcile, look after workers, show."""
        began = time.monotonic()
        self._next_tick = began + min(self._clocks.renew, self._clocks.reconcile)
        ledger.needs_reconcile = False
        self._poll_requests(publication_generation(ledger.publication))
        stored = self._channel.renew(
            self._token,
            self._holder,
            self._clocks.lease,
            self._progress_fields(ledger),
            self._refused + ledger.refused,
        )
        if stored.publication != ledger.publication or not stored.is_complete:
            self._publish(ledger)
            self._note_loss(GENERATION_LOST, began)
        ended = self._channel.ended_outages()
        if ended:  # what failed one after the other within a second failed by one cause
            self.recoveries.record_recovery(REDIS_AWAY, sum(ended))
        self._notice_outage(ledger)
        self._check_workers(ledger)
        if not self._drain_fully(ledger):
            return
        report = self._reconcile(ledger, ())
        if report is not None:
            self._apply_reconciliation(ledger, report)
            self._reissue(ledger, report)

    def _notice_outage(self, ledger: Ledger) -> None:
        """Redis was away, and with it every beat: nobody is declared dead for a while (rule 7)."""
        if self._channel.outages != self._outages:
            self._outages = self._channel.outages
            self._grace_until = time.monotonic() + self._clocks.beat_ttl
            self._rewind_streams()
            ledger.restore_deaths(self._channel.deaths())

    def _reconcile(
        self, ledger: Ledger, only: Sequence[tuple[str, int, int]]
    ) -> ReconcileReport | None:
        self._notice_outage(ledger)  # it may have been away since the tick began
        dismissed = sorted({*self.fleet.dismissed_workers(), *self._silent.names})
        request = replace(
            ledger.reconcile_request(
                self._reissue_size(ledger),
                time.monotonic() < self._grace_until,
                self._give_way,
                dismissed,
            ),
            only=only,
        )
        # What is owed to nobody leaves todo: the workers of a paused run finish what they hold and
        # wait.
        return self._channel.reconcile(
            self._token, replace(request, ranges=()) if self.inbox.paused_by else request
        )

    def _reissue(self, ledger: Ledger, report: ReconcileReport) -> None:
        """What nobody held at that look, and what is not among the answers that were there by then
        either.

        An answer and the end of its claim are one: whoever was seen without one has answered
        before, or never will.
        """
        if not report.unclaimed or not self._drain_fully(ledger):
            return
        self._issues += 1
        by_name = (
            self._direct.is_on or self._issues > ISSUES_TO_ALL
        ) and not self.inbox.paused_by  # somebody takes it from todo again and again
        given = len(self._give(ledger, slots_of(report.unclaimed))) if by_name else 0
        apart = ledger.singles()
        self._direct.record_unclaimed(
            slot
            for slot in slots_of(report.unclaimed)
            if slot not in self.audit.questions and slot not in apart
        )
        second = self._reconcile(ledger, report.unclaimed)
        for _, blocks in second.dead[:MOST_DEAD] if second is not None else ():
            ledger.record_death(blocks)
        if second is not None and given + second.requeued:
            self._reread_streams()
            ledger.reissued += max(
                0, given + second.requeued - len(self.audit.questions)
            )  # what the audit asks for was not lost

    def _poll_requests(self, generation: int) -> None:
        """What people ask; the time that a pause takes is no time of the run."""
        self.inbox.poll(generation)
        now = time.monotonic()
        if self._paused_at is not None:
            self._paused_for += now - self._paused_at
            if not self.inbox.paused_by:
                self._answered_at = time.time()  # a pause is no stall
                self._stragglers.reset()  # it took the copies out of todo
        self._paused_at = now if self.inbox.paused_by else None

    def take_paused_seconds(self) -> float:
        """Seconds of pause since the last call."""
        paused, self._paused_for = self._paused_for, 0.0
        return paused

    def _reissue_size(self, ledger: Ledger) -> int:
        """Slots of a block that is issued again; it may be of any kind that is owed, and of some a
        slot has many episodes.
        """
        owed = {kind for kind, _, _ in ledger.unanswered_ranges()} or {messages.TRAIN}
        return min(
            self.scheduler.reissue_size(
                kind, ledger.required.get(kind, 1), max(1, len(self._workers))
            )
            for kind in owed
        )

    def _apply_reconciliation(self, ledger: Ledger, report: ReconcileReport) -> None:
        for _, blocks in report.dead[:MOST_DEAD]:
            ledger.record_death(blocks)
        late = (min(count, MOST_LATE * self._answers[name]) for name, count in report.late.items())
        self._late = max(self._late, sum(late))
        self._copy_straggling_blocks(ledger, report)

    def _rewind_streams(self) -> None:
        """All streams are read from their beginning again (rule 9)."""
        for tail in self._cursors.values():
            tail.cursor = "0"

    def _reread_streams(self) -> None:
        """From the beginning (rule 9), in case something stands where nobody looks; of many entries
        seldom, for that takes its time.
        """
        now = time.monotonic()
        if now >= self._next_reread:
            self._rewind_streams()
            self._next_reread = (
                now
                + sum(len(tail.seen) for tail in self._cursors.values()) / MOST_REREAD_PER_SECOND
            )

    def _copy_straggling_blocks(self, ledger: Ledger, report: ReconcileReport) -> None:
        now = time.monotonic()
        self._stragglers.update(ledger.publication, report, now)
        self._silent.update(
            report.claims, self._workers, self._answers, self.scheduler.patience, now
        )
        joined = [worker for worker in self._workers if worker not in self._silent.names]
        if (
            not self._idle.update(report.claims, joined, self._answers)
            or report.todo
            or self.inbox.paused_by
        ):
            return
        self._next_tick = min(self._next_tick, now + STRAGGLER_CHECK_SECONDS)
        first, more = self._stragglers.overdue_slots(ledger, now)
        if self._direct.is_on:
            first, more = [], first + more
        if first:
            self._channel.extend(
                self._token,
                ledger.publication,
                [Block(ledger.publication, kind, slot, slot + 1) for kind, slot in first],
            )
            self.recoveries.start_recovery(STRAGGLER, first)
        given = self._give(ledger, more)
        self._direct.record_copies(given, report.claims, self._answers)
        first += given
        self._stragglers.record_copies(ledger, first, now)
        ledger.reissued += len(first)

    def _give(self, ledger: Ledger, slots: Iterable[Slot]) -> list[Slot]:
        """Put slots into the claims of idle workers, a little for each; those that found one."""
        most, singles = self._reissue_size(ledger), ledger.singles()

        def send(worker: str, some: Sequence[Slot]) -> bool:
            blocks = blocks_of_slots(ledger.publication, some, most, singles)
            return self._channel.extend(self._token, ledger.publication, blocks, to=worker)

        missing = (slot for slot in slots if not ledger.has_answers(slot[0], slot[1], slot[1] + 1))
        return self._idle.give(missing, BLOCKS_GIVEN * most, send)

    def _check_workers(self, ledger: Ledger) -> None:
        """Who is there, who refuses, who should give way; and the display."""
        workers = self._poller.poll(self._channel, self._answers)
        self._workers = {name: about for name, about in workers.items() if "refuses" not in about}
        self._idle_monitor.update(workers)
        self._lost_worker_check.update(workers, self._channel.outages, self._give_way)
        self.fleet.update(self._workers)
        if len(self._answers) > MAX_WORKERS:  # whoever answers names itself
            self._answers = ledger.answers = Counter(
                {name: count for name, count in self._answers.items() if name in workers}
            )
        ledger.decide()
        for slot in self.audit.review():
            ledger.withdraw(slot)
        if self._maintenance is not None:
            self._give_way = self._maintenance.tick(
                self._channel, self._workers, self._has_results, bool(self.inbox.paused_by)
            )
        done, total = ledger.answer_counts()
        waiting = {"waiting": f"paused by {self.inbox.paused_by}"} if self.inbox.paused_by else {}
        self._show_live(
            {"workers": len(self._workers), "answered": done, "slots": total, **waiting}
        )

    def _progress_fields(self, ledger: Ledger) -> dict[str, str]:
        done, total = ledger.answer_counts()
        moments = {"updated": f"{time.time():.3f}", "answered_at": f"{self._answered_at:.3f}"}
        recoveries = {"recoveries": self.recoveries.to_json()}
        return {
            "workers": str(len(self._workers)),
            "answered": f"{done}/{total}",
            **moments,
            **self.inbox.progress_fields(),
            **recoveries,
            **self.fleet.progress_fields(),
            **self.audit.progress_fields(),
            **self.extra_progress,
        }

    def take_late_count(self) -> int:
        """Answers that came too late since the last call, as living workers count them."""
        fresh = max(0, self._late - self._late_reported)
        self._late_reported = self._late
        return fresh
