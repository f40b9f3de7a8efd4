"""Blocks that take too long: with nothing left to claim and a worker idle, they are issued once more, slot by slot."""

from __future__ import annotations

from es_queue.protocol.channel import Reconciled
from es_queue.protocol.messages import Block
from master.blocks import BLOCK_SECONDS, Cutter
from master.collect import Ledger

#: How many times its expected duration a block may take before an idle worker plays it too; and how often that is looked
#: at once nothing waits to be claimed.
OVERDUE_TIMES, HURRY_SECONDS = 2, 0.25


class Overdue:
    """Since when each block is held, on the master's own clock, and which slots have a copy. least: seconds that any block may take."""

    def __init__(self, cutter: Cutter, least: float) -> None:
        self._cutter, self._least = cutter, least
        self.begin()

    def begin(self) -> None:
        """Another publication is open."""
        self._since: dict[tuple[str, Block], float] = {}
        self._copied: set[tuple[str, int]] = set()

    def look(self, publication: str, seen: Reconciled, now: float) -> None:
        """Note who holds what."""
        held = {(worker, block) for worker, blocks in seen.claims.items() for block in blocks if block.publication == publication}
        self._since = {key: self._since.get(key, now) for key in held}

    def copies(self, ledger: Ledger, now: float) -> list[Block]:
        """The unanswered slots of overdue blocks, each one once: a copy is not copied."""
        late = [block for (_, block), since in self._since.items() if now - since >= max(self._least, OVERDUE_TIMES * self._expected(ledger, block))]
        fresh = {slot for block in late for slot in ledger.missing_of(block)} - self._copied
        self._copied |= fresh
        return [Block(ledger.publication, kind, slot, slot + 1) for kind, slot in sorted(fresh)]

    def _expected(self, ledger: Ledger, block: Block) -> float:
        """Seconds that a block should take, by what this generation or the ones before have shown."""
        measured = self._cutter.seconds.get(block.kind) or ledger.seconds_per_slot(block.kind)
        return (BLOCK_SECONDS if measured is None else measured) * (block.stop - block.start)
