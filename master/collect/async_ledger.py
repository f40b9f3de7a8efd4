"""The ledger of the asynchronous schedule: answers of every open publication, in the order in which
they came.

A batch is the first of them that are as many as a population. What it leaves is first in the next
one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from es_queue.protocol import messages
from es_queue.protocol.messages import Answer, SlotResult, publication_generation
from master.collect.blocks.block_issue import BlockIssue, EndlessBatch
from master.collect.blocks.block_scheduler import BlockScheduler
from master.collect.ledger import AnswerChecker, Ledger, LedgerContext, to_ranges
from master.loop.learner import PublicationSlice
from master.loop.state import Floats, OpenPublication

#: While an evaluation is waited for, training goes on, but for no more than so many batches.
MOST_BATCHES_AHEAD = 2


class UnusedResult(NamedTuple):
    """An answered training slot that no batch has used yet. result: None where it failed
    everywhere.
    """

    publication: str
    slot: int
    result: SlotResult | None


@dataclass
class PriorPublication:
    """A replaced publication that is open still. answered: its training slots that count, used or
    fresh.

    reevaluated: its answered slots of kind elite; is_held: whether a living worker was last seen
    with a block of it, or may have one
    """

    publication: str
    checker: AnswerChecker
    step_limit: int
    spread: Floats
    answered: set[int] = field(default_factory=set)
    reevaluated: set[int] = field(default_factory=set)
    is_held: bool = True

    def update_held(self, held: set[str]) -> None:
        """``held``: publications of which living workers have blocks."""
        self.is_held = self.publication in held


class BatchSize(NamedTuple):
    """fewest: training slots that close a batch, besides the evaluation; most: it has no more"""

    fewest: int
    most: int


class CarriedOver(NamedTuple):
    """What earlier generations leave: older publications that are open still, and results that no
    batch has used.
    """

    older: Sequence[PriorPublication] = ()
    unused: Sequence[UnusedResult] = ()


class AsyncLedger(Ledger):
    """Which slots of the newest publication are owed, and what counts of older ones."""

    def __init__(
        self,
        newest: PriorPublication,
        required: dict[str, int],
        size: BatchSize,
        carried: CarriedOver | None = None,
        context: LedgerContext | None = None,
        opened_at: float = -math.inf,
    ) -> None:
        super().__init__(newest.publication, newest.checker, required, context, opened_at=opened_at)
        older, unused = carried or CarriedOver()
        self.batch, self.most = size
        self.reevaluated: list[UnusedResult] = []
        self.older = {prior.publication: prior for prior in older}
        self.unused = list(unused)
        self.prior_publications = tuple(self.older)
        self._newest = newest

    # --- what comes in

    @property
    def largest_answer(self) -> int:
        older = [publication.checker.largest_bytes for publication in self.older.values()]
        return max([self.checker.largest_bytes, *older])

    def _accept_result(self, answer: Answer, result: SlotResult) -> bool:
        if answer.kind == messages.ELITE:
            return super()._accept_result(answer, result) and self._add_reevaluation(
                self._newest, result.slot, result
            )
        if answer.kind != messages.TRAIN:
            return super()._accept_result(answer, result)
        if (answer.kind, result.slot) in self.failed_slots:  # it counts as failed already
            self.refused["duplicate"] += 1
            return False
        return super()._accept_result(answer, result) and self._add_training(
            self._newest, result.slot, self.results[answer.kind][result.slot]
        )

    def _add_training(
        self, publication: PriorPublication, slot: int, result: SlotResult | None
    ) -> bool:
        publication.answered.add(slot)
        if publication is self._newest:  # a former master may have issued it
            self.require(messages.TRAIN, max(self.required[messages.TRAIN], slot + 1))
        self.unused.append(UnusedResult(publication.publication, slot, result))
        return True

    def _add_reevaluation(
        self, publication: PriorPublication, slot: int, result: SlotResult | None
    ) -> bool:
        publication.reevaluated.add(slot)
        self.reevaluated.append(UnusedResult(publication.publication, slot, result))
        return True

    def _fail_slot(self, slot: tuple[str, int], times: int, reason: str) -> None:
        known = slot in self.failed_slots
        super()._fail_slot(slot, times, reason)
        if slot[0] == messages.TRAIN and not known:
            self._add_training(self._newest, slot[1], None)
        if slot[0] == messages.ELITE and not known:
            self._add_reevaluation(self._newest, slot[1], None)

    def _accept_other_publication(self, answer: Answer) -> bool:
        """Training slots and elites of an older publication count as long as it is open; nothing
        else of it does, and nothing of it is owed.
        """
        publication = self.older.get(answer.publication)
        if publication is None:
            return super()._accept_other_publication(answer)
        if self._is_refused_worker(answer):
            return False
        self.refused.update(["late-failure"] * len(answer.failures))
        taken = [
            self._accept_older_result(publication, answer, result) for result in answer.results
        ]
        self._credit(answer, any(taken))
        return any(taken)

    def _accept_older_result(
        self, publication: PriorPublication, answer: Answer, result: SlotResult
    ) -> bool:
        kind = answer.kind
        known = {messages.TRAIN: publication.answered, messages.ELITE: publication.reevaluated}.get(
            kind
        )
        refusal, counted = self._check_result(publication.checker, answer, result)
        refusal = refusal or (
            "stale" if known is None else "duplicate" if result.slot in known else ""
        )
        if refusal:
            self.refused[refusal] += 1
            self.lost_steps += sum(result.steps) if refusal in ("stale", "duplicate") else 0
            return False
        self._note_left_out(answer, result, counted)
        return (
            self._add_training(publication, result.slot, counted)
            if kind == messages.TRAIN
            else self._add_reevaluation(publication, result.slot, counted)
        )

    # --- what is owed

    def is_complete(self) -> bool:
        """A batch is there, and the evaluation that the newest publication closes on. Neither
        centre nor elites are waited for.

        But elites have to be claimed, for nobody claims a block of an older publication: theirs
        stand before the training blocks.
        """
        whole = (
            kind
            for kind in self.required
            if kind not in (messages.TRAIN, messages.CENTRE, messages.ELITE)
        )
        claimed = bool(self._newest.answered) or not self.required.get(messages.ELITE)
        return len(self.unused) >= self.batch and claimed and not any(map(self.left, whole))

    def answer_counts(self) -> tuple[int, int]:
        """(slots of the batch that are there, slots of a batch)."""
        return min(len(self.unused), self.batch), self.batch

    def slots_to_issue(self, least: int) -> int:
        """How many more training slots to issue, that ``least`` and half as many again are owed
        when fewer are.
        """
        if len(self.unused) >= MOST_BATCHES_AHEAD * self.most or messages.CONFIRM in self.required:
            return 0
        issued, most = self.required[messages.TRAIN], self.checker.slot_limits[messages.TRAIN]
        pending = issued - len(self._newest.answered)
        return max(0, min(most - issued, least + least // 2 - pending)) if pending < least else 0

    def block_issue(self, scheduler: BlockScheduler) -> BlockIssue:
        return EndlessBatch(self, scheduler)

    def update_held(self, held: set[str]) -> None:
        for publication in self.older.values():
            publication.update_held(held)

    # --- closing

    def take_batch(self) -> tuple[list[SlotResult | None], list[PublicationSlice]]:
        """The batch, by publication and slot, and whose slots they are; the fresh ones are fewer by
        it.
        """
        batch, self.unused = (
            sorted(self.unused[: self.most], key=result_order),
            self.unused[self.most :],
        )
        spreads = {
            prior.publication: prior.spread for prior in (*self.older.values(), self._newest)
        }
        names = list(dict.fromkeys(result.publication for result in batch))
        slots = {
            name: np.array(
                [result.slot for result in batch if result.publication == name], np.int64
            )
            for name in names
        }
        return [result.result for result in batch], [
            PublicationSlice(name, slots[name], spreads[name]) for name in names
        ]

    def take_reevaluated(
        self,
    ) -> tuple[list[SlotResult | None], list[tuple[str, NDArray[np.int64]]]]:
        """The elites that were answered since the last batch, by publication and slot, and whose
        slots they are.
        """
        results, self.reevaluated = sorted(self.reevaluated, key=result_order), []
        names = dict.fromkeys(result.publication for result in results)
        return [result.result for result in results], [
            (
                name,
                np.array(
                    [result.slot for result in results if result.publication == name], np.int64
                ),
            )
            for name in names
        ]

    def take_still_open(self, generation: int, max_lag: int) -> list[PriorPublication]:
        """What stays open when ``generation`` is published; the fresh slots of what closes go,
        counted as stale.
        """
        waiting = {result.publication for result in self.unused}
        kept = [
            prior
            for prior in (*self.older.values(), self._newest)
            if generation - publication_generation(prior.publication) <= max_lag
            and (prior.is_held or prior.publication in waiting)
        ]
        names = {prior.publication for prior in kept}
        stale = [result for result in self.unused if result.publication not in names]
        self.refused.update(["stale"] * len(stale))
        self.lost_steps += sum(
            sum(result.result.steps) for result in stale if result.result is not None
        )
        self.unused = [result for result in self.unused if result.publication in names]
        return kept

    def to_open_publication(self, publication: PriorPublication) -> OpenPublication:
        """What a checkpoint says of a publication: fresh slots are read from its stream again."""
        unused_slots = {
            result.slot for result in self.unused if result.publication == publication.publication
        }
        counted = [
            (start, stop)
            for _, start, stop in to_ranges(
                iter(sorted(publication.answered - unused_slots)), messages.TRAIN
            )
        ]
        return OpenPublication(
            publication.publication,
            publication.step_limit,
            publication.spread,
            np.array(counted, np.int64).reshape(-1, 2),
        )


def result_order(result: UnusedResult) -> tuple[int, str, int]:
    return publication_generation(result.publication), result.publication, result.slot


def slots_of_ranges(counted: NDArray[np.int64]) -> set[int]:
    """The slots of ranges."""
    return {slot for start, stop in counted.tolist() for slot in range(start, stop)}
