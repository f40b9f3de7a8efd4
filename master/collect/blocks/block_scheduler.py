"""Cuts a generation's work into blocks: about half a second each, longest first, smaller towards
the end.

Workers then finish together (guided self-scheduling, Polychronopoulos and Kuck 1987). No result
depends on this.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from es_queue.config.run_config import RunConfig
from es_queue.environments.factory import batch_size_range
from es_queue.environments.interface import EnvironmentRequest
from es_queue.protocol import messages
from es_queue.protocol.messages import Block

BLOCK_SECONDS = 0.5
#: Of slots that nobody has measured one in so many makes a block, but no block has more than so
#: many.
UNMEASURED_SLOTS_PER_BLOCK, MOST_UNMEASURED_SLOTS = 1000, 16
#: A block has at most the remaining work of one worker, divided by this.
SHARES_PER_WORKER = 1.6

SlotRanges = Sequence[tuple[str, int, int]]


@dataclass(frozen=True)
class BatchLimits:
    """Useful sizes of a batch of episodes: no gain with fewer than ``fewest``, little beyond
    ``most``.
    """

    fewest: int
    most: int


@dataclass
class BlockScheduler:
    """Cuts ranges of slots into blocks.

    fixed:    slots of every block, in the given order; 0 to measure
    batch_limits: the best numbers of episodes to play at once, None if they are played one by one
    per_slot: episodes of a training slot; episodes_per_slot: of a slot of another kind, one by
    default
    seconds:  measured wall seconds per slot, by kind
    """

    fixed: int = 0
    batch_limits: BatchLimits | None = None
    per_slot: int = 1
    episodes_per_slot: Mapping[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    _guessed_seconds: float = BLOCK_SECONDS

    def iterate_blocks(
        self, publication: str, missing: SlotRanges, workers: int
    ) -> Iterator[Block]:
        """Blocks of all slots in ``missing`` (kind, start, stop), in the best order to begin them.
        The first can be played while the rest are still being cut.
        """
        total = sum(stop - start for _, start, stop in missing)
        self._guessed_seconds = BLOCK_SECONDS / min(
            MOST_UNMEASURED_SLOTS, max(1, total // UNMEASURED_SLOTS_PER_BLOCK)
        )
        if self.fixed:
            yield from iterate_equal_blocks(
                publication, missing, dict.fromkeys(messages.KINDS, self.fixed)
            )
            return
        batches, rest = self._batch_blocks(publication, missing, workers)
        yield from sorted(
            batches, key=lambda block: -self._seconds_of(block.kind) * (block.stop - block.start)
        )
        yield from self._guided_blocks(publication, rest, workers)

    def reissue_size(self, kind: str, slots: int, workers: int) -> int:
        """Slots of a reissued block, when ``slots`` are required in all."""
        if self.fixed:
            return self.fixed
        return self._block_limit(self._seconds_of(kind), slots * self._seconds_of(kind), workers)

    def _seconds_of(self, kind: str) -> float:
        """Expected seconds of a slot. A kind without measurements takes as long as a training slot,
        or more for more episodes. If that is unknown too, a slot takes a block's time, unless there
        are very many.
        """
        known = self.seconds.get(kind)
        if known is None:
            trained = self.seconds.get(messages.TRAIN)
            known = (
                self._guessed_seconds
                if trained is None
                else trained * max(1.0, self._episodes_of(kind) / self.per_slot)
            )
        return max(known, 1e-4)

    def _episodes_of(self, kind: str) -> int:
        return self.per_slot if kind == messages.TRAIN else self.episodes_per_slot.get(kind, 1)

    def _block_limit(self, seconds: float, left: float, workers: int) -> int:
        """Slots of a block when ``left`` seconds of work are to be shared."""
        return min(
            messages.MAX_BLOCK,
            max(1, int(min(BLOCK_SECONDS, left / (SHARES_PER_WORKER * workers)) / seconds)),
        )

    def _guided_blocks(
        self, publication: str, missing: SlotRanges, workers: int
    ) -> Iterator[Block]:
        """Each block is a share of the work left when it is claimed; the kind with the longest
        slots first.
        """
        order = sorted(missing, key=lambda slot_range: -self._seconds_of(slot_range[0]))
        left = sum(self._seconds_of(kind) * (stop - start) for kind, start, stop in order)
        for kind, start, stop in order:
            seconds = self._seconds_of(kind)
            while start < stop:
                end = min(stop, start + self._block_limit(seconds, left, workers))
                yield Block(publication, kind, start, end)
                left -= seconds * (end - start)
                start = end

    def _batch_blocks(
        self, publication: str, missing: SlotRanges, workers: int
    ) -> tuple[list[Block], list[tuple[str, int, int]]]:
        """Batches of the best size, equal for each worker, and the remainder."""
        blocks: list[Block] = []
        rest: list[tuple[str, int, int]] = []
        for kind, start, stop in missing:
            sizes = self._batch_sizes(stop - start, self._episodes_of(kind), workers)
            for size in sizes:
                blocks.append(Block(publication, kind, start, start := start + size))
            if start < stop:
                rest.append((kind, start, stop))
        return blocks, rest

    def _batch_sizes(self, slots: int, episodes: int, workers: int) -> list[int]:
        """Slots of each batch: rounds of one batch per worker, of nearly equal size."""
        limits = self.batch_limits
        if limits is None or slots * episodes < limits.fewest * workers:
            return []
        # A slot for each worker evens out the end, where there is more than a small batch for each.
        bulk = slots - workers if slots * episodes >= 2 * limits.fewest * workers else slots
        size = max(1, min(messages.MAX_BLOCK, limits.most // episodes))
        count = min(bulk, -(-bulk // (size * workers)) * workers)
        return [bulk * (number + 1) // count - bulk * number // count for number in range(count)]


def make_scheduler(config: RunConfig, individuals: int, parameters: int) -> BlockScheduler:
    limits = batch_size_range(EnvironmentRequest.of(config), parameters)
    episodes_per_slot = {
        messages.ELITE: config.elite_episodes,
        messages.CENTRE: config.episodes,
    }
    together = None if limits is None else BatchLimits(*limits)
    return BlockScheduler(
        config.block,
        together,
        individuals * config.episodes,
        episodes_per_slot,
    )


def blocks_of_slots(
    publication: str,
    slots: Iterable[tuple[str, int]],
    most: int,
    single: Container[tuple[str, int]],
) -> list[Block]:
    """Blocks of at most ``most`` slots, in order; each slot of ``single`` has its own block."""
    blocks: list[Block] = []
    for kind, slot in slots:
        last = blocks[-1] if blocks else None
        if (
            last is not None
            and (last.kind, last.stop) == (kind, slot)
            and slot - last.start < most
            and (kind, slot) not in single
            and (kind, last.start) not in single
        ):
            blocks[-1] = Block(publication, kind, last.start, slot + 1)
        else:
            blocks.append(Block(publication, kind, slot, slot + 1))
    return blocks


def iterate_equal_blocks(
    publication: str, missing: SlotRanges, sizes: Mapping[str, int]
) -> Iterator[Block]:
    """Cut ranges of slots into blocks of at most ``sizes[kind]`` slots."""
    for kind, start, stop in missing:
        size = min(messages.MAX_BLOCK, max(1, sizes.get(kind, 1)))
        for first in range(start, stop, size):
            yield Block(publication, kind, first, min(stop, first + size))
