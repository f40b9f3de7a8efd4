"""A small world that is played step by step: the master and the workers are the product's own, over
the store in memory and a clock that moves only when the world says so.

Each runs in a thread of its own, and exactly one thread runs at a time: before each call to the
store it hands back the turn. What may befall them is drawn from a seed, so a schedule repeats
itself.
"""

from __future__ import annotations

import copy
import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, cast
from unittest.mock import patch

import numpy as np

from es_queue.errors import FencedError
from es_queue.numerics.noise_table import NoiseTable
from es_queue.protocol.keys import Clocks
from es_queue.protocol.messages import Block, Task, publication_generation, token_number
from es_queue.slots import EPISODE_FAILED, Slots, spans_to_bytes
from master.loop import checkpoint
from master.loop.config_timeline import ConfigTimeline, ControlInbox
from master.loop.listeners import Generation, Listener, Outcome, Report
from master.loop.loop import Master
from master.loop.state import ENDING, RunState, vector_digest
from master.loop.workers import Workers
from master.run.setup import Setup, prepare_run
from tests.memory import MemoryMasterStore, MemoryServer, MemoryWorkerStore, quick_config, run_ring
from tests.tiny import QUAD
from workers.heartbeat import EpisodeControl
from workers.player import Player, join
from workers.serving import Service

TICK, BEAT_TTL, LEASE = 0.01, 1.0, 1.0
CLOCKS = Clocks(
    lease=LEASE,
    beat_ttl=BEAT_TTL,
    renew=20 * TICK,
    reconcile=20 * TICK,
    overdue=1.5,
    collect_wait=0.0,
)
STEPS, FAULTS, FAILURES_A_SLOT = 8_000, 14, 2
WORKER_FAULTS = ("kill worker", "pause worker", "suspect")
KINDS_OF_FAULT = (*WORKER_FAULTS, "kill master", "takeover", "flush", "rollback")
#: Calls of which the world says whether a replaced master's was accepted.
FENCED = ("open", "issue", "look", "renew")
#: What is sent again after its reply was lost, and what never is (rule 14).
TWICE, ONCE = (*FENCED, "answer", "drop"), ("claim", "release", "report")

TABLE = NoiseTable.in_memory(2**14)
PLAIN = {
    "env": QUAD,
    "population": 8,
    "generations": 3,
    "eval_every": 2,
    "eval_episodes": 2,
    "final_episodes": 2,
    "target_reward": "none",
    "noise_size": TABLE.size,
    "block": 2,
}


@dataclass(frozen=True)
class Rules:
    """schedule: "sync" or "async"; own_claims: a worker looks at its own claims first (rule 5);
    failures: episodes raise now and then
    """

    schedule: str = "sync"
    own_claims: bool = True
    failures: bool = True
    faults: tuple[str, ...] = KINDS_OF_FAULT


@cache
def setup_of(schedule: str) -> tuple[Setup, Player]:
    more = {"schedule": "async", "max_lag": 2} if schedule == "async" else {}
    setup = prepare_run(quick_config(**{**PLAIN, **more}), table=TABLE)
    return setup, join(setup.config, EpisodeControl(), table=TABLE)


@cache
def quiet() -> Outcome:
    """What the synchronous run ends with when nothing fails."""
    return run_ring(setup_of("sync")[0].config)[0]


class Dead(BaseException):
    """The process was killed: it does nothing more."""


class Actor:
    """A master or a worker, in a thread that runs only while it has the turn. pause: turns that it
    lets pass.
    """

    def __init__(self, world: World, name: str, work: Callable[[Actor], None]) -> None:
        self.world, self.name, self.pause = world, name, 0
        self.is_dead = self.is_done = False
        self.error: BaseException | None = None
        self._work, self._go = work, threading.Semaphore(0)
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        self._go.acquire()
        try:
            if not self.is_dead:
                self._work(self)
        except Dead:
            pass
        except BaseException as error:
            self.error = error
        self.is_done = True
        self.world.back.release()

    def turn(self) -> None:
        """Called by the world: let it run until it hands the turn back."""
        self._go.release()
        self.world.back.acquire()

    def rest(self) -> None:
        """Called by the actor: hand the turn back, and wait for the next one."""
        if self.is_dead:
            raise Dead
        self.world.back.release()
        self._go.acquire()
        if self.is_dead:
            raise Dead

    def kill(self) -> None:
        self.is_dead = True
        if not self.is_done:
            self.turn()


class Line:
    """A store as an actor reaches it: each call is a step, and its reply may be lost."""

    def __init__(self, actor: Actor, store: Any) -> None:
        self._actor, self._store, self._world = actor, store, actor.world

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        is_call = callable(found) and name != "retry"
        return partial(self._call, name, found) if is_call else found

    def _call(self, name: str, call: Callable[..., Any], *words: Any, **more: Any) -> Any:
        world = self._world
        self._actor.rest()
        if name == "wait":
            return None
        if name == "read":
            return list(call(*words))
        if name == "held_blocks":
            self._store.beat({"host": self._actor.name, "numerics": "1" * 32}, BEAT_TTL)
            if not world.rules.own_claims:
                return []
        if name == "claim":
            words = (0.0,)
        if name == "answer":
            words = world.with_failures(*words)
        reply = call(*words, **more)
        self._note(name, words)
        if name in TWICE + ONCE and world.is_unlucky(0.06):
            world.seen["reply lost"] += 1
            for _ in range(world.dice.randrange(12)):
                self._actor.rest()
            if name == "claim":
                world.seen["claim lost"] += 1
                return next(iter(self.held_blocks()), None)
            if name in TWICE:
                reply = call(*words, **more)
                self._note(name, words)
        return reply

    def _note(self, name: str, words: tuple[Any, ...]) -> None:
        self._world.seen[name] += 1
        if name in FENCED:
            self._world.note_accepted(name, words[0])


class Watch(Listener):
    """Writes checkpoints to the world's disk, and checks what was learnt from."""

    def __init__(self, world: World, token: str, used: frozenset[tuple[str, int]]) -> None:
        self._world, self._token, self._used = world, token, used

    def on_published(self, generation: Generation) -> None:
        world, number = self._world, generation.state.generation
        world.published[generation.task.publication] = (generation.task, generation.vector)
        world.used[generation.checkpoint] = self._used
        if number > world.disk[0]:
            world.disk = (number, token_number(self._token), generation.checkpoint)

    def on_generation(self, report: Report) -> None:
        if not report.has_learnt:
            return
        world, chosen = self._world, report.chosen
        for slots, rows in zip(chosen.tables, chosen.trained, strict=True):
            lag = report.generation.state.generation - slots.generation
            world.seen["late results"] += len(rows) if lag else 0
            names = {(slots.publication, row) for row in rows.tolist()}
            if names & self._used or lag > max(0, slots.config.max_lag):
                world.wrong.append(f"{sorted(names & self._used)} count twice, or too late ({lag})")
            self._used |= names
            if world.rules.schedule == "async":
                world.compare(slots, rows.tolist())


@dataclass
class World:
    seed: int
    rules: Rules = Rules()
    bound: int = STEPS
    server: MemoryServer = field(default_factory=MemoryServer)

    def __post_init__(self) -> None:
        self.dice, self.now, self.steps = random.Random(self.seed), 1000.0, 0
        self.back = threading.Semaphore(0)
        self.setup, self.player = setup_of(self.rules.schedule)
        self.faults = self.counter = 0
        self.disk = (-1, 0, b"")  # generation, number of the token, checkpoint
        self.snapshots: list[dict[str, Any]] = []
        self.workers: dict[str, Actor] = {}
        self.masters: list[Actor] = []
        self.tokens: list[str] = []  # as they were raised since the server last lost something
        self.failures = Counter[tuple[int, int]]()
        self.published: dict[str, tuple[Task, Any]] = {}
        self.used: dict[bytes, frozenset[tuple[str, int]]] = {}
        self.finished: Outcome | None = None
        self.wrong: list[str] = []
        self.seen = Counter[str]()  # what happened how often

    # --- who acts

    def new_worker(self) -> None:
        self.counter += 1
        name = f"host-1-{self.counter:06x}"

        def work(actor: Actor) -> None:
            store = Line(actor, MemoryWorkerStore(self.server, name))
            Service(cast(Any, store), copy.copy(self.player), CLOCKS).run()

        self.workers[name] = Actor(self, name, work)

    def new_master(self) -> None:
        self.counter += 1
        number = self.counter
        self.masters.append(Actor(self, f"master {number}", partial(self._lead, number)))

    def _lead(self, number: int, actor: Actor) -> None:
        """Raise the token, then read the newest checkpoint (rule 11), then train."""
        store: Any = Line(actor, MemoryMasterStore(self.server))
        name, (_, floor, on_disk), stored = f"master {number}", self.disk, store.epoch()
        token = f"{1 + max(floor, token_number(stored) if stored else 0)}-{number:08x}"
        store.renew(token, name, LEASE)
        data, state = self._newest(store.checkpoint(), on_disk)
        adopted = self._adoptable(store, token, name, state) if data else None
        timeline = ConfigTimeline(self.setup.learner)
        master = Master(
            *(timeline, store, token, name, TABLE.digest, CLOCKS),
            *(Workers(store, CLOCKS), ControlInbox(store, timeline.refusal)),
            listeners=[Watch(self, token, self.used.get(data, frozenset()))],
        )
        outcome = master.train(state, adopted)
        store.renew(token, name, LEASE)  # a replaced master does not end the run
        self.finished = outcome

    def _newest(self, *saved: bytes | None) -> tuple[bytes, RunState]:
        found = [(data, checkpoint.decode(data)[1]) for data in saved if data]
        return max(
            found,
            key=lambda each: each[1].generation,
            default=(b"", self.setup.initial_state()),
        )

    def _adoptable(self, store: Any, token: str, name: str, state: RunState) -> Task | None:
        raw, look = store.task(), store.look(token, name, LEASE, {}, grace=True)
        task = Task.decode(raw) if raw else None
        vector = self.setup.strategy.published(state.strategy)
        fits = task is not None and (
            task.generation == state.generation
            and state.stage != ENDING
            and look.publication == task.publication
            and task.digest == vector_digest(vector)
        )
        return task if fits else None

    # --- what actors ask of the world

    def note_accepted(self, verb: str, token: str) -> None:
        """The fence: no write of a replaced master may be accepted."""
        if token in self.tokens[:-1]:
            self.wrong.append(f"{verb} of the replaced master {token} was accepted")
        if token not in self.tokens:
            self.tokens.append(token)

    def is_unlucky(self, chance: float) -> bool:
        if self.faults < FAULTS and self.dice.random() < chance:
            self.faults += 1
            return True
        return False

    def with_failures(self, block: Block, results: bytes, moments: bytes) -> tuple[Any, ...]:
        """An episode may raise now and then; so seldom that no slot has failed for good."""
        table = np.frombuffer(results, self.player.shape.result).copy()
        table["seconds"] = self.dice.random()  # no two attempts take equally long
        lost = []
        for record in table:
            key = (publication_generation(block.publication), int(record["row"]))
            if self.rules.failures and self.failures[key] < FAILURES_A_SLOT:
                if not self.is_unlucky(0.04):
                    continue
                self.failures[key] += 1
                self.seen["episode failed"] += 1
                record["failure"] = EPISODE_FAILED
                record["fitness"] = record["returns"] = np.nan
                lost.append(key[1])
        kept = np.frombuffer(moments, self.player.shape.moments)
        kept = kept[~np.isin(kept["row"], lost)]
        return block, table.tobytes(), kept.tobytes()

    def compare(self, slots: Slots, rows: list[int]) -> None:
        """Each result must be of the parameters of its own publication."""
        task, vector = self.published[slots.publication]
        player = copy.copy(self.player)
        player.open(replace(task, spans=spans_to_bytes(slots.spans)), vector.astype(np.float32))
        for row in rows:
            kind = int(slots.table["kind"][row])
            answer = player.play(Block(slots.publication, kind, row, row + 1), 0)
            if answer.results["fitness"].tolist() != slots.table["fitness"][[row]].tolist():
                self.wrong.append(f"a foreign value was counted for {row} of {slots.publication}")

    # --- what happens to them

    def befall(self) -> None:
        """One fault, of a kind that is possible now."""
        kind = self.dice.choice(self.rules.faults)
        self.seen[kind] += 1
        name = self.dice.choice(sorted(self.workers)) if self.workers else ""
        if kind == "kill worker" and name:
            self.workers.pop(name).kill()
            self.new_worker()
        elif kind == "pause worker" and name:
            self.workers[name].pause = self.dice.randint(5, 60)
        elif kind == "suspect" and name:
            self.server.lives.pop(name, None)
        elif kind == "kill master" and self.masters:
            self.masters.pop().kill()
            self.new_master()
        elif kind == "takeover" and self.masters:
            self.masters[-1].pause = self.dice.randint(5, 80)
            self.new_master()
        elif kind == "flush":
            self.server.flush()
            self.tokens.clear()
        elif kind == "rollback" and self.snapshots:
            for key, value in copy.deepcopy(self.dice.choice(self.snapshots)).items():
                setattr(self.server, key, value)
            self.tokens.clear()

    def run(self) -> str:
        """Until the run ends: "right", "wrong", or "hung" if it does not end within the bound."""
        try:
            with (
                patch("time.monotonic", lambda: self.now),
                patch("time.time", lambda: self.now),
            ):
                for _ in range(self.dice.randint(1, 3)):
                    self.new_worker()
                self.new_master()
                while self.finished is None and not self.wrong and self.steps < self.bound:
                    self._turn()
        finally:
            for actor in (*self.workers.values(), *self.masters):
                actor.kill()
        if self.finished is None and not self.wrong:
            return "hung"
        return "right" if not self.wrong and self._has_ended_right() else "wrong"

    def _has_ended_right(self) -> bool:
        outcome = self.finished
        assert outcome is not None
        if self.rules.schedule == "async":  # what comes first decides what is learnt
            return True
        return (outcome.digest, outcome.evaluation) == (quiet().digest, quiet().evaluation)

    def _turn(self) -> None:
        self.steps += 1
        self.now += TICK
        if self.steps % 16 == 0 and self.faults < FAULTS:
            kept = {name: value for name, value in vars(self.server).items() if name != "changed"}
            self.snapshots = [*self.snapshots[-4:], copy.deepcopy(kept)]
        if self.is_unlucky(0.015):
            self.befall()
        actor = self.dice.choice([*self.workers.values(), *self.masters])
        if actor.pause:
            actor.pause -= 1
            return
        actor.turn()
        if not actor.is_done:
            return
        if actor.error is not None and not isinstance(actor.error, FencedError):
            self.wrong.append(f"{actor.name} ended: {actor.error!r}")
            return
        self.seen["fenced"] += isinstance(actor.error, FencedError)
        self.masters.remove(actor)  # workers never end by themselves
        if not self.masters and self.finished is None:
            self.new_master()
