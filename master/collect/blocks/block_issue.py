"""How a publication's slots are issued: a whole generation, or an endless batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from es_queue.protocol import messages
from es_queue.protocol.messages import Block
from master.collect.blocks.block_scheduler import BlockScheduler, SlotRanges, list_equal_blocks

#: Blocks for each living worker: the one that it plays and one that waits; half as many again are
#: issued when there are fewer. What waits when parameters change is not played, so it makes no
#: answer late; more would, where the master is slow.
BLOCKS_PER_WORKER = 2


class UnansweredSlots(Protocol):
    """A ledger's view of its unanswered slots."""

    publication: str

    @property
    def required(self) -> dict[str, int]: ...

    def unanswered_ranges(self) -> list[tuple[str, int, int]]: ...

    def require(self, kind: str, count: int) -> None: ...


class BlockIssue(Protocol):
    """The blocks of one open publication, for so many ``workers``."""

    def blocks(self, workers: int) -> Iterable[Block]:
        """Of all unanswered slots, as they are published."""
        ...

    def more_blocks(self, workers: int) -> Iterable[Block]:
        """Of the slots that the ledger has come to require."""
        ...

    def refill(self, workers: int) -> Sequence[Block]:
        """Of new slots, in place of those that were answered."""
        ...

    def reissue_size(self, workers: int) -> int:
        """Slots of a block that is issued again."""
        ...


class WholeGeneration:
    """All slots of a generation, in blocks that shrink towards its end."""

    def __init__(self, ledger: UnansweredSlots, scheduler: BlockScheduler) -> None:
        self._ledger, self._scheduler = ledger, scheduler

    def blocks(self, workers: int) -> Iterable[Block]:
        return self._scheduler.iterate_blocks(
            self._ledger.publication, self._ledger.unanswered_ranges(), workers
        )

    def more_blocks(self, workers: int) -> Iterable[Block]:
        return self.blocks(workers)

    def refill(self, workers: int) -> Sequence[Block]:
        return ()

    def reissue_size(self, workers: int) -> int:
        """It may be of any kind that is owed, and of some a slot has many episodes."""
        owed = {kind for kind, _, _ in self._ledger.unanswered_ranges()} or {messages.TRAIN}
        return min(
            self._scheduler.reissue_size(kind, self._ledger.required.get(kind, 1), workers)
            for kind in owed
        )


class EndlessBatch:
    """Training blocks that are all alike, for there is no end towards which they would shrink."""

    def __init__(
        self,
        ledger: UnansweredSlots,
        batch: int,
        slots_to_issue: Callable[[int, Mapping[str, int]], int],
        scheduler: BlockScheduler,
    ) -> None:
        """``batch``: training slots that close it; ``slots_to_issue``: how many more there are to
        be, that at least so many are owed.
        """
        self._ledger, self._scheduler = ledger, scheduler
        self._batch, self._slots_to_issue = batch, slots_to_issue

    def blocks(self, workers: int) -> Iterable[Block]:
        """Evaluation and centre first."""
        missing = self._ledger.unanswered_ranges()
        first = [slot_range for slot_range in missing if slot_range[0] != messages.TRAIN]
        training = [slot_range for slot_range in missing if slot_range[0] == messages.TRAIN]
        return [
            *self._scheduler.list_blocks(self._ledger.publication, first, workers),
            *self._training_blocks(training, workers),
        ]

    def more_blocks(self, workers: int) -> Iterable[Block]:
        """Without training, which has its blocks already."""
        has_blocks = (messages.TRAIN, messages.CENTRE, messages.ELITE)
        return [block for block in self.blocks(workers) if block.kind not in has_blocks]

    def refill(self, workers: int) -> Sequence[Block]:
        required = self._ledger.required
        issued = required[messages.TRAIN]
        least = BLOCKS_PER_WORKER * self.reissue_size(workers) * workers
        more = self._slots_to_issue(least, required)
        if not more:
            return ()
        self._ledger.require(messages.TRAIN, issued + more)
        return self._training_blocks([(messages.TRAIN, issued, issued + more)], workers)

    def reissue_size(self, workers: int) -> int:
        """Slots of a training block: of half a second, but a batch has four for each worker; enough
        to be played together.
        """
        scheduler, limits = self._scheduler, self._scheduler.batch_limits
        size = scheduler.reissue_size(messages.TRAIN, -(-self._batch // 2), workers)
        episodes = self._batch * scheduler.per_slot
        if scheduler.fixed or limits is None or episodes < limits.fewest * workers:
            return size
        return max(size, -(-limits.fewest // scheduler.per_slot))

    def _training_blocks(self, missing: SlotRanges, workers: int) -> list[Block]:
        sizes = {messages.TRAIN: self.reissue_size(workers)}
        return list_equal_blocks(self._ledger.publication, missing, sizes)
