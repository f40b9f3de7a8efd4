"""Which blocks of owed rows are issued, and which are issued again.

``BlockCutter`` cuts rows into blocks of about half a second, longest first, smaller towards the
end, so that workers finish together (guided self-scheduling, Polychronopoulos and Kuck 1987).
``Issuer`` puts them into todo, and again if nobody holds them or if their worker takes too long
(rule 8). No result depends on either.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from itertools import chain, islice

import numpy as np

from es_queue.environments.factory import batch_size_range
from es_queue.environments.interface import EnvironmentRequest
from es_queue.errors import EnvironmentFailure
from es_queue.numerics.arrays import Mask
from es_queue.protocol.messages import CENTRE, CRASH_REPORT, ELITE, MAX_BLOCK, TRAIN, Block
from es_queue.protocol.store import Look, MasterStore
from es_queue.slots import Rows, Slots, format_slot, ranges
from es_queue.text import sanitize
from master.loop.generation_record import STRAGGLER, WORKER_DIED, RecoveryStatistics
from master.loop.learner import LONGEST_REASON, Learner
from master.loop.workers import newest_reports

LOGGER = logging.getLogger("es_queue.loop")
BLOCK_SECONDS = 0.5
#: Of slots that nobody has measured one in so many makes a block, but no block has more than so
#: many.
UNMEASURED_PER_BLOCK, MOST_UNMEASURED = 1000, 16
#: A block has at most the remaining work of one worker, divided by this.
SHARES_PER_WORKER = 1.6
#: Blocks that are issued first, in all and for each worker; the rest follow while they are played.
FIRST_BLOCKS, FIRST_PER_WORKER = 1024, 4
#: How many times its expected duration a block may take before an idle worker plays it too.
STRAGGLER_FACTOR = 3
#: After so many workers have died while they played one row, a person reads of it; after so many,
#: the run ends.
DEATHS_NAMED, DEATHS = 3, 10


class BlockCutter:
    """seconds: measured wall seconds per row, by kind"""

    def __init__(self, learner: Learner) -> None:
        config, self._learner = learner.config, learner
        self._fixed = config.block
        each, elites = learner.strategy.per_slot * config.episodes, config.episodes
        if learner.strategy.reevaluates:
            elites = config.elite_episodes
        self._episodes = {TRAIN: each, ELITE: elites, CENTRE: config.episodes}
        #: The fewest and the most episodes to play at once; None if they are played one by one.
        self._at_once = batch_size_range(EnvironmentRequest.of(config), learner.strategy.size)
        self._guess = BLOCK_SECONDS
        self.seconds: dict[int, float] = {}

    def measure(self, slots: Slots) -> None:
        """Size the next blocks by the durations of this table's rows."""
        table = slots.table
        for kind in np.unique(table["kind"]).tolist():
            seconds = table["seconds"][(table["kind"] == kind) & (table["seconds"] > 0)]
            if len(seconds):
                self.seconds[kind] = float(seconds.mean())

    def cut(
        self, slots: Slots, rows: Rows, workers: int, alone: Mask | None = None
    ) -> Iterator[Block]:
        """Blocks of owed ``rows``, in the best order to begin them; ``alone``: bool [S], rows with
        a block of their own.
        """
        if alone is not None:
            yield from blocks_of_rows(slots, rows[alone[rows]].tolist())
            rows = rows[~alone[rows]]
        unmeasured = max(1, len(rows) // UNMEASURED_PER_BLOCK)
        self._guess = BLOCK_SECONDS / min(MOST_UNMEASURED, unmeasured)
        # In this order: equal batches, those that shrink towards the end, and those of training in
        # the asynchronous schedule, which has no end; of each the longest first.
        parts = list[tuple[int, float, int, int, int, int]]()
        for kind, start, stop in ranges(rows, slots.table["kind"]):
            seconds = self._of(kind)
            if kind == TRAIN and self._learner.is_async:
                parts.append((2, 0.0, self.endless_size(workers), kind, start, stop))
                continue
            if self._fixed:
                parts.append((0, 0.0, self._fixed, kind, start, stop))
                continue
            for size in self._batches(stop - start, self._episodes.get(kind, 1), workers):
                parts.append((0, -seconds * size, size, kind, start, start + size))
                start += size
            parts.append((1, -seconds, 0, kind, start, stop))
        parts.sort(key=lambda part: part[:2])
        left = sum(self._of(kind) * (stop - start) for *_, kind, start, stop in parts)
        for *_, size, kind, start, stop in parts:
            seconds = self._of(kind)
            while start < stop:
                end = min(stop, start + (size or self._limit(seconds, left, workers)))
                yield Block(slots.publication, kind, start, end)
                left -= seconds * (end - start)
                start = end

    def _batches(self, rows: int, episodes: int, workers: int) -> list[int]:
        """Sizes of blocks if the back end plays many episodes at once: batches of nearly equal
        size, the same number for each worker; none if it does not, or if nothing is gained.
        """
        limits = self._at_once
        if limits is None or rows * episodes < limits[0] * workers:
            return []
        # A slot for each worker evens out the end, if there is more than a small batch for each.
        bulk = rows - workers if rows * episodes >= 2 * limits[0] * workers else rows
        size = max(1, min(MAX_BLOCK, limits[1] // episodes))
        count = min(bulk, -(-bulk // (size * workers)) * workers)
        return [bulk * (number + 1) // count - bulk * number // count for number in range(count)]

    def endless_size(self, workers: int) -> int:
        """Training rows of a block in the asynchronous schedule: half a second, at most a quarter
        of a worker's share of a batch; enough to play together.
        """
        if self._fixed:
            return self._fixed
        batch, seconds, episodes = self._learner.batch_size, self._of(TRAIN), self._episodes[TRAIN]
        fewest = 0 if self._at_once is None else self._at_once[0]
        together = -(-fewest // episodes) if batch * episodes >= fewest * workers else 1
        return max(self._limit(seconds, -(-batch // 2) * seconds, workers), together)

    def expected(self, block: Block) -> float:
        """Seconds that a block should take."""
        known = self.seconds.get(block.kind, BLOCK_SECONDS)
        return known * (block.stop - block.start)

    def _of(self, kind: int) -> float:
        """Expected seconds of a row. A kind without measurements takes as long as a training row,
        or more for more episodes. If that is unknown too, a row takes a block's time, unless there
        are very many.
        """
        longer = max(1.0, self._episodes.get(kind, 1) / self._episodes[TRAIN])
        trained = self.seconds.get(TRAIN, self._guess / longer)
        return max(self.seconds.get(kind, trained * longer), 1e-4)

    def _limit(self, seconds: float, left: float, workers: int) -> int:
        """Rows of a block when ``left`` seconds of work are to be shared."""
        share = left / (SHARES_PER_WORKER * workers)
        return min(MAX_BLOCK, max(1, int(min(BLOCK_SECONDS, share) / seconds)))


class Issuer:
    """reissued: rows that were issued again; recovered: workers that died while they held blocks"""

    def __init__(
        self,
        cutter: BlockCutter,
        store: MasterStore,
        token: str,
        recoveries: RecoveryStatistics,
        overdue: float,
    ) -> None:
        """``overdue``: the fewest seconds after which a block is issued to a second worker."""
        self.cutter, self._store, self._token = cutter, store, token
        self._recoveries, self._overdue = recoveries, overdue
        #: When each block that a worker holds was first seen, on the monotonic clock; empty when
        #: another publication opens, or Redis has lost this one.
        self.held_since: dict[tuple[str, Block], float] = {}
        self.reissued = self.recovered = 0

    def issue_new(self, slots: Slots, workers: int, task: bytes = b"") -> None:
        """Issue the rows that were never issued; task: the header of a table that has grown."""
        rows = np.flatnonzero(slots.owed & ~slots.table["issued"])
        blocks = self.cutter.cut(slots, rows, workers)
        slots.table["issued"][rows] = True
        name, most = slots.publication, max(FIRST_BLOCKS, FIRST_PER_WORKER * workers)
        while chunk := list(islice(blocks, most)):
            self._store.issue(self._token, name, chunk, task)
            task, most = b"", 8 * FIRST_BLOCKS
        if task:
            self._store.issue(self._token, name, [], task)

    def note_deaths(self, slots: Slots, look: Look) -> None:
        """A worker died while it held these blocks; the first was being played. Raises
        EnvironmentFailure for a row that ends every worker, with the newest crash that is reported.
        """
        owed = slots.owed
        for blocks in filter(None, look.dead):
            self.recovered += 1
            missing = [
                [row for row in range(block.start, min(block.stop, len(owed))) if owed[row]]
                for block in blocks
                if block.publication == slots.publication
            ]
            if not missing:  # a copy was answered, and the generation closed, before it was missed
                self._recoveries.record(WORKER_DIED, 0.0)
            self._recoveries.begin(WORKER_DIED, list(chain(*missing)))
            for row in missing[0] if blocks[0].publication == slots.publication else ():
                slots.table["deaths"][row] += 1
                deaths = int(slots.table["deaths"][row])
                if deaths not in (DEATHS_NAMED, DEATHS):
                    continue
                sentence = (
                    f"{deaths} workers died while playing {format_slot(slots, row)}: it may "
                    "end or block its process, or need more memory than the hosts have; "
                    f"{self._newest_crash()}"
                )
                if deaths == DEATHS:
                    raise EnvironmentFailure(sentence)
                LOGGER.warning(f"{sentence}; the run ends after {DEATHS}")

    def _newest_crash(self) -> str:
        """What the workers' reports say about the last process that crashed."""
        for report in newest_reports(self._store):
            reason = str(report.get("reason", ""))
            if reason.startswith(CRASH_REPORT):
                return sanitize(reason, LONGEST_REASON)
        return "the workers' terminals show how they ended"

    def issue_lost(self, slots: Slots, look: Look, workers: int, task: bytes) -> None:
        """Issue the rows that nobody holds, with the header ``task``: Redis may have come back with
        an older one, of a table without these rows, and workers would drop them for ever.
        """
        if look.todo is None:
            return
        now = time.monotonic()
        held = [(worker, block) for worker, blocks in look.claims.items() for block in blocks]
        self.held_since = {key: self.held_since.get(key, now) for key in held}
        lost = slots.owed & slots.table["issued"]
        for block in (*look.todo, *(block for _, block in held)):
            if block.publication == slots.publication:
                lost[block.start : block.stop] = False
        rows = np.flatnonzero(lost)
        if len(rows):
            blocks = list(self.cutter.cut(slots, rows, workers, slots.suspects()))
            self._store.issue(self._token, slots.publication, blocks, task, front=True)
            self.reissued += len(rows)

    def copy_stragglers(self, slots: Slots) -> None:
        """Issue the owed rows of overdue blocks once more, each in a block of its own."""
        overdue: Mask = np.zeros(len(slots), np.bool_)
        for (_, block), since in self.held_since.items():
            longest = max(self._overdue, STRAGGLER_FACTOR * self.cutter.expected(block))
            if block.publication == slots.publication and time.monotonic() - since >= longest:
                overdue[block.start : block.stop] = True
        rows = np.flatnonzero(overdue & slots.owed & ~slots.table["copied"]).tolist()
        if rows:
            slots.table["copied"][rows] = True
            self._store.issue(self._token, slots.publication, blocks_of_rows(slots, rows))
            self._recoveries.begin(STRAGGLER, rows)
            self.reissued += len(rows)


def blocks_of_rows(slots: Slots, rows: Sequence[int]) -> list[Block]:
    """A block for each row."""
    kinds = slots.table["kind"]
    return [Block(slots.publication, int(kinds[row]), row, row + 1) for row in rows]
