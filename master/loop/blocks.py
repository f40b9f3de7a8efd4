"""Cuts owed rows into blocks: about half a second each, longest first, smaller towards the end.

Workers then finish together (guided self-scheduling, Polychronopoulos and Kuck 1987). No result
depends on this.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from es_queue.numerics.arrays import Mask
from es_queue.protocol.messages import KINDS, MAX_BLOCK, Block
from es_queue.slots import CENTRE, ELITE, TRAIN, Rows, Slots, ranges
from master.loop.learner import Learner

BLOCK_SECONDS = 0.5
#: Of slots that nobody has measured one in so many makes a block, but no block has more than so
#: many.
UNMEASURED_PER_BLOCK, MOST_UNMEASURED = 1000, 16
#: A block has at most the remaining work of one worker, divided by this.
SHARES_PER_WORKER = 1.6


class BlockCutter:
    """seconds: measured wall seconds per row, by kind"""

    def __init__(self, learner: Learner) -> None:
        config, self._learner = learner.config, learner
        self._fixed = config.block
        each = learner.strategy.per_slot * config.episodes
        self._episodes = {TRAIN: each, ELITE: config.elite_episodes, CENTRE: config.episodes}
        self._guess = BLOCK_SECONDS
        self.seconds: dict[int, float] = {}

    def measure(self, slots: Slots) -> None:
        """Size the next blocks by the durations of this table's rows."""
        table = slots.table
        for kind in np.unique(table["kind"]).tolist():
            seconds = table["seconds"][(table["kind"] == kind) & (table["seconds"] > 0)]
            if len(seconds):
                self.seconds[kind] = float(seconds.mean())

    def cut(self, slots: Slots, rows: Rows, workers: int, alone: Mask) -> Iterator[Block]:
        """Blocks of owed ``rows``, in the best order to begin them; ``alone``: bool [S], rows with
        a block of their own.
        """
        name, table = slots.publication, slots.table
        self._guess = BLOCK_SECONDS / min(
            MOST_UNMEASURED, max(1, len(rows) // UNMEASURED_PER_BLOCK)
        )
        for row in rows[alone[rows]].tolist():
            yield Block(name, KINDS[table["kind"][row]], row, row + 1)
        parts = ranges(rows[~alone[rows]], table["kind"])
        kinds = [int(table["kind"][start]) for start, _ in parts]
        batches, rest = list[Block](), list[tuple[int, int, int]]()
        for kind, (start, stop) in zip(kinds, parts, strict=True):
            episodes = self._episodes.get(kind, 1)
            if not self._fixed:
                for size in self._learner.rows_at_once(stop - start, episodes, workers):
                    batches.append(Block(name, KINDS[kind], start, start + size))
                    start += size
            if start < stop:
                rest.append((kind, start, stop))
        yield from sorted(
            batches,
            key=lambda block: -self._of(KINDS.index(block.kind)) * (block.stop - block.start),
        )
        if not self._fixed:
            rest.sort(key=lambda part: -self._of(part[0]))
        left = sum(self._of(kind) * (stop - start) for kind, start, stop in rest)
        for kind, start, stop in rest:
            seconds = self._of(kind)
            while start < stop:
                end = min(stop, start + (self._fixed or self._limit(seconds, left, workers)))
                yield Block(name, KINDS[kind], start, end)
                left -= seconds * (end - start)
                start = end

    def endless(self, slots: Slots, rows: Rows, workers: int) -> Iterator[Block]:
        """Blocks of training rows in the asynchronous schedule: all alike, because there is no end
        towards which they would shrink.
        """
        size = self.endless_size(workers)
        for start, stop in ranges(rows, slots.table["kind"]):
            cuts = [*range(start, stop, size), stop]
            for first, last in pairwise(cuts):
                yield Block(slots.publication, KINDS[TRAIN], first, last)

    def endless_size(self, workers: int) -> int:
        """Rows of half a second, at most a quarter of a worker's share of a batch; enough to play
        together.
        """
        if self._fixed:
            return self._fixed
        batch, seconds = self._learner.batch_size, self._of(TRAIN)
        size = self._limit(seconds, -(-batch // 2) * seconds, workers)
        return max(size, self._learner.fewest_at_once(batch, workers))

    def expected(self, kind: int, rows: int) -> float:
        """Seconds that a block should take."""
        return self.seconds.get(kind, BLOCK_SECONDS) * rows

    def _length(self, block: Block) -> float:
        return self._of(KINDS.index(block.kind)) * (block.stop - block.start)

    def _of(self, kind: int) -> float:
        """Expected seconds of a row. A kind without measurements takes as long as a training row,
        or more for more episodes. If that is unknown too, a row takes a block's time, unless there
        are very many.
        """
        known = self.seconds.get(kind)
        if known is None:
            trained, episodes = self.seconds.get(TRAIN), self._episodes.get(kind, 1)
            known = (
                self._guess
                if trained is None
                else trained * max(1.0, episodes / self._episodes[TRAIN])
            )
        return max(known, 1e-4)

    def _limit(self, seconds: float, left: float, workers: int) -> int:
        """Rows of a block when ``left`` seconds of work are to be shared."""
        share = left / (SHARES_PER_WORKER * workers)
        return min(MAX_BLOCK, max(1, int(min(BLOCK_SECONDS, share) / seconds)))


def blocks_of_rows(slots: Slots, rows: Sequence[int]) -> list[Block]:
    """A block for each row."""
    kinds = slots.table["kind"]
    return [Block(slots.publication, KINDS[kinds[row]], row, row + 1) for row in rows]
