"""A small world in which masters and workers take turns at random, and everything that can fail
does.

The server, the channels, the ledger, the collector and the messages are the real ones; time,
episodes, learning and the order of steps belong to the world. What a master or a worker does
between two ``yield`` is one step.
"""

from __future__ import annotations

import copy
import random
import zlib
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar
from unittest.mock import patch

from es_queue.config.run_config import RunConfig
from es_queue.errors import EnvironmentFailure, FencedError
from es_queue.numerics.fingerprint import bytes_digest
from es_queue.protocol.channel import StreamEntry
from es_queue.protocol.messages import CENTRE, EVAL, TRAIN, SlotResult, Task
from master.collect import collector, ledger
from master.collect.answer_check import ResultShape
from master.collect.blocks import reissuer
from master.collect.ledger import AnswerChecker
from tests import memory_channel
from tests.memory_channel import MemoryMasterChannel, MemoryServer

T = TypeVar("T")

CONFIG = RunConfig(env="CartPole-v1", seed=3, noise_size=2**18, population=12, obs_norm=False)
SLOTS, GENERATIONS, SIZE = 6, 4, 2
MOST_SLOTS = (
    6 * SLOTS
)  # of a publication in the asynchronous schedule; the synchronous one wants SLOTS
FIRST = b"\1" * 4 * SIZE
TICK, BEAT_TTL, OVERDUE, LEASE = 0.01, 1.0, 1.5, 1.0
NOISE = "f" * 32
STEPS, FAULTS, FAILURES_A_SLOT = 4_000, 14, 2
KINDS_OF_FAULT = (
    "kill worker",
    "pause worker",
    "suspect",
    "kill master",
    "takeover",
    "flush",
    "rollback",
)
WORKER_FAULTS = ("kill worker", "pause worker", "suspect")


@dataclass(frozen=True)
class Rules:
    """publication: rule 2, a worker works only with the parameters that its block names;
    own_claims: rule 5, look at one's own claims first and never send a claim twice; reconcile: rule
    8; failures: episodes raise now and then;
    collector: masters are the real Collector, which also copies overdue blocks, instead of the bare
    rules;
    look: reconcile first looks, answers are read, and only then anything is issued again, with all
    that can happen between the three.
    """

    publication: bool = True
    own_claims: bool = True
    reconcile: bool = True
    failures: bool = True
    collector: bool = False
    update: bool = False
    faults: tuple[str, ...] = KINDS_OF_FAULT


class Clock:
    """Stands in for the module ``time``: it moves only when the world says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now


def wanted(generation: int) -> dict[str, int]:
    return {**({EVAL: 2} if generation % 2 else {}), CENTRE: 1, TRAIN: SLOTS}


@lru_cache
def expectations(generation: int) -> AnswerChecker:
    return AnswerChecker(
        CONFIG, generation, ResultShape(SIZE, 2, 4), {**wanted(generation), TRAIN: MOST_SLOTS}
    )


def result(parameters: bytes, generation: int, kind: str, slot: int) -> SlotResult:
    """What an episode gives: a function of the parameters and the slot alone."""
    expected = expectations(generation).expected_answer(kind, slot)
    assert expected is not None
    value = float(zlib.crc32(repr((parameters, generation, kind, slot)).encode()))
    count = expected.individuals
    return SlotResult(
        slot,
        expected.noise_index,
        expected.seed,
        (value,) * count,
        (value,) * count,
        (1,) * count,
        (0,) * count,
        (0,) * count,
    )


def learned(parameters: bytes, results: list[SlotResult]) -> bytes:
    """The next parameters, from all results in slot order."""
    return zlib.crc32(repr((parameters, results)).encode()).to_bytes(4, "big") * SIZE


@lru_cache
def quiet() -> bytes:
    """What the run ends with when nothing fails."""
    parameters = FIRST
    for generation in range(GENERATIONS):
        kinds = wanted(generation).items()
        parameters = learned(
            parameters,
            [
                result(parameters, generation, kind, slot)
                for kind, count in kinds
                for slot in range(count)
            ],
        )
    return parameters


def task_of(publication: str, parameters: bytes) -> Task:
    return Task(
        publication, 0.1, 100, SIZE, bytes_digest(parameters), b"\0" * 16, b"\0" * 16, NOISE, 0.2
    )


class WatchedChannel(MemoryMasterChannel):
    """The master's channel, with the oracle of the fence: a replaced master's write must never be
    accepted.
    """

    world: World

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in ("publish", "extend", "reconcile", "renew", "finish"):
            return found

        def watched(token: str, *arguments: Any, **more: Any) -> Any:
            reply = found(token, *arguments, **more)  # raises FencedError
            self.world.accepted(name, token)
            return reply

        return watched


@dataclass
class Actor:
    """A master or a worker at work; it is not its turn for ``pause`` turns."""

    name: str
    steps: Iterator[None]
    pause: int = 0


@dataclass
class World:
    seed: int
    rules: Rules = Rules()
    bound: int = STEPS
    clock: Clock = field(default_factory=Clock)
    server: MemoryServer = field(default_factory=MemoryServer)

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)
        self.server.entries = 10_000
        self.faults = 0
        self.counter = 0
        self.disk: tuple[int, bytes, str] | None = None
        self.snapshots: list[dict[str, Any]] = []
        self.workers: dict[str, Actor] = {}
        self.masters: list[Actor] = []
        self.tokens: list[str] = []  # as they were raised since the server last lost something
        self.failures: dict[tuple[str, str, int], int] = {}
        self.finished: bytes | None = None
        self.wrong: list[str] = []
        self.seen: Counter[str] = Counter()  # what happened how often
        self.steps = 0

    # --- for masters and workers

    def channel(self) -> MemoryMasterChannel:
        channel = WatchedChannel(self.server)
        channel.world = self
        return channel

    def accepted(self, verb: str, token: str) -> None:
        if token in self.tokens[:-1]:
            self.wrong.append(f"{verb} of the replaced master {token} was accepted")
        self.seen[verb] += 1
        if token not in self.tokens:
            self.tokens.append(token)

    def unlucky(self, chance: float) -> bool:
        if self.faults < FAULTS and self.dice.random() < chance:
            self.faults += 1
            return True
        return False

    def sent(self, call: Callable[[], T]) -> Generator[None, None, T]:
        """``yield from`` it: the call, and once more a while later when its reply was lost."""
        reply = call()
        if self.unlucky(0.06):
            self.seen["reply lost"] += 1
            for _ in range(self.dice.randrange(12)):
                yield
            reply = call()
        return reply

    def may_fail(self, publication: str, kind: str, slot: int) -> bool:
        """An episode may raise now and then; so seldom that its slot never becomes hopeless."""
        key = (publication.partition(".")[0], kind, slot)
        if (
            not self.rules.failures
            or self.failures.get(key, 0) >= FAILURES_A_SLOT
            or not self.unlucky(0.04)
        ):
            return False
        self.failures[key] = self.failures.get(key, 0) + 1
        self.seen["episode failed"] += 1
        return True

    def check(
        self,
        generation: int,
        parameters: bytes,
        results: list[SlotResult | None],
        kinds: dict[str, int],
    ) -> None:
        """No foreign value may have been counted."""
        slots = [(kind, slot) for kind, count in kinds.items() for slot in range(count)]
        for (kind, slot), found in zip(slots, results, strict=True):
            if found is None:
                self.wrong.append(f"{kind} {slot} of generation {generation} was given up")
            elif found != result(parameters, generation, kind, slot):
                self.wrong.append(
                    f"a foreign value was counted for {kind} {slot} of generation {generation}"
                )

    # --- what happens to them

    def join(self, name: str, steps: Callable[[World, str], Iterator[None]]) -> None:
        self.workers[name] = Actor(name, steps(self, name))

    def befall(
        self, new_worker: Callable[[World], None], new_master: Callable[[World], None]
    ) -> None:
        """One fault, of a kind that is possible now."""
        kind = self.dice.choice(self.rules.faults)
        self.seen[kind] += 1
        some_worker = self.dice.choice(sorted(self.workers)) if self.workers else None
        if kind == "kill worker" and some_worker:
            del self.workers[some_worker]
            new_worker(self)
        elif kind == "pause worker" and some_worker:
            self.workers[some_worker].pause = self.dice.randint(5, 60)
        elif kind == "suspect" and some_worker:
            self.server.lives.pop(some_worker, None)
        elif kind == "kill master" and self.masters:
            self.masters.pop()
            new_master(self)
        elif kind == "takeover" and self.masters:
            self.masters[-1].pause = self.dice.randint(5, 80)
            new_master(self)
        elif kind == "flush":
            self.server.flush()
            self.tokens.clear()
        elif kind == "rollback" and self.snapshots:
            self.roll_back(self.dice.choice(self.snapshots))

    def roll_back(self, snapshot: dict[str, Any]) -> None:
        """An earlier state is back, on a server whose clock is far behind: ids of entries begin
        below all cursors.
        """
        for name, value in copy.deepcopy(snapshot).items():
            setattr(self.server, name, value)
        self.tokens.clear()
        self.server.entries = 0
        for stream in self.server.results.values():
            stream[:] = [
                StreamEntry(str(number), entry.payload)
                for number, entry in enumerate(stream, start=self.server.entries + 1)
            ]
            self.server.entries += len(stream)

    def snapshot(self) -> None:
        kept = {name: value for name, value in vars(self.server).items() if name != "changed"}
        self.snapshots = [*self.snapshots[-4:], copy.deepcopy(kept)]

    def run(self, new_worker: Callable[[World], None], new_master: Callable[[World], None]) -> str:
        """Until the run ends: "right", "wrong", or "hung" when it does not end within the bound."""
        with (
            patch.object(memory_channel, "time", self.clock),
            patch.object(collector, "time", self.clock),
            patch.object(reissuer, "time", self.clock),
            patch.object(ledger, "time", self.clock),
        ):
            for _ in range(self.dice.randint(1, 3)):
                new_worker(self)
            new_master(self)
            while self.finished is None and not self.wrong and self.steps < self.bound:
                self.turn(new_worker, new_master)
        if self.wrong or (self.finished is not None and not self.ended_right(self.finished)):
            return "wrong"
        return "hung" if self.finished is None else "right"

    def ended_right(self, parameters: bytes) -> bool:
        return parameters == quiet()

    def turn(
        self, new_worker: Callable[[World], None], new_master: Callable[[World], None]
    ) -> None:
        self.steps += 1
        self.clock.now += TICK
        if self.steps % 16 == 0 and self.faults < FAULTS:
            self.snapshot()
        if self.unlucky(0.03):
            self.befall(new_worker, new_master)
        actors = [*self.workers.values(), *self.masters]
        actor = self.dice.choice(actors)
        if actor.pause:
            actor.pause -= 1
            return
        try:
            next(actor.steps)
        except EnvironmentFailure as error:
            self.wrong.append(f"the run was given up: {error}")
        except (StopIteration, FencedError) as ended:
            self.seen["fenced"] += isinstance(ended, FencedError)
            self.masters.remove(actor)  # workers never end by themselves
            if not self.masters and self.finished is None:
                new_master(self)
