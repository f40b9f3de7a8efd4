"""The ledger of one publication: accept or refuse each answer, with a reason that is counted, and
know what is owed.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from es_queue.errors import DecodeError, EnvironmentFailure, StrategyFailure
from es_queue.numerics.fingerprint import bytes_digest
from es_queue.protocol import messages
from es_queue.protocol.channel import ReconcileRequest
from es_queue.protocol.messages import Answer, Block, SlotResult
from es_queue.security.sanitize import sanitize
from master.collect.answer_check import IMPLAUSIBLE, AnswerChecker, without_moments
from master.collect.audit import Audit, Verdict
from master.collect.blocks.block_issue import BlockIssue, WholeGeneration
from master.collect.blocks.block_scheduler import BlockScheduler
from master.collect.pending_slots import PendingSlots as Owing
from master.collect.pending_slots import Ranges, to_ranges
from master.collect.recovery_statistics import WORKER_DIED, RecoveryStatistics
from master.fleet.worker_registry import WorkerIdentity, WorkerRegistry
from master.loop.result_arrays import PrefixAccumulator

__all__ = ["AnswerChecker", "Ledger", "to_ranges"]

UNKNOWN = "unknown-worker"
FAILURES = 3
LONGEST_REASON = 4000  # letters of a failure that are shown
MOST_FAILURES = 10  # of one worker alone, while the others are busy or gone
DEATHS = 10
SUSPECT_DEATHS = 2
LEAVING_NAMED = 100
HELD_AT_DEATH = 4  # blocks of a dead worker that are looked at; honest ones hold one or two

Slot = tuple[str, int]


@dataclass(frozen=True)
class LedgerContext:
    """What the ledgers of one run share.

    fleet: the workers that have joined, None where it does not matter who answers; audit: None
    where no slot is played again; answers: how many answers of each worker counted
    """

    fleet: WorkerRegistry | None = None
    audit: Audit | None = None
    recoveries: RecoveryStatistics = field(default_factory=RecoveryStatistics)
    answers: Counter[str] = field(default_factory=Counter)

    @property
    def is_guarded(self) -> bool:
        """Whether it matters which worker answers."""
        return self.fleet is not None and bool(
            self.audit or self.fleet.strict or self.fleet.quarantined
        )


class Ledger:
    """Truth (rule 1): which slots of the open publication have no accepted answer.

    prior_publications: older publications that are open still; none but in the asynchronous
    schedule
    prefix: what was made of the first training slots so far, where closing is the better for it
    """

    prior_publications: tuple[str, ...] = ()

    def __init__(
        self,
        publication: str,
        checker: AnswerChecker,
        required: dict[str, int],
        context: LedgerContext | None = None,
        *,
        prefix: PrefixAccumulator | None = None,
        opened_at: float = -math.inf,
    ) -> None:
        """``required``: how many slots of each kind the publication closes on; ``require`` may
        raise it. ``opened_at``: on the master's monotonic clock; no answer took longer than since.
        """
        self.context, self.prefix, self._opened_at = context or LedgerContext(), prefix, opened_at
        self.publication = publication
        self.checker = checker
        self.results: dict[str, dict[int, SlotResult]] = {kind: {} for kind in messages.KINDS}
        self.failed_slots: set[Slot] = set()
        self.required: dict[str, int] = {}
        self._pending: dict[str, Owing] = {}
        for kind, count in required.items():
            self.require(kind, count)
        self.refused: Counter[str] = Counter()
        self.reissued = 0
        self.recovered = 0
        self.lost_steps = 0
        self.last_reason = ""
        self.implausible = ""  # who last sent moments that were left out
        self.contributors: set[str] = set()
        self.needs_reconcile = False
        self.unverified: set[str] = (
            set()
        )  # kinds that decide nothing, because the master could not verify them
        self._answered_by: dict[Slot, str] = {}
        self._failures: dict[Slot, Counter[str]] = {}
        self._failure_reports: set[str] = set()
        self._deaths: Counter[Slot] = Counter()
        self._seconds: dict[str, tuple[float, int]] = {}

    # --- what comes in

    @property
    def largest_answer(self) -> int:
        """Bytes of the largest honest answer to any open publication."""
        return self.checker.largest_bytes

    def accept(self, payload: bytes, live: int = 1) -> bool:
        """Take an entry of the results stream; False when nothing in it counted (the
        entry can go).
        """
        try:
            answer = Answer.decode(payload, self.checker.largest_bytes, self.checker.largest_slots)
        except DecodeError:
            self.refused["undecodable"] += 1
            return False
        if answer.publication != self.publication:
            return self._accept_other_publication(answer)
        if self._is_refused_worker(answer):
            return False
        taken = [self._accept_result(answer, result) for result in answer.results]
        counted = self._record_failures(answer, payload, live) if answer.failures else []
        self._credit(answer, any(taken))
        if answer.kind not in messages.TRAINED:
            self._answered_by.update(
                {
                    (answer.kind, result.slot): answer.worker
                    for result, counts in zip(answer.results, taken, strict=True)
                    if counts
                }
            )
        return any(taken) or any(counted)

    def _accept_other_publication(self, answer: Answer) -> bool:
        """An answer of another publication."""
        self.refused["wrong-publication"] += 1
        return False

    def _is_refused_worker(self, answer: Answer) -> bool:
        """Whether nothing of it counts because of its worker. A worker beats before its first
        claim, so an honest one is enrolled.
        """
        fleet = self.context.fleet
        if fleet is None:
            return False
        refusal = (
            fleet.refusal(answer.worker)
            if self.context.is_guarded
            else ""
            if fleet.has_joined(answer.worker)
            else UNKNOWN
        )
        if refusal:
            self.refused[refusal] += max(1, len(answer.results) + len(answer.failures))
        return bool(refusal)

    def _credit(self, answer: Answer, taken: bool) -> None:
        """Who worked, and how long, where something counted."""
        if taken:
            self.contributors.add(answer.worker)
            self.context.answers[answer.worker] += 1
            seconds, slots = self._seconds.get(answer.kind, (0.0, 0))
            longest = time.monotonic() - self._opened_at  # a worker may say anything
            self._seconds[answer.kind] = (
                seconds + min(answer.seconds, longest),
                slots + len(answer.results),
            )

    def _record_failures(self, answer: Answer, payload: bytes, live: int) -> list[bool]:
        """Failures, each once: an answer may be sent twice, and the stream be read twice. Only what
        counted is remembered.
        """
        mark = bytes_digest(payload)
        if mark in self._failure_reports:
            self.refused["duplicate"] += len(answer.failures)
            return []
        counted = [
            self._count_failure((answer.kind, slot), answer.worker, reason, live)
            for slot, reason in answer.failures
        ]
        if any(counted):
            self._failure_reports.add(mark)
        return counted

    def _accept_result(self, answer: Answer, result: SlotResult) -> bool:
        sent = result
        refusal, result = self._check_result(self.checker, answer, sent)
        former = self.results[answer.kind].get(result.slot)
        if not refusal and former is not None:
            is_audited = (
                self.context.audit is not None
                and (answer.kind, result.slot) in self.context.audit.questions
            )
            refusal = "conflict" if former != result else "audit" if is_audited else "duplicate"
            self.lost_steps += 0 if is_audited else sum(result.steps)
            self._compare((answer.kind, result.slot), answer.worker, result, former)
        if refusal:
            self.refused[refusal] += 1
            return False
        self._note_left_out(answer, sent, result)
        self.results[answer.kind][result.slot] = result
        self.failed_slots.discard((answer.kind, result.slot))
        if answer.kind in self._pending:
            self._pending[answer.kind].mark_answered(result.slot)
        self.context.recoveries.record_answer((answer.kind, result.slot))
        if self.context.audit is not None:
            self._answered_by[(answer.kind, result.slot)] = answer.worker
            self.context.audit.sample_slot((answer.kind, result.slot), answer.worker, result)
            self.needs_reconcile = (
                self.needs_reconcile or (answer.kind, result.slot) in self.context.audit.questions
            )
        return True

    def _check_result(
        self, expectations: AnswerChecker, answer: Answer, result: SlotResult
    ) -> tuple[str, SlotResult]:
        """Why a result is refused, empty where it is not; and what counts of it.

        Implausible moments are left out of every answer alike. A slot that would be owed again
        for them would be owed forever if its environment were that odd.
        """
        refusal = expectations.refusal(answer.kind, result)
        return ("", without_moments(result)) if refusal == IMPLAUSIBLE else (refusal, result)

    def _note_left_out(self, answer: Answer, sent: SlotResult, counted: SlotResult) -> None:
        """Count a result that is taken without its moments."""
        if counted is not sent:
            self.refused[IMPLAUSIBLE] += 1
            self.implausible = answer.worker

    def _compare(self, slot: Slot, worker: str, result: SlotResult, former: SlotResult) -> None:
        """A slot that has a result was played again. The second result is an opinion only where the
        audit asked for it.
        """
        if self.context.audit is None or slot not in self.context.audit.questions:
            return
        verdict = self.context.audit.add_result(slot, worker, result)
        self.needs_reconcile = self.needs_reconcile or slot in self.context.audit.questions
        if verdict is not None and verdict.wrong:
            self._apply_verdict(verdict, self.context.audit)

    def decide(self) -> None:
        """Take up what the master's own episodes have proven."""
        if self.context.audit is not None:
            for verdict in self.context.audit.poll_verdicts(self.checker.counted_result):
                self._apply_verdict(verdict, self.context.audit)

    def _apply_verdict(self, verdict: Verdict, audit: Audit) -> None:
        """The right result stands; of a worker that gave another nothing counts but what somebody
        confirmed.
        """
        self.refute(verdict.slot, verdict.result, verdict.author)
        for wrong in sorted(verdict.wrong - audit.fleet.quarantined):
            withdrawn = [
                slot
                for slot, worker in self._answered_by.items()
                if slot != verdict.slot
                and self._has_identity(worker, wrong, audit)
                and wrong not in audit.confirmed.get(slot, ())
            ]
            named = self.checker.format_slot(*verdict.slot)
            if not audit.exclude(wrong, verdict, named, len(withdrawn)):
                continue
            for slot in withdrawn:
                self.withdraw(slot)
            self._withdraw_failures(wrong)
            audit.remove_opinions(wrong)
        self.needs_reconcile = True

    def _has_identity(self, worker: str, identity: WorkerIdentity, audit: Audit) -> bool:
        member = audit.fleet.registered_worker(worker) if worker else None
        return member is not None and member.identity == identity

    def refute(self, slot: Slot, result: SlotResult, author: str = "") -> None:
        """Another result counts than the one that was taken. author: the worker that gave it, empty
        for the master.
        """
        if self.results[slot[0]].get(slot[1]) != result:
            self.refused["refuted"] += 1
        self.results[slot[0]][slot[1]] = result
        self._answered_by[slot] = author
        self._refresh(slot)

    def answerer(self, kind: str, slot: int) -> str:
        """The worker whose result counts for an evaluated slot; empty for nobody."""
        return self._answered_by.get((kind, slot), "")

    def withdraw(self, slot: Slot) -> None:
        """As if nobody had answered it."""
        self.results[slot[0]].pop(slot[1], None)
        self._answered_by.pop(slot, None)
        self._refresh(slot)
        if self.context.audit is not None:
            self.context.audit.questions.pop(slot, None)

    def _withdraw_failures(self, wrong: WorkerIdentity) -> None:
        """What it reported as failed may not have failed."""
        for slot, reports in self._failures.items():
            reports.pop(str(wrong), None)
            if reports.total() < FAILURES:
                self.failed_slots.discard(slot)
                self._refresh(slot)

    def _count_failure(self, slot: Slot, worker: str, reason: str, live: int) -> bool:
        """A reported failure (rule 12); False when it is of no account. The third, by two workers
        where there are two, decides; in any case the tenth.
        """
        if self.checker.expected_answer(*slot) is None:
            self.refused["unknown-slot"] += 1
            return False
        if slot[1] in self.results[slot[0]]:
            self.refused["late-failure"] += 1
            if self.context.audit is not None:
                self.context.audit.mark_inconclusive(slot)
            return False
        if slot in self.failed_slots:  # more reports of it would be remembered without end
            self.refused["late-failure"] += 1
            return False
        reporter = self._identity_of(worker)
        if not reporter:
            self.refused[UNKNOWN] += 1
            return False
        reports = self._failures.setdefault(slot, Counter())
        reports[reporter] += 1
        # At once, but not for ever: a worker that fails here again and again waits for the next
        # second, and for another worker.
        self.needs_reconcile = self.needs_reconcile or reports[reporter] <= FAILURES
        if reports.total() >= FAILURES and (
            live < 2 or len(reports) >= 2 or reports.total() >= MOST_FAILURES
        ):
            self._fail_slot(slot, reports.total(), reason)
        return True

    def _identity_of(self, worker: str) -> str:
        """Who a worker is over all its seats, by whatever id it reports; empty for one that nobody
        has heard of.
        """
        if self.context.fleet is None:
            return worker
        identity = self.context.fleet.identity(worker)
        return "" if identity is None else str(identity)

    def _fail_slot(self, slot: Slot, times: int, reason: str) -> None:
        """What is a pure function of the slot counts as the worst; anything else stops the run."""
        named, reason = self.checker.format_slot(*slot), sanitize(reason, LONGEST_REASON)
        if reason.startswith(messages.HOST_FAILURE):
            raise EnvironmentFailure(
                f"{named} failed {times} times for want of something on the hosts: "
                f"{reason.removeprefix(messages.HOST_FAILURE)}"
            )
        if reason.startswith(messages.STRATEGY_FAILURE):
            raise StrategyFailure(reason.removeprefix(messages.STRATEGY_FAILURE))
        if slot[0] not in messages.TRAINED:
            raise EnvironmentFailure(
                f"{named} failed {times} times, and an evaluation has no worst: {reason}"
            )
        self.failed_slots.add(slot)
        self._refresh(slot)
        self.last_reason = f"{named}: {reason}"
        failed = sum(kind == messages.TRAIN for kind, _ in self.failed_slots)
        if (
            slot[0] == messages.TRAIN
            and failed >= self.required.get(messages.TRAIN, 0)
            and not self.results[messages.TRAIN]
        ):
            raise EnvironmentFailure(
                f"every episode of a generation failed{self.checker.advice}; the last was "
                f"{self.last_reason}"
            )

    def record_death(self, blocks: tuple[Block, ...]) -> None:
        """A worker died while it held these; the first was being worked on."""
        if not blocks:
            return
        self.recovered += 1
        if (
            blocks[0].publication != self.publication
        ):  # a copy was answered, and the generation closed, before it was missed
            self.context.recoveries.record_recovery(WORKER_DIED, 0.0)
            return
        self.context.recoveries.start_recovery(
            WORKER_DIED,
            (slot for block in blocks[:HELD_AT_DEATH] for slot in self.missing_slots(block)),
        )
        for slot in range(blocks[0].start, blocks[0].stop):
            if slot not in self.results[blocks[0].kind]:
                self._deaths[(blocks[0].kind, slot)] += 1
                if self._deaths[(blocks[0].kind, slot)] >= DEATHS:
                    raise EnvironmentFailure(
                        f"{DEATHS} workers died while they played "
                        f"{self.checker.format_slot(blocks[0].kind, slot)}: it may end or block "
                        "its process, "
                        "or need more memory than the hosts have; the workers' terminals say how "
                        "they ended"
                    )

    def count_reissued(self, slots: int) -> None:
        """So many slots were issued again."""
        self.reissued += slots

    def start_reconcile(self) -> None:
        """What made a reconcile necessary is looked at now."""
        self.needs_reconcile = False

    def missing_slots(self, block: Block) -> list[Slot]:
        """The slots of a block that are wanted and have no answer."""
        slots = self._required_slots(block.kind)
        stop = min(block.stop, slots[-1] + 1 if slots else 0)
        return [
            (block.kind, slot)
            for slot in range(block.start, stop)
            if not self.has_answers(block.kind, slot, slot + 1)
        ]

    def restore_deaths(self, deaths: dict[Slot, int]) -> None:
        """What Redis has counted of this publication: under a former master, or in a reply that was
        lost.
        """
        for slot, count in deaths.items():
            self._deaths[slot] = max(self._deaths[slot], count)

    # --- what is owed

    def require(self, kind: str, count: int) -> None:
        """The publication closes on ``count`` slots of a kind."""
        self.required[kind] = count
        self._pending_of(kind).require(count)

    def require_slots(self, kind: str, slots: Sequence[int]) -> bool:
        """The publication closes on these slots of a kind, ascending; False where it did so
        already.
        """
        if not (kind in self._pending or slots) or not self._pending_of(kind).require_slots(slots):
            return False
        self.required[kind] = len(slots)
        return True

    def _pending_of(self, kind: str) -> Owing:
        if kind not in self._pending:
            self._pending[kind] = Owing(
                partial(self._is_settled, kind),
                lambda: not self.results[kind] and not self.failed_slots,
            )
        return self._pending[kind]

    def _is_settled(self, kind: str, slot: int) -> bool:
        return slot in self.results[kind] or (kind, slot) in self.failed_slots

    def _refresh(self, slot: Slot) -> None:
        if slot[0] in self._pending:
            self._pending[slot[0]].refresh(slot[1])

    def _required_slots(self, kind: str) -> Sequence[int]:
        return self._pending[kind].slots if kind in self._pending else ()

    def _audited_slots(self, kind: str) -> set[int]:
        """Wanted slots that are answered, but played again for the audit."""
        audited, pending = (
            self.context.audit.questions if self.context.audit is not None else {},
            self._pending[kind],
        )
        return (
            {
                slot
                for audited_kind, slot in audited
                if audited_kind == kind and slot in pending.slots and slot not in pending
            }
            if audited
            else set()
        )

    def left(self, kind: str) -> int:
        """How many slots of a kind are wanted and have no answer that stands."""
        return self._pending[kind].unanswered_count + len(self._audited_slots(kind))

    def unanswered_ranges(self) -> list[tuple[str, int, int]]:
        """(kind, start, stop) of wanted slots without an answer."""
        return [slot_range for kind in self.required for slot_range in self._missing_ranges(kind)]

    def _missing_ranges(self, kind: str) -> Ranges:
        questions = {
            slot
            for slot in self._audited_slots(kind)
            if self.context.audit is None
            or self.context.audit.questions[(kind, slot)].proof is None
        }
        return (
            to_ranges(sorted({*self._pending[kind].iterate_unanswered(), *questions}), kind)
            if questions
            else self._pending[kind].ranges(kind)
        )

    def is_complete(self) -> bool:
        return not any(map(self.left, self.required))

    def extend_prefix(self) -> None:
        """Do of closing what can be done before the last answer is there. With an audit a result
        may be replaced, so nothing.
        """
        if self.prefix is not None and self.context.audit is None:
            self.prefix.extend(
                self.results[messages.TRAIN], self._pending[messages.TRAIN].first_unanswered()
            )

    def singles(self) -> frozenset[Slot]:
        """Slots that are issued singly (rule 12)."""
        return frozenset(
            {slot for slot, count in self._deaths.items() if count >= SUSPECT_DEATHS}
            | set(self._failures)
        )

    def block_issue(self, scheduler: BlockScheduler) -> BlockIssue:
        """In which blocks the slots are issued."""
        return WholeGeneration(self, scheduler)

    def update_held(self, held: set[str]) -> None:
        """``held``: publications of which living workers have blocks."""

    def reconcile_request(
        self, block: int, grace: bool, give_way: Sequence[str], dismissed: Sequence[str] = ()
    ) -> ReconcileRequest:
        """What reconcile measures todo and claims against. Every worker reads who is to leave, so
        of those dismissed a few are named.
        """
        leaving = [*give_way, *dismissed[:LEAVING_NAMED]]
        return ReconcileRequest(
            self.publication,
            self.unanswered_ranges(),
            block,
            self.singles(),
            grace,
            leaving,
            dismissed,
        )

    def has_answers(self, kind: str, start: int, stop: int) -> bool:
        """Whether every slot of a range is answered, and none of them in question."""
        if self.context.audit is not None and any(
            (kind, slot) in self.context.audit.questions for slot in range(start, stop)
        ):
            return False
        return all(self._is_settled(kind, slot) for slot in range(start, stop))

    def seconds_per_slot(self, kind: str) -> float | None:
        """Mean wall seconds that a worker needed for a slot of this kind, None before the first
        answer.
        """
        seconds, slots = self._seconds.get(kind, (0.0, 0))
        return seconds / slots if slots else None

    def answer_counts(self) -> tuple[int, int]:
        """(slots answered, slots wanted)."""
        total = sum(self.required.values())
        return total - sum(map(self.left, self.required)), total

    def verified_results(self, kind: str) -> list[SlotResult | None]:
        """``results_in_order``, or nothing where the master could not verify what was returned."""
        return [] if kind in self.unverified else self.results_in_order(kind)

    def results_in_order(self, kind: str) -> list[SlotResult | None]:
        """Results of a kind in slot order; None for a slot that failed everywhere."""
        return list(map(self.results[kind].get, self._required_slots(kind)))
