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

from es_queue.errors import EnvironmentFailure
from es_queue.numerics.arrays import Mask
from es_queue.protocol.messages import CENTRE, CRASH_REPORT, ELITE, MAX_BLOCK, TRAIN, Block
from es_queue.protocol.store import Look, MasterStore
from es_queue.slots import Rows, Slots, format_slot, ranges
from es_queue.text import sanitize
from master.loop.learner import LONGEST_REASON, Learner
from master.loop.recovery_statistics import STRAGGLER, WORKER_DIED, RecoveryStatistics
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
        name, table = slots.publication, slots.table
        if alone is None:
            alone = np.zeros(len(slots), np.bool_)
        self._guess = BLOCK_SECONDS / min(
            MOST_UNMEASURED, max(1, len(rows) // UNMEASURED_PER_BLOCK)
        )
        for row in rows[alone[rows]].tolist():
            yield Block(name, int(table["kind"][row]), row, row + 1)
        batches, rest = list[Block](), list[tuple[int, int, int]]()
        for kind, start, stop in ranges(rows[~alone[rows]], table["kind"]):
            episodes = self._episodes.get(kind, 1)
            if not self._fixed:
                for size in self._learner.rows_at_once(stop - start, episodes, workers):
                    batches.append(Block(name, kind, start, start + size))
                    start += size
            if start < stop:
                rest.append((kind, start, stop))
        yield from sorted(
            batches,
            key=lambda block: -self._of(block.kind) * (block.stop - block.start),
        )
        if not self._fixed:
            rest.sort(key=lambda part: -self._of(part[0]))
        left = sum(self._of(kind) * (stop - start) for kind, start, stop in rest)
        for kind, start, stop in rest:
            seconds = self._of(kind)
            while start < stop:
                end = min(stop, start + (self._fixed or self._limit(seconds, left, workers)))
                yield Block(name, kind, start, end)
                left -= seconds * (end - start)
                start = end

    def endless(self, slots: Slots, rows: Rows, workers: int) -> Iterator[Block]:
        """Blocks of training rows in the asynchronous schedule: all alike, because there is no end
        towards which they would shrink.
        """
        size = self.endless_size(workers)
        for kind, start, stop in ranges(rows, slots.table["kind"]):
            for first in range(start, stop, size):
                yield Block(slots.publication, kind, first, min(stop, first + size))

    def endless_size(self, workers: int) -> int:
        """Rows of half a second, at most a quarter of a worker's share of a batch; enough to play
        together.
        """
        if self._fixed:
            return self._fixed
        batch, seconds = self._learner.batch_size, self._of(TRAIN)
        size = self._limit(seconds, -(-batch // 2) * seconds, workers)
        return max(size, self._learner.fewest_at_once(batch, workers))

    def expected(self, block: Block) -> float:
        """Seconds that a block should take."""
        known = self.seconds.get(block.kind, BLOCK_SECONDS)
        return known * (block.stop - block.start)

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
        #: When each block that a worker holds was first seen, on the monotonic clock.
        self._held_since: dict[tuple[str, Block], float] = {}
        self.reissued = self.recovered = 0

    def forget_holders(self) -> None:
        """Another publication is open, or Redis has lost this one."""
        self._held_since.clear()

    def issue_new(self, slots: Slots, workers: int, is_async: bool, task: bytes = b"") -> None:
        """Issue the rows that were never issued; task: the header of a table that has grown."""
        rows = np.flatnonzero(slots.owed & ~slots.table["issued"])
        endless = rows[(slots.table["kind"][rows] == TRAIN) & is_async]
        blocks = chain(
            self.cutter.cut(slots, np.setdiff1d(rows, endless), workers),
            self.cutter.endless(slots, endless, workers),
        )
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
            mine = [block for block in blocks if block.publication == slots.publication]
            missing = [
                (block.start + np.flatnonzero(owed[block.start : block.stop])).tolist()
                for block in mine
            ]
            if not mine:  # a copy was answered, and the generation closed, before it was missed
                self._recoveries.record(WORKER_DIED, 0.0)
            self._recoveries.begin(WORKER_DIED, [row for rows in missing for row in rows])
            for row in missing[0] if mine[:1] == list(blocks[:1]) else ():
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
        self._held_since = {key: self._held_since.get(key, now) for key in held}
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
        for (_, block), since in self._held_since.items():
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
