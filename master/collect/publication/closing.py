"""When a publication closes, and in which blocks its slots are issued.

A batch of the asynchronous schedule is the first population's worth of results of every open
publication, in order of arrival. The rest come first in the next batch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from es_queue.numerics.arrays import Floats, Integers
from es_queue.protocol import messages
from es_queue.protocol.messages import Block, SlotResult, publication_generation
from master.collect.answer_check import AnswerChecker
from master.collect.blocks.block_scheduler import (
    BlockScheduler,
    SlotRanges,
    iterate_equal_blocks,
)
from master.collect.publication.closed_generation import OpenPublication, PublicationSlice
from master.collect.publication.pending_slots import Slot, to_ranges
from master.collect.publication.tally import Tally


class UnansweredSlots(Protocol):
    """A ledger's view of its unanswered slots."""

    publication: str

    @property
    def required(self) -> dict[str, int]: ...

    def unanswered_ranges(self) -> list[tuple[str, int, int]]: ...

    def require(self, kind: str, count: int) -> None: ...


class Closing:
    """Closes a publication when each slot has a result; ``AsyncBatch`` closes on a batch.

    unawaited: kinds of slots that it does not wait for; endless: kinds whose settled slots count at
    once, permanently
    """

    unawaited: Collection[str] = ()
    endless: Collection[str] = ()

    @property
    def prior_publications(self) -> tuple[str, ...]:
        return ()

    def checker_of(self, publication: str) -> AnswerChecker | None:
        """The checker of an older publication; None if it is closed."""
        return None

    def prior_refusal(self, publication: str, slot: Slot) -> str:
        """Why a result of an older publication does not count; empty if it does."""
        return "stale"

    def settle(self, slot: Slot, result: SlotResult | None, publication: str = "") -> None:
        """Note a slot's result, None if it failed everywhere; by default of the newest
        publication.
        """

    def is_ready(self, required: Mapping[str, int]) -> bool:
        """Whether enough of the unawaited slots have results."""
        return True

    def answer_counts(self) -> tuple[int, int] | None:
        """(slots answered, slots required), if they differ from the publication's."""
        return None

    def update_held(self, held: set[str]) -> None:
        """``held``: publications of which living workers have blocks."""

    # --- blocks, for so many ``workers``

    def blocks(
        self, slots: UnansweredSlots, scheduler: BlockScheduler, workers: int
    ) -> Iterable[Block]:
        """Blocks of all unanswered slots when they are published; sizes shrink towards the end."""
        return scheduler.iterate_blocks(slots.publication, slots.unanswered_ranges(), workers)

    def more_blocks(
        self, slots: UnansweredSlots, scheduler: BlockScheduler, workers: int
    ) -> Iterable[Block]:
        return self.blocks(slots, scheduler, workers)

    def refill(
        self, slots: UnansweredSlots, scheduler: BlockScheduler, workers: int
    ) -> Sequence[Block]:
        """Blocks of new slots, in place of answered ones."""
        return ()

    def reissue_size(self, slots: UnansweredSlots, scheduler: BlockScheduler, workers: int) -> int:
        """Slots of a reissued block, of any kind; a slot of some kinds has many episodes."""
        owed = {kind for kind, _, _ in slots.unanswered_ranges()} or {messages.TRAIN}
        return min(
            scheduler.reissue_size(kind, slots.required.get(kind, 1), workers) for kind in owed
        )


#: Training continues while an evaluation is pending, for at most this many batches.
MOST_BATCHES_AHEAD = 2
#: Blocks for each living worker: the one that it plays and one that waits; half as many again are
#: issued when there are fewer. What waits when parameters change is not played, so it makes no
#: answer late; more would, where the master is slow.
BLOCKS_PER_WORKER = 2


class UnusedResult(NamedTuple):
    """An answered slot that no batch has used yet. result: None if it failed everywhere."""

    publication: str
    slot: int
    result: SlotResult | None


@dataclass
class PriorPublication:
    """A publication of an asynchronous run, replaced or still the newest.

    answered: its training slots that count, used or not; reevaluated: its answered elite slots;
    is_held: whether a living worker has, or may have, a block of it
    """

    publication: str
    checker: AnswerChecker
    step_limit: int
    spread: Floats
    answered: set[int] = field(default_factory=set)
    reevaluated: set[int] = field(default_factory=set)
    is_held: bool = True

    def update_held(self, held: set[str]) -> None:
        self.is_held = self.publication in held


class BatchSize(NamedTuple):
    """fewest: training slots that close a batch, in addition to the evaluation; most: its largest
    number of slots
    """

    fewest: int
    most: int


class CarriedOver(NamedTuple):
    """From earlier generations: older publications that are still open, and unused results."""

    older: Sequence[PriorPublication] = ()
    unused: Sequence[UnusedResult] = ()


class AsyncBatch(Closing):
    """The batch: which results of the newest and of older publications count, and when it
    closes.
    """

    #: Neither the centre nor elites are waited for.
    unawaited: Collection[str] = (messages.TRAIN, messages.CENTRE, messages.ELITE)
    endless: Collection[str] = (messages.TRAIN,)

    def __init__(
        self, newest: PriorPublication, size: BatchSize, carried: CarriedOver | None = None
    ) -> None:
        older, unused = carried or CarriedOver()
        self.size, self.unused = size, list(unused)
        self._newest, self._reevaluated = newest, list[UnusedResult]()
        self._older = {prior.publication: prior for prior in older}

    @property
    def prior_publications(self) -> tuple[str, ...]:
        return tuple(self._older)

    @property
    def _open(self) -> list[PriorPublication]:
        return [*self._older.values(), self._newest]

    # --- what comes in

    def checker_of(self, publication: str) -> AnswerChecker | None:
        prior = self._older.get(publication)
        return None if prior is None else prior.checker

    def prior_refusal(self, publication: str, slot: Slot) -> str:
        """Training slots and elites of an older publication count, each once."""
        prior, (kind, number) = self._older[publication], slot
        known = {messages.TRAIN: prior.answered, messages.ELITE: prior.reevaluated}.get(kind)
        return "stale" if known is None else "duplicate" if number in known else ""

    def settle(self, slot: Slot, result: SlotResult | None, publication: str = "") -> None:
        prior, (kind, number) = self._older.get(publication, self._newest), slot
        counted = UnusedResult(prior.publication, number, result)
        if kind == messages.TRAIN:
            prior.answered.add(number)
            self.unused.append(counted)
        elif kind == messages.ELITE:
            prior.reevaluated.add(number)
            self._reevaluated.append(counted)

    # --- what is owed

    def is_ready(self, required: Mapping[str, int]) -> bool:
        """Whether the batch is complete. Elites must be claimed first, because nobody claims a
        block of an older publication; their blocks precede training.
        """
        claimed = bool(self._newest.answered) or not required.get(messages.ELITE)
        return len(self.unused) >= self.size.fewest and claimed

    def answer_counts(self) -> tuple[int, int]:
        return min(len(self.unused), self.size.fewest), self.size.fewest

    def slots_to_issue(self, least: int, required: Mapping[str, int]) -> int:
        """How many more training slots to issue: if fewer than ``least`` are unanswered, enough for
        one and a half times ``least``.
        """
        if len(self.unused) >= MOST_BATCHES_AHEAD * self.size.most or messages.CONFIRM in required:
            return 0
        issued = required[messages.TRAIN]
        most = self._newest.checker.slot_limits[messages.TRAIN]
        pending = issued - len(self._newest.answered)
        return max(0, min(most - issued, least + least // 2 - pending)) if pending < least else 0

    def update_held(self, held: set[str]) -> None:
        for prior in self._older.values():
            prior.update_held(held)

    # --- blocks: those of training are all alike, for there is no end towards which they would
    # shrink

    def blocks(
        self, slots: UnansweredSlots, scheduler: BlockScheduler, workers: int
    ) -> list[Block]:
        """Evaluation and centre first."""
        missing = slots.unanswered_ranges()
        first = [slot_range for slot_range in missing if slot_range[0] != messages.TRAIN]
        training = [slot_range for slot_range in missing if slot_range[0] == messages.TRAIN]
        return [
            *scheduler.iterate_blocks(slots.publication, first, workers),
            *self._training_blocks(slots, training, scheduler, workers),
        ]

    def more_blocks(
        self, slots: UnansweredSlots, scheduler: BlockScheduler, workers: int
    ) -> Iterable[Block]:
        """Without training, which already has its blocks."""
        blocks = self.blocks(slots, scheduler, workers)
        return [block for block in blocks if block.kind not in self.unawaited]

    def refill(
        self, slots: UnansweredSlots, scheduler: BlockScheduler, workers: int
    ) -> Sequence[Block]:
        required = slots.required
        issued = required[messages.TRAIN]
        least = BLOCKS_PER_WORKER * self.reissue_size(slots, scheduler, workers) * workers
        more = self.slots_to_issue(least, required)
        if not more:
            return ()
        slots.require(messages.TRAIN, issued + more)
        missing = [(messages.TRAIN, issued, issued + more)]
        return self._training_blocks(slots, missing, scheduler, workers)

    def reissue_size(self, slots: UnansweredSlots, scheduler: BlockScheduler, workers: int) -> int:
        """Slots of a training block of half a second, at most a quarter of a worker's share of a
        batch; enough to play together.
        """
        limits, batch = scheduler.batch_limits, self.size.fewest
        size = scheduler.reissue_size(messages.TRAIN, -(-batch // 2), workers)
        episodes = batch * scheduler.per_slot
        if scheduler.fixed or limits is None or episodes < limits.fewest * workers:
            return size
        return max(size, -(-limits.fewest // scheduler.per_slot))

    def _training_blocks(
        self,
        slots: UnansweredSlots,
        missing: SlotRanges,
        scheduler: BlockScheduler,
        workers: int,
    ) -> list[Block]:
        sizes = {messages.TRAIN: self.reissue_size(slots, scheduler, workers)}
        return list(iterate_equal_blocks(slots.publication, missing, sizes))

    # --- closing

    def take_batch(self) -> tuple[list[SlotResult | None], list[PublicationSlice]]:
        """Take the batch, by publication and slot, with the slots of each publication."""
        most, spreads = self.size.most, {prior.publication: prior.spread for prior in self._open}
        batch, self.unused = self.unused[:most], self.unused[most:]
        results, slots = by_publication(batch)
        return results, [PublicationSlice(name, slots[name], spreads[name]) for name in slots]

    def take_reevaluated(
        self,
    ) -> tuple[list[SlotResult | None], list[tuple[str, Integers]]]:
        """Take the elite results since the last batch, by publication and slot, with the slots of
        each publication.
        """
        reevaluated, self._reevaluated = self._reevaluated, []
        results, slots = by_publication(reevaluated)
        return results, list(slots.items())

    def take_still_open(
        self, tally: Tally, generation: int, max_lag: int
    ) -> list[PriorPublication]:
        """Publications that stay open when ``generation`` is published; unused slots of closed ones
        count as stale.
        """
        waiting = {result.publication for result in self.unused}
        kept = [
            prior
            for prior in self._open
            if generation - publication_generation(prior.publication) <= max_lag
            and (prior.is_held or prior.publication in waiting)
        ]
        names = {prior.publication for prior in kept}
        stale = [result for result in self.unused if result.publication not in names]
        tally.refuse("stale", len(stale))
        tally.add_lost_steps(sum(sum(unused.result.steps) for unused in stale if unused.result))
        self.unused = [result for result in self.unused if result.publication in names]
        return kept

    def to_open_publication(self, prior: PriorPublication) -> OpenPublication:
        """For a checkpoint; unused slots are read again from the stream."""
        name = prior.publication
        unused = {result.slot for result in self.unused if result.publication == name}
        ranges = to_ranges(sorted(prior.answered - unused), messages.TRAIN)
        counted = [(start, stop) for _, start, stop in ranges]
        return OpenPublication(
            name, prior.step_limit, prior.spread, np.array(counted, np.int64).reshape(-1, 2)
        )


def by_publication(
    results: Sequence[UnusedResult],
) -> tuple[list[SlotResult | None], dict[str, Integers]]:
    ordered = sorted(
        results, key=lambda result: (publication_generation(result.publication), *result[:2])
    )
    slots: dict[str, list[int]] = {}
    for publication, slot, _ in ordered:
        slots.setdefault(publication, []).append(slot)
    arrays = {name: np.array(numbers, np.int64) for name, numbers in slots.items()}
    return [result.result for result in ordered], arrays


def slots_of_ranges(counted: Integers) -> set[int]:
    return {slot for start, stop in counted.tolist() for slot in range(start, stop)}
