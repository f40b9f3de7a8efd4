"""When a publication closes: on the results of all its slots, or on a batch."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from es_queue.protocol.messages import SlotResult
from master.collect.answer_check import AnswerChecker
from master.collect.blocks.block_issue import BlockIssue, UnansweredSlots, WholeGeneration
from master.collect.blocks.block_scheduler import BlockScheduler
from master.collect.publication.pending_slots import Slot


class Closing(Protocol):
    """One publication's. unawaited: kinds of slots that it does not wait for; endless: kinds of
    which each settled slot counts at once, and for good
    """

    unawaited: Collection[str]
    endless: Collection[str]

    @property
    def prior_publications(self) -> tuple[str, ...]:
        """Older publications that are open still."""
        ...

    def checker_of(self, publication: str) -> AnswerChecker | None:
        """Of an older publication; None if it is not open."""
        ...

    def prior_refusal(self, publication: str, slot: Slot) -> str:
        """Why a result of an older publication does not count; empty if it does."""
        ...

    def settle(self, slot: Slot, result: SlotResult | None, publication: str = "") -> None:
        """A slot has a result, or None if it failed everywhere; of the newest publication where
        none is named.
        """
        ...

    def is_ready(self, required: Mapping[str, int]) -> bool:
        """Whether there is enough of what is not awaited."""
        ...

    def answer_counts(self) -> tuple[int, int] | None:
        """(slots answered, slots required), where they are not those of the publication."""
        ...

    def block_issue(self, slots: UnansweredSlots, scheduler: BlockScheduler) -> BlockIssue:
        """In which blocks the slots are issued."""
        ...

    def update_held(self, held: set[str]) -> None:
        """``held``: publications of which living workers have blocks."""
        ...


class WholeClosing:
    """Each slot of the publication is awaited."""

    unawaited: Collection[str] = ()
    endless: Collection[str] = ()
    prior_publications: tuple[str, ...] = ()

    def checker_of(self, publication: str) -> AnswerChecker | None:
        return None

    def prior_refusal(self, publication: str, slot: Slot) -> str:
        return "stale"

    def settle(self, slot: Slot, result: SlotResult | None, publication: str = "") -> None: ...

    def is_ready(self, required: Mapping[str, int]) -> bool:
        return True

    def answer_counts(self) -> tuple[int, int] | None:
        return None

    def block_issue(self, slots: UnansweredSlots, scheduler: BlockScheduler) -> BlockIssue:
        return WholeGeneration(slots, scheduler)

    def update_held(self, held: set[str]) -> None: ...
