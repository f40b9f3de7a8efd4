"""The ledger of one publication: accepts or refuses each result, counts the reason, and tracks
unanswered slots. StreamReader reads the result streams into it, in bulk.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from es_queue.errors import DecodeError
from es_queue.numerics.fingerprint import bytes_digest
from es_queue.numerics.return_statistics import return_statistics
from es_queue.protocol import messages
from es_queue.protocol.channel import MasterChannel, ReconcileRequest, StreamEntry
from es_queue.protocol.messages import Answer, Block, SlotResult
from es_queue.security.sanitize import sanitize
from master.collect.answer_check import AnswerChecker
from master.collect.publication.closed_generation import (
    ClosedGeneration,
    PrefixAccumulator,
    Slots,
    first_returns,
    total_steps,
)
from master.collect.publication.closing import Closing
from master.collect.publication.pending_slots import PendingSlots, Slot
from master.collect.publication.slot_failures import SlotFailures
from master.collect.publication.tally import Tally
from master.collect.recovery_statistics import WORKER_DIED, RecoveryStatistics
from master.fleet.worker_registry import WorkerRegistry

__all__ = ["AnswerChecker", "Ledger", "Slot"]

LOGGER = logging.getLogger("es_queue.collect")


@dataclass(frozen=True)
class LedgerContext:
    """Shared by the ledgers of a run.

    fleet: the joined workers, None if any worker may return results; conflicts: results of each
    worker that differ from another one's
    """

    fleet: WorkerRegistry | None = None
    recoveries: RecoveryStatistics = field(default_factory=RecoveryStatistics)
    conflicts: Counter[str] = field(default_factory=Counter)

    def reporter(self, worker: str) -> str:
        """A worker's identity over all its seats; its id if it is unknown."""
        identity = None if self.fleet is None else self.fleet.identity(worker)
        return worker if identity is None else str(identity)


class Ledger:
    """The truth (rule 1): which slots of the open publication have no accepted result.

    closing: on which results it closes; prefix: the first training slots, accumulated early
    """

    def __init__(
        self,
        publication: str,
        checker: AnswerChecker,
        required: dict[str, int],
        context: LedgerContext | None = None,
        *,
        closing: Closing | None = None,
        prefix: PrefixAccumulator | None = None,
    ) -> None:
        """``required``: how many slots of each kind the publication closes on; ``require`` may
        raise it.
        """
        self.publication, self.checker = publication, checker
        self.context, self.prefix = context or LedgerContext(), prefix
        self.closing = closing or Closing()
        self.results: dict[str, dict[int, SlotResult]] = {kind: {} for kind in messages.KINDS}
        self.failures = SlotFailures(checker)
        self.tally = Tally()
        self.needs_reconcile = False
        self._answered_by: dict[Slot, str] = {}
        self._pending: dict[str, PendingSlots] = {}
        for kind, count in required.items():
            self.require(kind, count)

    @property
    def refused(self) -> Counter[str]:
        """Results that did not count, by reason."""
        return self.tally.refused

    # --- what comes in

    @property
    def largest_answer(self) -> int:
        """Bytes of the largest valid answer to any open publication."""
        older = map(self.closing.checker_of, self.closing.prior_publications)
        return max(checker.largest_bytes for checker in (self.checker, *older) if checker)

    def accept(self, payload: bytes, live: int = 1) -> bool:
        """Take an entry of the results stream. False if nothing in it counted, so that it can be
        deleted.
        """
        try:
            answer = Answer.decode(payload, self.checker.largest_bytes, self.checker.largest_slots)
        except DecodeError:
            self.tally.refuse("undecodable")
            return False
        is_newest = answer.publication == self.publication
        checker = self.checker if is_newest else self.closing.checker_of(answer.publication)
        if checker is None:
            self.tally.refuse("wrong-publication")
            return False
        fleet = self.context.fleet
        if fleet is not None and fleet.has_other_numerics(answer.worker):  # under --strict
            self.tally.refuse("other-numerics", len(answer.results) + len(answer.failures))
            return False
        taken = sum([self._accept_result(answer, checker, sent) for sent in answer.results])
        has_failed = False
        if is_newest and answer.failures:
            has_failed = any(self._record_failures(answer, payload, live))
        elif answer.failures:  # none of an older publication's slots is required
            self.tally.refuse("late-failure", len(answer.failures))
        if taken:
            self.tally.credit(answer)
        return taken > 0 or has_failed

    def _record_failures(self, answer: Answer, payload: bytes, live: int) -> list[bool]:
        mark = bytes_digest(payload)
        if mark in self.failures.marks:
            self.tally.refuse("duplicate", len(answer.failures))
            return []
        counted = [
            self._count_failure((answer.kind, slot), answer.worker, reason, live)
            for slot, reason in answer.failures
        ]
        if any(counted):
            self.failures.marks.add(mark)
        return counted

    def _accept_result(self, answer: Answer, checker: AnswerChecker, result: SlotResult) -> bool:
        slot, is_newest = (answer.kind, result.slot), checker is self.checker
        refusal = checker.refusal(answer.kind, result)
        if not refusal and is_newest:
            refusal = self._compare(slot, answer.worker, result)
        elif not refusal:
            refusal = self.closing.prior_refusal(answer.publication, slot)
            self.tally.add_lost_steps(sum(result.steps) if refusal else 0)
        if refusal:
            self.tally.refuse(refusal)
            return False
        if not is_newest:
            self.closing.settle(slot, result, answer.publication)
            return True
        self.results[answer.kind][result.slot] = result
        self.failures.slots.discard(slot)
        self._settle(slot, result)
        self.context.recoveries.record_answer(slot)
        self._answered_by[slot] = answer.worker
        return True

    def _settle(self, slot: Slot, result: SlotResult | None) -> None:
        kind, number = slot
        if kind in self._pending:
            self._pending[kind].mark_answered(number)
            if kind in self.closing.endless and number >= len(self._pending[kind].slots):
                self.require(kind, number + 1)  # a former master may have issued it
        self.closing.settle(slot, result)

    def _compare(self, slot: Slot, worker: str, result: SlotResult) -> str:
        """Why a result of a settled slot does not count. One with other bits is named once: on
        equal hardware it is a sign of a broken host.
        """
        former = self.results[slot[0]].get(slot[1])
        if former is None:
            is_final = slot[0] in self.closing.endless and slot in self.failures.slots
            return "duplicate" if is_final else ""
        self.tally.add_lost_steps(sum(result.steps))
        if former == result:
            return "duplicate"
        if not self.context.conflicts:
            first, second = format_difference(former, result)
            LOGGER.warning(
                f"two workers returned different results of {self.checker.format_slot(*slot)}: "
                f"{self.answerer(*slot)} {first}, {worker} {second}; the first counts, and more "
                "of these are only counted (refused: conflict): compare the hosts' packages and "
                "test their memory, or find the broken one with --audit"
            )
        self.context.conflicts[worker] += 1
        return "conflict"

    def answerer(self, kind: str, slot: int) -> str:
        """The worker whose result counts for an evaluated slot; empty if there is none."""
        return self._answered_by.get((kind, slot), "")

    def _count_failure(self, slot: Slot, worker: str, reason: str, live: int) -> bool:
        """Count a reported failure (rule 12); False if it does not matter."""
        if self.checker.expected_answer(*slot) is None:
            self.tally.refuse("unknown-slot")
            return False
        if self._is_settled(*slot):  # more reports of it would be remembered without end
            self.tally.refuse("late-failure")
            return False
        reporter = self.context.reporter(worker)
        self.needs_reconcile = self.failures.report(slot, reporter) or self.needs_reconcile
        if self.failures.is_decided(slot, live):
            self.failures.fail(slot, reason)
            if slot[0] == messages.TRAIN and not self.results[messages.TRAIN]:
                self.failures.check_training(self.required.get(messages.TRAIN, 0))
            self._settle(slot, None)
        return True

    def record_death(self, blocks: tuple[Block, ...]) -> None:
        """A worker died while it held these; the first was being worked on."""
        if not blocks:
            return
        self.tally.count_death()
        first, recoveries = blocks[0], self.context.recoveries
        if first.publication != self.publication:
            # a copy was answered, and the generation closed, before it was missed
            recoveries.record_recovery(WORKER_DIED, 0.0)
            return
        missing = (slot for block in blocks for slot in self.missing_slots(block))
        recoveries.start_recovery(WORKER_DIED, missing)
        played = ((first.kind, slot) for slot in range(first.start, first.stop))
        self.failures.record_deaths(
            slot for slot in played if slot[1] not in self.results[first.kind]
        )

    def start_reconcile(self) -> None:
        self.needs_reconcile = False

    def missing_slots(self, block: Block) -> list[Slot]:
        slots = self.required_slots(block.kind)
        stop = min(block.stop, slots[-1] + 1 if slots else 0)
        return [
            (block.kind, slot)
            for slot in range(block.start, stop)
            if not self.has_answers(block.kind, slot, slot + 1)
        ]

    # --- what is owed

    @property
    def required(self) -> dict[str, int]:
        """How many slots of each kind the publication closes on."""
        return {kind: len(pending.slots) for kind, pending in self._pending.items()}

    @property
    def training_slots(self) -> int | None:
        required = self.required.get(messages.TRAIN, 0)
        return required if required and messages.TRAIN not in self.closing.endless else None

    def require(self, kind: str, count: int) -> None:
        self._pending_of(kind).require(count)

    def require_slots(self, kind: str, slots: Sequence[int]) -> bool:
        """The publication closes on these slots of a kind, ascending; False if it did so
        already.
        """
        is_known = kind in self._pending or slots
        return bool(is_known) and self._pending_of(kind).require_slots(slots)

    def _pending_of(self, kind: str) -> PendingSlots:
        if kind not in self._pending:
            self._pending[kind] = PendingSlots(
                partial(self._is_settled, kind),
                lambda: not self.results[kind] and not self.failures.slots,
            )
        return self._pending[kind]

    def _is_settled(self, kind: str, slot: int) -> bool:
        return slot in self.results[kind] or (kind, slot) in self.failures.slots

    def required_slots(self, kind: str) -> Sequence[int]:
        return self._pending[kind].slots if kind in self._pending else ()

    def left(self, kind: str) -> int:
        """Number of required slots of a kind without a final result."""
        return self._pending[kind].unanswered_count

    def unanswered_ranges(self) -> list[tuple[str, int, int]]:
        """(kind, start, stop) of required slots without a result."""
        return [parts for kind, pending in self._pending.items() for parts in pending.ranges(kind)]

    def is_complete(self) -> bool:
        awaited = (kind for kind in self._pending if kind not in self.closing.unawaited)
        return self.closing.is_ready(self.required) and not any(map(self.left, awaited))

    def extend_prefix(self) -> None:
        """Accumulate early."""
        if self.prefix is not None:
            self.prefix.extend(
                self.results[messages.TRAIN], self._pending[messages.TRAIN].first_unanswered()
            )

    def reconcile_request(
        self, block: int, grace: bool, give_way: Sequence[str]
    ) -> ReconcileRequest:
        """What reconcile compares todo and claims with."""
        ranges, suspects = self.unanswered_ranges(), self.failures.suspects()
        return ReconcileRequest(self.publication, ranges, block, suspects, grace, give_way)

    def has_answers(self, kind: str, start: int, stop: int) -> bool:
        """Whether every slot of a range is answered."""
        return all(self._is_settled(kind, slot) for slot in range(start, stop))

    def answer_counts(self) -> tuple[int, int]:
        """(slots answered, slots required)."""
        total = sum(self.required.values())
        return self.closing.answer_counts() or (total - sum(map(self.left, self._pending)), total)

    def results_in_order(self, kind: str) -> list[SlotResult | None]:
        """Results of a kind in slot order; None for a slot that failed everywhere."""
        return list(map(self.results[kind].get, self.required_slots(kind)))


MOST_READ, FIRST_READ = 1000, 4
#: Entries a second that are read again at the most, and how many seconds a flood may keep reconcile
#: waiting.
MOST_REREAD_PER_SECOND, MOST_POSTPONED_TICKS = 5000, 10
MOST_READ_BYTES = 4 * 2**20  # of one reply, as far as its size can be told from the one before


class StreamReader:
    """Reads the streams of the open publications.

    cursors, seen: how far each was read, and which entries; what was seen does not count twice;
    patience: seconds of a flood after which reconcile comes first; answered_at: when an answer
    last counted, on the wall clock; has_results: whether any ever has
    """

    def __init__(self, channel: MasterChannel, patience: float) -> None:
        self._channel, self._patience = channel, patience
        self.cursors: dict[str, str] = {}
        self.seen: dict[str, set[str]] = {}
        self._read_count = FIRST_READ
        self._postponed_ticks = 0
        self._next_reread = 0.0
        self.answered_at = time.time()
        self.has_results = False

    def open(self, publication: str, prior: Iterable[str]) -> None:
        """Read a publication from its beginning, and prior ones from their cursors."""
        names = (*prior, publication)
        self.cursors = {name: self.cursors.get(name, "0") for name in names}
        self.seen = {name: self.seen.get(name, set()) for name in names}
        self._start(publication)

    def _start(self, publication: str) -> None:
        self.cursors[publication], self.seen[publication] = "0", set()

    def restart(self) -> None:
        """The streams are new, and may reuse ids."""
        for publication in self.cursors:
            self._start(publication)

    def rewind(self) -> None:
        """Read all streams from their beginning again (rule 9)."""
        self.cursors = dict.fromkeys(self.cursors, "0")

    def reread(self) -> None:
        """Read from the beginning (rule 9), in case an entry was missed; rarely if there are
        many.
        """
        now = time.monotonic()
        if now >= self._next_reread:
            self.rewind()
            self._next_reread = now + sum(map(len, self.seen.values())) / MOST_REREAD_PER_SECOND

    def mark_answered(self) -> None:
        """Reset the time of the last result: a pause is not a stall."""
        self.answered_at = time.time()

    def drain(self, ledger: Ledger, wait: float, workers: int) -> bool:
        """Read at most a thousand entries, or 32 MiB, so that a flood does not delay other duties.
        Returns whether nothing is left.
        """
        number = size = 0
        if ledger.publication not in self.cursors:
            self._start(ledger.publication)
        while number < MOST_READ and size < 8 * MOST_READ_BYTES:
            limit = self._read_count
            streams = self._channel.collect_each(
                self.cursors, limit, 0.0 if number else wait, ledger.largest_answer
            )
            length = sum(len(entry.payload) for entries in streams.values() for entry in entries)
            count = sum(map(len, streams.values()))
            number, size = number + count, size + length
            for publication, entries in streams.items():
                self._accept_entries(ledger, publication, entries, workers)
            if self._channel.is_cut:  # what was read, its length says nothing of what was asked for
                limit = max(1, count)
            elif all(len(entries) < limit for entries in streams.values()):
                self._read_count = FIRST_READ
                return True
            # Large entries are read one by one: a reply of a thousand of them would fill this
            # process.
            self._read_count = max(
                1, min(MOST_READ, 4 * limit, MOST_READ_BYTES * limit // (length + 1))
            )
        return False

    def drain_fully(self, ledger: Ledger, workers: int) -> bool:
        """Read to the end: unread slots would look as if nobody held them. An endless flood delays
        reconcile only for a while.
        """
        until = time.monotonic() + self._patience
        while not self.drain(ledger, 0.0, workers):
            if time.monotonic() > until:
                self._postponed_ticks += 1
                return self._postponed_ticks > MOST_POSTPONED_TICKS
        self._postponed_ticks = 0
        return True

    def _accept_entries(
        self, ledger: Ledger, publication: str, entries: Sequence[StreamEntry], workers: int
    ) -> None:
        """Delete entries that did not count, so that a flood does not stay (rule 6)."""
        seen = self.seen[publication]
        # The header has no answer; any other entry without one is refused.
        if not seen and not entries[0].payload:
            seen.add(entries[0].id)
        unseen = [entry for entry in entries if entry.id not in seen]
        seen.update(entry.id for entry in unseen)
        refused = [entry.id for entry in unseen if not ledger.accept(entry.payload, workers)]
        self._channel.discard(publication, refused)
        seen.difference_update(refused)  # they are gone: a flood is not remembered either
        self.cursors[publication] = entries[-1].id
        self.has_results = self.has_results or bool(ledger.tally.contributors)
        if len(refused) < len(unseen):
            self.answered_at = time.time()


def format_difference(first: SlotResult | str, second: SlotResult | str) -> tuple[str, str]:
    """Two results of one slot in words, or the reasons of its failures."""
    one, other = map(format_result, (first, second))
    hidden = " (its behaviour or observation statistics differ)" if one == other else ""
    return one, other + hidden


def format_result(result: SlotResult | str) -> str:
    if isinstance(result, str):
        return f"a failure ({sanitize(result, 300)})"
    columns = (result.fitness, result.returns, result.steps)
    fitness, returns, steps = (" and ".join(map(repr, column)) for column in columns)
    return f"fitness {fitness}, return {returns}, {steps} steps"


def close_generation(ledger: Ledger, least: int, min_steps: int) -> ClosedGeneration:
    slots = ledger.results_in_order(messages.TRAIN)
    count = shortest_prefix(slots, least, min_steps) if slots else 0
    evaluation = ledger.results_in_order(messages.EVAL)
    confirmation = ledger.results_in_order(messages.CONFIRM)
    centre = ledger.results_in_order(messages.CENTRE)
    return ClosedGeneration(
        slots[:count],
        slots[count:],
        return_statistics(first_returns(evaluation)),
        return_statistics(first_returns(confirmation)),
        total_steps(evaluation) + total_steps(confirmation),
        centre[0] if centre else None,
        ledger.results_in_order(messages.ELITE),
        centre[1:],
        evaluated=evaluation,
        prefix=ledger.prefix,
    )


def shortest_prefix(slots: Slots, least: int, min_steps: int) -> int:
    """How many slots make the batch: at least ``least``, and enough for ``min_steps`` steps."""
    if not min_steps:
        return min(len(slots), max(1, least))
    steps = 0
    for count, result in enumerate(slots, 1):
        steps += 0 if result is None else sum(result.steps)
        if count >= least and steps >= min_steps:
            return count
    return len(slots)
