"""When a publication closes, and in which blocks its slots are issued."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from es_queue.protocol import messages
from es_queue.protocol.messages import Block, SlotResult
from master.collect.answer_check import AnswerChecker
from master.collect.blocks.block_scheduler import BlockScheduler
from master.collect.publication.pending_slots import Slot


class UnansweredSlots(Protocol):
    """A ledger's view of its unanswered slots."""

    publication: str

    @property
    def required(self) -> dict[str, int]: ...

    def unanswered_ranges(self) -> list[tuple[str, int, int]]: ...

    def require(self, kind: str, count: int) -> None: ...


class Closing:
    """One publication's, which closes when each of its slots is answered. ``AsyncBatch`` closes on
    a batch.

    unawaited: kinds of slots that it does not wait for; endless: kinds of which each settled slot
    counts at once, and for good
    """

    unawaited: Collection[str] = ()
    endless: Collection[str] = ()

    @property
    def prior_publications(self) -> tuple[str, ...]:
        """Older publications that are open still."""
        return ()

    def checker_of(self, publication: str) -> AnswerChecker | None:
        """Of an older publication; None if it is not open."""
        return None

    def prior_refusal(self, publication: str, slot: Slot) -> str:
        """Why a result of an older publication does not count; empty if it does."""
        return "stale"

    def settle(self, slot: Slot, result: SlotResult | None, publication: str = "") -> None:
        """A slot has a result, or None if it failed everywhere; of the newest publication where
        none is named.
        """

    def is_ready(self, required: Mapping[str, int]) -> bool:
        """Whether there is enough of what is not awaited."""
        return True

    def answer_counts(self) -> tuple[int, int] | None:
        """(slots answered, slots required), where they are not those of the publication."""
        return None

    def update_held(self, held: set[str]) -> None:
        """``held``: publications of which living workers have blocks."""

    # --- blocks, for so many ``workers``

    def blocks(
        self, slots: UnansweredSlots, scheduler: BlockScheduler, workers: int
    ) -> Iterable[Block]:
        """Of all unanswered slots, as they are published: they shrink towards the end."""
        return scheduler.iterate_blocks(slots.publication, slots.unanswered_ranges(), workers)

    def more_blocks(
        self, slots: UnansweredSlots, scheduler: BlockScheduler, workers: int
    ) -> Iterable[Block]:
        """Of the slots that the ledger has come to require."""
        return self.blocks(slots, scheduler, workers)

    def refill(
        self, slots: UnansweredSlots, scheduler: BlockScheduler, workers: int
    ) -> Sequence[Block]:
        """Of new slots, in place of those that were answered."""
        return ()

    def reissue_size(self, slots: UnansweredSlots, scheduler: BlockScheduler, workers: int) -> int:
        """Slots of a block that is issued again. It may be of any kind that is owed, and of some a
        slot has many episodes.
        """
        owed = {kind for kind, _, _ in slots.unanswered_ranges()} or {messages.TRAIN}
        return min(
            scheduler.reissue_size(kind, slots.required.get(kind, 1), workers) for kind in owed
        )
