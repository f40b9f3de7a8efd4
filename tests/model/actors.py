"""Masters and workers of the model, one step between two ``yield``."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from functools import partial

from es_queue.protocol.channel import RUNNING, MasterChannel, PublishRequest
from es_queue.protocol.messages import KINDS, Answer, Block, Task, token_number
from es_queue.protocol.timing import Clocks
from master.collect.blocks.block_scheduler import BlockScheduler, iterate_equal_blocks
from master.collect.collector import Collector
from master.collect.ledger import Ledger
from master.collect.worker_watch import MasterLease
from tests.memory_channel import MemoryMasterChannel, MemoryWorkerChannel
from tests.model.world import (
    BEAT_TTL,
    FIRST,
    GENERATIONS,
    LEASE,
    OVERDUE,
    TICK,
    Actor,
    World,
    expectations,
    learned,
    result,
    task_of,
    wanted,
)

CLOCKS = Clocks(
    lease=LEASE,
    beat_ttl=BEAT_TTL,
    renew=20 * TICK,
    reconcile=20 * TICK,
    overdue=OVERDUE,
    collect_wait=0.0,
)


def new_worker(world: World) -> None:
    world.counter += 1
    world.join(f"host-1-{world.counter:06x}", worker)


def worker(world: World, name: str) -> Iterator[None]:
    """Own claims first, claim, fetch, evaluate, answer (rules 2, 5, 6, 7)."""
    channel = MemoryWorkerChannel(world.server, name)
    held: tuple[Task, bytes] | None = None
    while True:
        channel.arrive({"host": name, "numerics": "1" * 32}, BEAT_TTL)
        yield
        block = yield from claim(world, channel)
        if block is None:
            continue
        yield
        if not fits(world, held, block):
            held = yield from fetch(channel)
        if held is None or not fits(world, held, block):
            channel.drop(block)
            yield
            continue
        yield
        payload = evaluate(world, name, *held, block)
        yield
        yield from world.sent(partial(channel.answer, block, payload))
        yield


def fits(world: World, held: tuple[Task, bytes] | None, block: Block) -> bool:
    """Whether these parameters are what the block is about."""
    return held is not None and (
        held[0].publication == block.publication or not world.rules.publication
    )


def claim(world: World, channel: MemoryWorkerChannel) -> Generator[None, None, Block | None]:
    if not world.rules.own_claims:
        return (yield from world.sent(lambda: channel.claim(0)))
    if mine := channel.held_blocks():
        return mine[0]
    yield
    block = channel.claim(0)
    if world.unlucky(0.06):
        world.seen["claim lost"] += 1
        yield
        return next(iter(channel.held_blocks()), None)  # the reply was lost, the claims list knows
    return block


def fetch(channel: MemoryWorkerChannel) -> Generator[None, None, tuple[Task, bytes] | None]:
    raw = channel.task()
    yield
    if raw is None:
        return None
    task = Task.decode(raw)
    parameters = channel.parameters(task.publication, 4 * task.size)
    return None if parameters is None else (task, parameters)


def evaluate(world: World, name: str, task: Task, parameters: bytes, block: Block) -> bytes:
    slots = range(block.start, block.stop)
    failed = {slot for slot in slots if world.may_fail(block.publication, block.kind, slot)}
    if not all(expectations(task.generation).expected_answer(block.kind, slot) for slot in slots):
        return b"what a worker says that plays something else"
    results = tuple(
        result(parameters, task.generation, block.kind, slot)
        for slot in slots
        if slot not in failed
    )
    return Answer(
        block.publication,
        block.kind,
        name,
        0.1,
        results,
        tuple((slot, f"attempt {world.steps}") for slot in sorted(failed)),
    ).encode()


def new_master(world: World) -> None:
    world.counter += 1
    world.masters.append(Actor(f"master {world.counter}", master(world, world.counter)))


def seized(world: World, channel: MemoryMasterChannel, number: int) -> Generator[None, None, str]:
    """A higher token than any that was seen; from here on the writes of former masters
    are refused.
    """
    seen = [token for token in (channel.epoch(), world.disk and world.disk[2]) if token]
    yield
    token = f"{1 + max(map(token_number, seen), default=0)}-{number:08x}"
    channel.renew(token, f"master {number}", LEASE, {}, {})
    yield
    return token


def master(world: World, number: int) -> Iterator[None]:
    """Raise the token, then read (rule 11); then generation by generation."""
    channel = world.channel()
    token = yield from seized(world, channel, number)
    generation, parameters, adopted = resumed(world)
    watcher = Collector(
        MasterLease(channel, token, f"master {number}", CLOCKS),
        BlockScheduler(fixed=2),
    )
    while generation < GENERATIONS:
        kinds = wanted(generation)
        ledger = Ledger(
            adopted or f"{generation}.{token}", expectations(generation), kinds, watcher.context
        )
        what = PublishRequest(
            ledger.publication,
            task_of(ledger.publication, parameters).encode(),
            (),
            "{}",
            {"state": RUNNING},
            checkpoint=saved(generation, parameters),
        )
        if world.rules.collector:
            yield from collecting(watcher, ledger, what, parameters, adopted is not None)
        else:
            yield from by_the_rules(
                world, channel, token, ledger, what, parameters, adopted is not None
            )
        results = [one for kind in kinds for one in ledger.results_in_order(kind)]
        world.check(generation, parameters, results, kinds)
        if ledger.refused["conflict"] or ledger.refused["wrong-index"]:
            world.wrong.append(f"honest workers were refused: {dict(ledger.refused)}")
        generation, parameters, adopted = (
            generation + 1,
            learned(parameters, [one for one in results if one]),
            None,
        )
        world.disk = max(
            world.disk or (0, FIRST, token), (generation, parameters, token), key=lambda one: one[0]
        )
        yield
    channel.renew(
        token, f"master {number}", LEASE, {}, {}
    )  # who is replaced has nothing to say about the end
    world.finished = parameters


def saved(generation: int, parameters: bytes) -> bytes:
    return b"%d " % generation + parameters


def resumed(world: World) -> tuple[int, bytes, str | None]:
    """The newer of the server's checkpoint and the disk's, and the publication that stands open for
    it.
    """
    _, stored, checkpoint = world.channel().stored_run()
    found = [(0, FIRST)] if world.disk is None else [world.disk[:2]]
    if checkpoint is not None:
        number, _, data = checkpoint.partition(b" ")
        found.append((int(number), data))
    generation, parameters = max(found, key=lambda one: one[0])
    task = None if stored is None else Task.decode(stored)
    fits = (
        task is not None
        and task.generation == generation
        and task.digest == task_of(task.publication, parameters).digest
    )
    return generation, parameters, task.publication if task is not None and fits else None


def collecting(
    watcher: Collector, ledger: Ledger, what: PublishRequest, parameters: bytes, adopted: bool
) -> Iterator[None]:
    """The real collector, step by step."""
    watcher.open(ledger, what, parameters, adopted=adopted)
    yield
    turns = 0
    while not ledger.is_complete():
        watcher.drain(ledger, 0.0)
        yield
        turns += 1
        if turns % 3 == 0 or ledger.needs_reconcile:
            watcher.tick(ledger)
            yield


def by_the_rules(
    world: World,
    channel: MasterChannel,
    token: str,
    ledger: Ledger,
    what: PublishRequest,
    parameters: bytes,
    adopted: bool,
) -> Iterator[None]:
    """Publish, drain, renew, reconcile: every verb a step of its own, each sent again when its
    reply is lost.
    """

    def publish() -> Iterator[None]:
        channel.stage(ledger.publication, parameters)
        yield
        blocks = list(
            iterate_equal_blocks(
                ledger.publication, ledger.unanswered_ranges(), dict.fromkeys(KINDS, 2)
            )
        )
        yield from world.sent(lambda: channel.publish(token, replace(what, blocks=blocks[:2])))
        yield
        yield from world.sent(lambda: channel.extend(token, ledger.publication, blocks[2:]))
        yield

    if not adopted:
        yield from publish()
    cursor, read = "0", set[tuple[str, bytes]]()
    while not ledger.is_complete():
        cursor = yield from drained(channel, ledger, cursor, read, 5)
        stored = yield from world.sent(
            lambda: channel.renew(token, "me", LEASE, {}, ledger.refused)
        )
        yield
        if stored.publication != ledger.publication or not stored.is_complete:
            yield from publish()
            cursor = "0"
        if not world.rules.reconcile:
            return_the_claims_of_the_dead(world)
        elif world.dice.random() < 0.4:
            only: Sequence[tuple[str, int, int]] | None = None
            if world.rules.update:
                look = yield from world.sent(
                    lambda: channel.reconcile(
                        token, replace(ledger.reconcile_request(2, False, []), only=())
                    )
                )
                yield
                cursor = yield from drained(channel, ledger, cursor, read, 1000)
                only = () if look is None else look.unclaimed
            seen = yield from world.sent(
                lambda only=only: channel.reconcile(
                    token, replace(ledger.reconcile_request(2, False, []), only=only)
                )
            )
            cursor = "0" if seen is None or seen.requeued else cursor
        yield


def drained(
    channel: MasterChannel, ledger: Ledger, cursor: str, read: set[tuple[str, bytes]], most: int
) -> Generator[None, None, str]:
    """Take answers in; returns the cursor after them."""
    entries = channel.collect(ledger.publication, cursor, most, 0.0)
    yield
    fresh = [entry for entry in entries if entry.payload and (entry.id, entry.payload) not in read]
    read.update((entry.id, entry.payload) for entry in fresh)
    channel.discard(
        ledger.publication,
        [entry.id for entry in fresh if not ledger.accept(entry.payload, live=1)],
    )
    yield
    return entries[-1].id if entries else cursor


def return_the_claims_of_the_dead(world: World) -> None:
    """What would be done instead of rule 8: recovery by causes."""
    server = world.server
    for name in [name for name in server.claims if not server.is_alive(name)]:
        server.todo[:0] = server.claims.pop(name)
