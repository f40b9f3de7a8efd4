"""Masters of the asynchronous schedule, in the same small world: the real AsyncBatch and the real
Collector.

Who comes first decides what is learnt, so there is no one right end. What is watched instead: every
slot that counts was answered by the parameters of its own publication, and in the past of no state
does a slot count twice.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from es_queue.protocol.channel import RUNNING, PublishRequest
from es_queue.protocol.messages import EVAL, TRAIN, Task, publication_generation
from master.collect.blocks.block_scheduler import BlockScheduler
from master.collect.collector import Collector
from master.collect.ledger import Ledger
from master.collect.publication.closed_generation import OpenPublication, PublicationSlice
from master.collect.publication.closing import (
    AsyncBatch,
    BatchSize,
    CarriedOver,
    PriorPublication,
    slots_of_ranges,
)
from master.collect.worker_watch import MasterLease
from master.loop.state import Floats
from tests.model.actors import CLOCKS, collecting, seized
from tests.model.world import (
    FIRST,
    LEASE,
    SLOTS,
    Actor,
    World,
    expectations,
    learned,
    result,
    task_of,
    wanted,
)

GENERATIONS, MAX_LAG = 6, 2
LIMIT = 100


@dataclass(frozen=True)
class Search:
    """A run's state between two generations. used: every (publication, slot) that was learnt from
    on the way here.
    """

    generation: int = 0
    parameters: bytes = FIRST
    open: tuple[OpenPublication, ...] = ()
    used: frozenset[tuple[str, int]] = frozenset()


@dataclass
class AsyncWorld(World):
    """states: what each checkpoint's bytes say; published: the parameters of each publication."""

    states: list[Search] = field(default_factory=lambda: [Search()])
    published: dict[str, bytes] = field(default_factory=dict)
    latest: int = 0

    def ended_right(self, parameters: bytes) -> bool:
        return any(
            state.parameters == parameters and state.generation == GENERATIONS
            for state in self.states
        )

    def save(self, state: Search) -> bytes:
        self.states.append(state)
        return b"%d" % (len(self.states) - 1)

    def check_batch(self, state: Search, batch: list[object], used: list[PublicationSlice]) -> None:
        rows = [(one.publication, slot) for one in used for slot in one.slots.tolist()]
        if len(rows) != SLOTS or len(set(rows)) != SLOTS or set(rows) & state.used:
            self.wrong.append(f"slots count twice: {sorted(set(rows) & state.used)}")
        for (publication, slot), found in zip(rows, batch, strict=True):
            if found != result(
                self.published[publication], publication_generation(publication), TRAIN, slot
            ):
                self.wrong.append(f"a foreign value was counted for slot {slot} of {publication}")
        for one in used:
            lag = state.generation - publication_generation(one.publication)
            self.latest = max(self.latest, lag)
            self.seen["late answers"] += len(one.slots) if lag else 0
            if (
                lag > MAX_LAG
                or one.spread.tolist() != spread_of(self.published[one.publication]).tolist()
            ):
                self.wrong.append(
                    f"{one.publication} was used in generation {state.generation} with "
                    f"spread {one.spread}"
                )


def spread_of(parameters: bytes) -> Floats:
    return np.array([zlib.crc32(parameters) % 1000], np.float32)


def new_async_master(world: World) -> None:
    assert isinstance(world, AsyncWorld)
    world.counter += 1
    world.masters.append(Actor(f"master {world.counter}", async_master(world, world.counter)))


def async_master(world: AsyncWorld, number: int) -> Iterator[None]:
    """Raise the token, then read (rule 11); then batch by batch."""
    channel = world.channel()
    token = yield from seized(world, channel, number)
    state, adopted = resumed(world)
    watcher = Collector(
        MasterLease(channel, token, f"master {number}", CLOCKS), BlockScheduler(fixed=2)
    )
    older, fresh = [reopened(one) for one in state.open], []
    while state.generation < GENERATIONS:
        publication, parameters, kinds = (
            adopted or f"{state.generation}.{token}",
            state.parameters,
            wanted(state.generation),
        )
        world.published[publication] = parameters
        checker = expectations(state.generation)
        newest = PriorPublication(publication, checker, LIMIT, spread_of(parameters))
        answered = AsyncBatch(newest, BatchSize(SLOTS, SLOTS), CarriedOver(older, fresh))
        window = Ledger(publication, checker, kinds, watcher.context, closing=answered)
        what = PublishRequest(
            publication,
            task_of(publication, parameters).encode(),
            (),
            "{}",
            {"state": RUNNING},
            checkpoint=world.save(state),
        )
        yield from collecting(watcher, window, what, parameters, adopted is not None)
        whole = {kind: count for kind, count in kinds.items() if kind == EVAL}
        world.check(state.generation, parameters, window.results_in_order(EVAL), whole)
        batch, used = answered.take_batch()
        world.check_batch(state, list(batch), used)
        if window.refused["wrong-index"] or window.refused["conflict"]:
            world.wrong.append(f"honest workers were refused: {dict(window.refused)}")
        older = answered.take_still_open(window.tally, state.generation + 1, MAX_LAG)
        fresh, adopted = answered.unused, None
        after = learned(parameters, [one for one in batch if one])
        rows = {(one.publication, slot) for one in used for slot in one.slots.tolist()}
        state = Search(
            state.generation + 1,
            after,
            tuple(map(answered.to_open_publication, older)),
            state.used | rows,
        )
        world.disk = max(
            world.disk or (0, b"0", token),
            (state.generation, world.save(state), token),
            key=lambda one: one[0],
        )
        yield
    channel.renew(token, f"master {number}", LEASE, {}, {})
    world.finished = state.parameters


def reopened(one: OpenPublication) -> PriorPublication:
    return PriorPublication(
        one.publication,
        expectations(one.generation),
        one.step_limit,
        one.spread,
        slots_of_ranges(one.counted),
    )


def resumed(world: AsyncWorld) -> tuple[Search, str | None]:
    """The newer of the server's checkpoint and the disk's, and the publication that stands open for
    it.
    """
    _, stored, checkpoint = world.channel().stored_run()
    found = [world.states[int(data)] for data in (checkpoint, world.disk and world.disk[1]) if data]
    state = max(found, key=lambda one: one.generation, default=Search())
    task = None if stored is None else Task.decode(stored)
    fits = (
        task is not None
        and task.generation == state.generation
        and task.digest == task_of(task.publication, state.parameters).digest
    )
    return state, task.publication if task is not None and fits else None
