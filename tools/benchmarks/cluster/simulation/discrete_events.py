"""A discrete-event simulation of a run: one server that is Redis, one that is the master, and any
number of workers.

The master's cutting of blocks is the real one's; what it does with answers, and what workers do, is
modelled after ``master.collect.collector`` and ``workers.block_worker``, with the fitted service
times. Each server serves in order of arrival.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from es_queue.protocol.messages import TRAIN, Block
from es_queue.protocol.timing import Clocks
from master.collect.blocks.block_scheduler import BlockScheduler
from master.collect.blocks.stragglers import STRAGGLER_CHECK_SECONDS, STRAGGLER_FACTOR
from master.collect.ledger import FIRST_READ, MOST_POSTPONED_TICKS, MOST_READ
from tools.benchmarks.cluster.services import Services
from tools.benchmarks.cluster.simulation.durations import Durations
from workers.block_worker import MAX_WAIT

POLLS_PER_SECOND = 2500  # as Collector.poll has it
WORTH_SHARING = 2**18
#: An answer that was read before is parsed, but not decoded: so much of its cost remains.
STALE = 0.4
#: Share of the second's work on slots that stands between the last read and reconcile.
OWED = 1 / 3
#: A simulated generation that lasts longer has come to a standstill.
STANDSTILL = 300.0


@dataclass
class Member:
    """One worker. block: what it plays, None while it looks for work; turn: rises when it leaves
    what it was about.
    """

    number: int
    host: int
    block: Block | None = None
    generation: int = -1
    turn: int = 0


class Cluster:
    """``run`` plays generations; then ``spans`` has (first claim, last answer) of each.

    delay: seconds of the network, there and back; size: floats of the parameters; rereads: whether
    the master reads but a thousand answers before it reconciles, and all of them again where
    something was owed
    """

    def __init__(
        self,
        workers: int,
        durations: Durations,
        population: int,
        services: Services,
        *,
        size: int = 200,
        per_host: int = 48,
        delay: float = 0.0,
        rereads: bool = False,
        clocks: Clocks | None = None,
    ) -> None:
        self._services, self._durations, self._clocks = services, durations, clocks or Clocks()
        self._slots, self._size, self._delay, self._rereads = population // 2, size, delay, rereads
        self._members = [Member(number, number // per_host) for number in range(workers)]
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0
        self.now = 0.0
        self._redis_free = 0.0
        self.busy = {"redis": 0.0, "master": 0.0}
        self._poll = min(
            max(self._clocks.leave_poll, workers / POLLS_PER_SECOND), self._clocks.beat_ttl / 2
        )
        self._beat = min(max(self._clocks.beat, 2.5 * self._poll), self._clocks.beat_ttl / 2)
        self._waiting: deque[tuple[Member, int]] = deque()
        self._todo: deque[Block] = deque()
        self._scheduler = BlockScheduler(seconds={TRAIN: 2 * durations.mean()})
        self._random = random.Random(1)
        self._generation, self._publication = -1, ""
        self._claim_wait = max(self._clocks.claim_wait, min(self._poll, MAX_WAIT))
        self.spans: list[list[float]] = []
        self._postponed_ticks = 0
        self.answers = self.copies = self.reissued = 0
        self.standstill = False

    # --- time

    def _at(self, when: float, call: Callable[..., None], *arguments: Any) -> None:
        self._number += 1
        heapq.heappush(self._events, (when, self._number, call, arguments))

    def _redis(self, seconds: float) -> float:
        """When a trip that begins now is over."""
        self._redis_free = max(self._redis_free, self.now + self._delay / 2) + seconds
        self.busy["redis"] += seconds
        return self._redis_free + self._delay / 2

    def _work(self, seconds: float) -> float:
        """When the master has spent this CPU."""
        self.busy["master"] += seconds
        return self.now + seconds

    def run(self, generations: int) -> None:
        """From a fleet that is there and idle."""
        for member in self._members:
            self._at(self._random.random() * self._poll, self._live, member, 0.0)
            self._at(self._random.random() * 0.1, self._look, member)
        self._last = generations
        self._at(0.2, self._open)
        while self._events:
            self.now, _, call, arguments = heapq.heappop(self._events)
            call(*arguments)
            self.standstill = bool(self.spans) and self.now - self._opened > STANDSTILL
            if self._generation >= self._last or self.standstill:
                break

    def busy_seconds(self, start: float, stop: float) -> float:
        """Seconds of play that counted, of all workers, between two moments: each slot of a
        generation once.
        """
        return sum(
            float(self._durations.slots(number, self._slots).sum())
            for number in range(1, len(self.spans) - 1)
        )

    # --- master

    def _open(self) -> None:
        """Publish the next generation."""
        self._generation += 1
        self._publication = str(self._generation)
        if self._generation >= self._last:
            return
        fixed, slot, byte = self._services.open
        done = self._work(fixed + slot * self._slots + byte * self._size)
        self._at(done, self._publish, self._schedule_blocks())

    def _schedule_blocks(self) -> list[Block]:
        """The new generation's blocks."""
        self._seconds = self._durations.slots(self._generation, self._slots)
        return list(
            self._scheduler.iterate_blocks(
                self._publication, [(TRAIN, 0, self._slots)], len(self._members)
            )
        )

    def _publish(self, blocks: list[Block]) -> None:
        fixed, each = self._services.publish
        done = self._redis(
            fixed + each * len(blocks) + self._services.fetched_byte * 4 * self._size
        )
        self._at(done, self._published, blocks)

    def _published(self, blocks: list[Block]) -> None:
        self._ledger()
        self._at_once = FIRST_READ
        self._held: dict[tuple[int, Block], float] = {}
        self._copied: set[int] = set()
        self._hosts: dict[int, float] = {}
        self._todo.extend(blocks)
        self._opened = self.now
        self.spans.append([float("inf"), 0.0])
        self._close_older()
        self._serve_waiting()
        self._next_tick = self.now + self._clocks.renew
        self._asleep = False
        self._read()

    def _ledger(self) -> None:
        """What is known of the new publication."""
        self._known_workers = bytearray(self._slots)
        self._missing_ranges = self._slots
        self._stream: list[Block] = []
        self._cursor = self._taken = 0

    def _close_older(self) -> None:
        """A copy that nobody needs any more is left at the next look."""
        for member in self._members:
            if member.block is not None:
                self._at(
                    self.now + self._random.random() * self._poll,
                    self._leave,
                    member,
                    member.turn,
                )

    def _complete(self) -> bool:
        return not self._missing_ranges

    def _read(self) -> None:
        """Take in what is there, or sleep until something comes or the next second's duties are
        due.
        """
        if self._complete():
            self._close()
            return
        if self.now >= self._next_tick:
            self._tick()
            return
        there = min(self._at_once, len(self._stream) - self._cursor)
        if not there:
            self._asleep, self._at_once = True, FIRST_READ
            self._at(self._next_tick, self._wake, self._generation, self._next_tick)
            return
        self._take(there, self._read)

    def _take(self, there: int, then: Callable[[], None]) -> None:
        entries = self._stream[self._cursor : self._cursor + there]
        fresh = max(0, self._cursor + there - self._taken)
        self._cursor += there
        self._taken = max(self._taken, self._cursor)
        self._at_once = FIRST_READ if there < self._at_once else min(MOST_READ, 4 * self._at_once)
        fixed, each, slot = self._services.read
        slots = sum(block.stop - block.start for block in entries[there - fresh :])
        replied = self._redis(self._services.claim + self._services.entry * there)
        spent = fixed + each * fresh + STALE * each * (there - fresh) + slot * slots
        self._at(replied + self._work(spent) - self.now, self._accept, entries, then)

    def _accept(self, entries: list[Block], then: Callable[[], None]) -> None:
        for block in entries:
            for slot in range(block.start, block.stop):
                self._missing_ranges -= not self._known_workers[slot]
                self._known_workers[slot] = 1
        then()

    def _wake(self, generation: int, due: float) -> None:
        if self._asleep and generation == self._generation and due == self._next_tick:
            self._asleep = False
            self._read()

    def _tick(self) -> None:
        """The second's duties, then what is still unread, then reconcile."""
        self._next_tick = self.now + self._clocks.renew
        self._drain_until = self.now + self._clocks.reconcile
        fixed, worker, slot = self._services.tick
        self._at(
            self._work(
                fixed + worker * len(self._members) + (1 - OWED) * slot * self._missing_ranges
            ),
            self._drain,
        )

    def _drain(self) -> None:
        there = min(MOST_READ, len(self._stream) - self._cursor)
        self._postponed_ticks = (
            self._postponed_ticks + 1
            if there and self.now > self._drain_until
            else 0
            if not there
            else self._postponed_ticks
        )
        if (
            there and self.now > self._drain_until
        ):  # what does not end puts reconcile off, for a while only
            (self._read if self._postponed_ticks <= MOST_POSTPONED_TICKS else self._owe)()
        elif there:
            self._take(there, self._owe if self._rereads else self._drain)
        else:
            self._owe()

    def _owe(self) -> None:
        """What is answered from here on is not known when the script looks for what
        nobody holds.
        """
        self._at(self._work(OWED * self._services.tick[2] * self._missing_ranges), self._reconcile)

    def _reconcile(self) -> None:
        fixed, slot, worker = self._services.reconcile
        done = self._redis(fixed + slot * self._missing_ranges + worker * len(self._members))
        self._at(done, self._apply_reconciliation)

    def _issue_unread(self) -> None:
        """What is answered but not read yet looks as if nobody held it."""
        if self._cursor == len(self._stream):
            return
        waiting = {slot for block in self._todo for slot in range(block.start, block.stop)}
        playing = {
            slot
            for one in self._members
            if one.block is not None and one.generation == self._generation
            for slot in range(one.block.start, one.block.stop)
        }
        unread = [
            block
            for block in self._stream[self._cursor :]
            if block.publication == self._publication
        ]
        owed = [
            slot
            for block in unread
            for slot in range(block.start, block.stop)
            if not self._known_workers[slot]
        ]
        blocks = [
            Block(self._publication, TRAIN, slot, slot + 1)
            for slot in dict.fromkeys(owed)
            if slot not in waiting and slot not in playing
        ]
        self._todo.extendleft(reversed(blocks))
        self.reissued += len(blocks)
        if blocks and self._rereads:
            self._cursor = 0

    def _apply_reconciliation(self) -> None:
        self._issue_unread()
        held = {
            (one.number, one.block)
            for one in self._members
            if one.block is not None and one.generation == self._generation
        }
        self._held = {key: self._held.get(key, self.now) for key in held}
        if not self._todo and len(held) < len(self._members):
            self._next_tick = min(self._next_tick, self.now + STRAGGLER_CHECK_SECONDS)
            for (_, block), since in self._held.items():
                expected = self._scheduler.seconds[TRAIN] * (block.stop - block.start)
                if self.now - since >= max(self._clocks.overdue, STRAGGLER_FACTOR * expected):
                    self._copy(block)
        self._serve_waiting()
        self._read()

    def _closing(self) -> tuple[float, ...]:
        return self._services.close

    def _copy(self, block: Block) -> None:
        fresh = [
            slot
            for slot in range(block.start, block.stop)
            if not self._known_workers[slot] and slot not in self._copied
        ]
        self._copied.update(fresh)
        self.copies += len(fresh)
        self._todo.extend(Block(self._publication, TRAIN, slot, slot + 1) for slot in fresh)

    def _close(self) -> None:
        fixed, slot, both = self._closing()
        self._at(
            self._work(fixed + slot * self._slots + both * self._slots * self._size), self._open
        )

    # --- workers

    def _look(self, member: Member) -> None:
        self._at(self._redis(self._services.claimed), self._claim, member)

    def _claim(self, member: Member) -> None:
        member.turn += 1
        done = self._redis(self._services.claim)
        if self._todo:
            self._move(member, done)
        else:
            self._waiting.append((member, member.turn))
            self._at(done + self._claim_wait, self._timed_out, member, member.turn)

    def _timed_out(self, member: Member, turn: int) -> None:
        if member.turn == turn:
            member.turn += 1
            self._redis(self._services.claimed)
            self._look(member)

    def _serve_waiting(self) -> None:
        while self._todo and self._waiting:
            member, turn = self._waiting.popleft()
            if member.turn == turn:
                member.turn += 1
                self._move(member, self._redis(self._services.claim / 2))

    def _move(self, member: Member, when: float) -> None:
        member.block = self._todo.popleft()
        self._at(when, self._begin, member, member.turn)

    def _begin(self, member: Member, turn: int) -> None:
        """Fetch what is new, then play."""
        assert member.block is not None
        ready = self.now
        if member.generation != self._generation:
            member.generation = self._generation
            ready = self._fetched(member)
        span = self.spans[-1]
        span[0] = min(span[0], ready)
        seconds = float(self._seconds[member.block.start : member.block.stop].sum())
        self._at(ready + seconds + self._services.worker, self._answer, member, turn)

    def _fetched(self, member: Member) -> float:
        """When the task and the parameters are there."""
        size = 4 * self._size
        if size < WORTH_SHARING:
            self._redis(self._services.task)
            return self._redis(self._services.task + self._services.fetched_byte * size)
        if member.host not in self._hosts:
            self._redis(self._services.task)
            self._hosts[member.host] = self._redis(
                self._services.task + self._services.fetched_byte * size
            )
        return max(self.now, self._hosts[member.host]) + self._services.digest_byte * size

    def _answer(self, member: Member, turn: int) -> None:
        if member.turn == turn:
            member.turn += 1  # what is on its way is not left any more
            self._at(self._redis(self._services.answer), self._answered_by, member)

    def _answered_by(self, member: Member) -> None:
        block, member.block = member.block, None
        assert block is not None
        if member.generation == self._generation:
            self.answers += 1
            self._stream.append(block)
            self.spans[-1][1] = self.now
            if self._asleep:
                self._asleep = False
                self._read()
        self._claim(member)

    def _leave(self, member: Member, turn: int) -> None:
        if member.turn == turn and member.block is not None:
            member.block, member.turn = None, member.turn + 1
            self._redis(self._services.claimed)
            self._look(member)

    def _live(self, member: Member, beaten: float) -> None:
        """A beat where one is due, and the orders."""
        if self.now - beaten >= self._beat:
            beaten = self.now
            self._redis(self._services.alive)
            self._redis(self._services.beat)
        self._at(self._redis(self._services.orders) + self._poll, self._live, member, beaten)


def simulated(
    workers: int,
    durations: Durations,
    population: int,
    services: Services,
    *,
    generations: int = 4,
    kind: type[Cluster] = Cluster,
    **more: Any,
) -> dict[str, Any]:
    """A row as ``real`` gives it, as far as a model can; the first generation and the last are not
    counted.
    """
    cluster = kind(workers, durations, population, services, **more)
    cluster.run(generations)
    if cluster.standstill:
        return {
            "workers": workers,
            "durations": durations.kind,
            "population": population,
            "standstill": True,
        }
    spans = cluster.spans[1:]
    start, stop = (
        spans[0][0],
        spans[-1][0],
    )  # whole cycles: the last generation gives the end of the gap before it
    gaps = [after[0] - before[1] for before, after in zip(cluster.spans, spans, strict=False)]
    return {
        "workers": workers,
        "durations": durations.kind,
        "population": population,
        "generations": len(spans) - 1,
        "seconds": stop - start,
        "efficiency": cluster.busy_seconds(start, stop) / (workers * (stop - start)),
        "gap": float(np.median(gaps)),
        "answers": cluster.answers,
        "copies": cluster.copies,
        "reissued": cluster.reissued,
        "cpu": {name: value / cluster.now for name, value in cluster.busy.items()},
        "bound": bound(workers, durations, population, generations - 1),
    }


def bound(workers: int, durations: Durations, population: int, generations: int) -> float:
    """The efficiency that no synchronous schedule exceeds: a generation lasts at least as long as
    its longest slot.
    """
    drawn = [durations.slots(number, population // 2) for number in range(1, generations)]
    return float(
        sum(one.sum() for one in drawn) / sum(max(workers * one.max(), one.sum()) for one in drawn)
    )
