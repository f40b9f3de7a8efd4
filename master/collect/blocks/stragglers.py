"""Overdue blocks: if nothing is left to claim and a worker is idle, each of their slots is issued
once more, to todo.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable
from itertools import islice

from es_queue.protocol.channel import ReconcileReport
from es_queue.protocol.messages import Block
from master.collect.blocks.block_scheduler import BLOCK_SECONDS, BlockScheduler
from master.collect.ledger import Ledger, Slot

#: How many times its expected duration a block may take before an idle worker plays it too; and how
#: often that is looked at once nothing waits to be claimed.
STRAGGLER_FACTOR, STRAGGLER_CHECK_SECONDS = 3, 0.25


class StragglerTracker:
    """Since when each block is held, on the master's clock, and which slots were copied.
    least: seconds that any block may take.
    """

    def __init__(self, scheduler: BlockScheduler, least: float) -> None:
        self._scheduler, self._least = scheduler, least
        self.reset()

    def reset(self) -> None:
        self._held_since: dict[tuple[str, Block], float] = {}
        self._copied: set[Slot] = set()

    def update(self, publication: str, report: ReconcileReport, now: float) -> None:
        held = {
            (worker, block)
            for worker, blocks in report.claims.items()
            for block in blocks
            if block.publication == publication
        }
        self._held_since = {key: self._held_since.get(key, now) for key in held}

    def take_overdue(self, ledger: Ledger, now: float) -> list[Slot]:
        """Unanswered slots of overdue blocks, in order, each once."""
        late = {
            block
            for (_, block), since in self._held_since.items()
            if now - since >= self._patience(ledger, block)
        }
        slots = [slot for slot in slots_within(ledger, late) if slot not in self._copied]
        self._copied.update(slots)
        return slots

    def _patience(self, ledger: Ledger, block: Block) -> float:
        measured = self._scheduler.seconds.get(block.kind) or ledger.tally.seconds_per_slot(
            block.kind
        )
        expected = (BLOCK_SECONDS if measured is None else measured) * (block.stop - block.start)
        return max(self._least, STRAGGLER_FACTOR * expected)


def slots_within(ledger: Ledger, blocks: Iterable[Block]) -> list[Slot]:
    """The unanswered slots of any of the blocks, in order."""
    merged: dict[str, list[list[int]]] = {}
    for kind, start, stop in sorted((block.kind, block.start, block.stop) for block in blocks):
        parts = merged.setdefault(kind, [])
        if parts and start <= parts[-1][1]:
            parts[-1][1] = max(parts[-1][1], stop)
        else:
            parts.append([start, stop])
    slots: list[Slot] = []
    for kind, first, last in ledger.unanswered_ranges() if merged else ():
        parts = merged.get(kind, [])
        for start, stop in islice(parts, max(0, bisect(parts, [first + 1]) - 1), None):
            if start >= last:
                break
            slots += ((kind, slot) for slot in range(max(start, first), min(stop, last)))
    return slots
