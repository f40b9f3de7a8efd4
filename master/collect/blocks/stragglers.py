"""Overdue blocks: if nothing is left to claim and a worker is idle, their slots are issued again.

The first copy goes to todo, slot by slot. If it brings no result either, more copies follow after
growing waits, directly into the claims of idle workers, so that a client that takes everything from
todo does not get them.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import cycle, islice

from es_queue.protocol.channel import ReconcileReport
from es_queue.protocol.messages import Block
from master.collect.blocks.block_scheduler import BLOCK_SECONDS, BlockScheduler
from master.collect.ledger import Ledger, Slot

#: How many times its expected duration a block may take before an idle worker plays it too; and how
#: often that is looked at once nothing waits to be claimed.
STRAGGLER_FACTOR, STRAGGLER_CHECK_SECONDS = 3, 0.25
#: Copies of one look at the most, and the longest wait between two copies of a slot, in seconds.
MOST_COPIES, LONGEST_WAIT = 4096, 60.0
#: Workers that are given blocks at one look at the most, and how many blocks each.
MOST_GIVEN, BLOCKS_GIVEN = 100, 8
#: So often in one publication what nobody holds goes to todo alone; from then on idle workers are
#: given some of it by name.
ISSUES_TO_ALL = 2
#: Publications that a worker holds up without an answer until blocks are given by name from the
#: beginning; and for how many times the seconds that the last of them lasted.
MOST_STRIKES, DIRECT_TIMES = 2, 20
#: Blocks that a worker is given at once; reconcile looks at a hundred claims of a worker.
MOST_SHARED = 64
#: Slots of one look of which it is counted how often nobody held them, and blocks that are compared
#: with the copies of a look.
MOST_COUNTED = 1000


class StragglerTracker:
    """Since when each block is held, on the master's clock, and how often each slot was copied.
    least: seconds that any block may take.
    """

    def __init__(self, scheduler: BlockScheduler, least: float) -> None:
        self._scheduler, self._least = scheduler, least
        self.reset()

    def reset(self) -> None:
        self._held_since: dict[tuple[str, Block], float] = {}
        self._copies: Counter[Slot] = Counter()
        self._next: dict[Slot, float] = {}

    def update(self, publication: str, report: ReconcileReport, now: float) -> None:
        held = {
            (worker, block)
            for worker, blocks in report.claims.items()
            for block in blocks
            if block.publication == publication
        }
        self._held_since = {key: self._held_since.get(key, now) for key in held}

    def overdue_slots(self, ledger: Ledger, now: float) -> tuple[list[Slot], list[Slot]]:
        """Unanswered slots of overdue blocks that need a copy now, in order: those without one, and
        the others.
        """
        late = {
            block
            for (_, block), since in self._held_since.items()
            if now - since >= self._patience(ledger, block)
        }
        slots = [slot for slot in slots_within(ledger, late) if now >= self._next.get(slot, now)]
        return [slot for slot in slots if slot not in self._copies][:MOST_COPIES], [
            slot for slot in slots if slot in self._copies
        ]

    def record_copies(self, ledger: Ledger, slots: Iterable[Slot], now: float) -> None:
        """Note another copy of each; the wait for the next one doubles."""
        for kind, slot in slots:
            self._copies[kind, slot] += 1
            wait = self._patience(
                ledger, Block(ledger.publication, kind, slot, slot + 1)
            ) * 2.0 ** min(self._copies[kind, slot] - 1, 30)
            self._next[kind, slot] = now + min(wait, max(LONGEST_WAIT, self._least))

    def _patience(self, ledger: Ledger, block: Block) -> float:
        expected = STRAGGLER_FACTOR * self._expected_seconds(ledger, block)
        return max(self._least, min(expected, self._scheduler.longest(block)))

    def _expected_seconds(self, ledger: Ledger, block: Block) -> float:
        measured = self._scheduler.seconds.get(block.kind) or ledger.tally.seconds_per_slot(
            block.kind
        )
        return (BLOCK_SECONDS if measured is None else measured) * (block.stop - block.start)


def slots_of(ranges: Iterable[tuple[str, int, int]]) -> Iterator[Slot]:
    return ((kind, slot) for kind, start, stop in ranges for slot in range(start, stop))


def slots_within(ledger: Ledger, blocks: Iterable[Block]) -> list[Slot]:
    """The unanswered slots of any of the blocks, in order. Forged overlapping blocks cost no more
    than their number.
    """
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


class IdleWorkers:
    """Workers that hold nothing, the most reliable first."""

    def __init__(self) -> None:
        self._idle: list[str] = []
        self._given: Counter[str] = Counter()
        self._before: Counter[str] = Counter()
        self._answers: Mapping[str, int] = {}

    def update(
        self,
        claims: Mapping[str, tuple[Block, ...]],
        joined: Iterable[str],
        answers: Mapping[str, int],
    ) -> bool:
        """``joined``: workers that may be given work; ``answers``: counted results of each. Returns
        whether any is idle.
        """
        idle = [worker for worker in joined if worker in claims and not claims[worker]]
        self._given = Counter(
            {
                worker: count
                for worker, count in self._given.items()
                if answers.get(worker, 0) == self._before[worker]
            }
        )
        self._before = Counter({worker: answers.get(worker, 0) for worker in self._given})
        self._answers = answers
        self._idle = sorted(
            idle, key=lambda worker: (self._given[worker], not answers.get(worker), worker)
        )
        return bool(idle)

    def give(
        self, slots: Iterable[Slot], most: int, send: Callable[[str, list[Slot]], bool]
    ) -> list[Slot]:
        """Share slots equally, at most ``most`` for each worker; ``send`` puts them into its
        claims. Returns the slots that were given.
        """
        workers, given = self._idle[:MOST_GIVEN], list[Slot]()
        waiting = list(islice(slots, most * len(workers)))
        for number, worker in enumerate(workers):
            some = waiting[: -(-len(waiting) // (len(workers) - number))]
            if not some:
                break
            waiting = waiting[len(some) :]
            self._idle.remove(worker)
            if send(worker, some):
                self._given[worker] += 1
                self._before[worker] = self._answers.get(worker, 0)
                given += some
        return given


class DirectIssue:
    """Whether blocks go directly into workers' claims instead of todo. If a client takes all of
    todo and returns nothing, each publication would lose seconds to find that out. So todo is tried
    again only after many times as long as was lost.
    """

    def __init__(self) -> None:
        self.is_on = self._is_needed = False
        self._began = self._until = -math.inf
        self._unclaimed: Counter[Slot] = Counter()
        self._strikes: Counter[str] = Counter()  # publications that a worker held up
        self._holders: set[str] = set()  # workers that hold up the open one
        self._tries: Counter[str] = Counter()  # copies that a worker got and did not answer
        self._turn = 0
        self._former: Mapping[str, int] = {}
        self._before: Mapping[str, int] = {}

    def begin(self, answers: Mapping[str, int], now: float) -> None:
        """Another publication is open; ``answers``: counted results of each worker so far."""
        if self._is_needed:
            self._until = now + DIRECT_TIMES * (now - self._began)
        self.is_on, self._is_needed, self._began = now < self._until, False, now
        self._unclaimed.clear()
        self._holders.clear()
        if answers != self._before:  # one in which nobody answered says nothing of anybody
            self._former, self._before = self._before, dict(answers)
        for tally in (self._strikes, self._tries):
            for worker in [name for name in tally if self._has_answered(name)]:
                del tally[worker]

    def _has_answered(self, worker: str) -> bool:
        """Whether it returned results in the last publication that had any."""
        return self._before.get(worker, 0) > self._former.get(worker, 0)

    def record_unclaimed(self, slots: Iterable[Slot]) -> None:
        """Note slots that nobody held or failed at. A client takes blocks if they are lost more
        often than they were issued.
        """
        for slot in islice(slots, MOST_COUNTED):
            self._unclaimed[slot] += 1
            self._is_needed = self._is_needed or self._unclaimed[slot] > ISSUES_TO_ALL

    def record_copies(
        self,
        slots: Iterable[Slot],
        claims: Mapping[str, Iterable[Block]],
        answers: Mapping[str, int],
    ) -> None:
        """Note copies given by name. If one client delays several publications in a row and returns
        nothing that counts, it is not merely slow.
        """
        copied = list(islice(slots, MOST_GIVEN))
        for worker, blocks in claims.items():
            if (
                worker not in self._holders
                and answers.get(worker, 0) == self._former.get(worker, 0)
                and holds_any(blocks, copied)
            ):
                self._holders.add(worker)
                self._strikes[worker] += 1
                self._is_needed = self._is_needed or self._strikes[worker] >= MOST_STRIKES

    def share_blocks(
        self, blocks: Iterator[Block], workers: Collection[str]
    ) -> dict[str, list[Block]]:
        """The first blocks by worker, among those with results in the last publication; none if all
        go to todo.
        """
        active = sorted(filter(self._has_answered, workers))
        if not self.is_on or not active:
            return {}
        listed, first = list(islice(blocks, MOST_SHARED * len(active))), self._turn % len(active)
        self._turn += len(listed)
        active = active[first:] + active[:first]
        shares = {name: listed[number :: len(active)] for number, name in enumerate(active)}
        return {name: share for name, share in shares.items() if share}

    def share_copies(
        self, shares: Mapping[str, list[Block]], workers: Collection[str]
    ) -> dict[str, Block]:
        """Copies of the last of ``shares``, for workers without a result in the last publication:
        they may be new, or were too late. Those with the fewest copies come first.
        """
        last = sorted(shares.values(), key=len)[::-1]
        others = [name for name in workers if not self._has_answered(name)]
        others.sort(key=lambda name: (self._tries[name], name))
        copies = dict(zip(others[:MOST_GIVEN], (share[-1] for share in cycle(last)), strict=False))
        self._tries.update(copies.keys())
        return copies


def holds_any(blocks: Iterable[Block], slots: Iterable[Slot]) -> bool:
    held = list(islice(blocks, MOST_COUNTED))
    return any(
        block.kind == kind and block.start <= slot < block.stop
        for kind, slot in slots
        for block in held
    )
