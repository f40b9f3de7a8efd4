"""Parts of a run for unit tests: a player over a scripted world, a task, a state that has
moved.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any, NamedTuple

import numpy as np

from es_queue.config.run_config import RunConfig
from es_queue.environments.interface import ActionSpec, EnvironmentSpec
from es_queue.numerics.fingerprint import bytes_digest
from es_queue.numerics.noise_table import NoiseTable
from es_queue.numerics.statistics import Moments
from es_queue.policies import make_policy
from es_queue.protocol.messages import Block, Task
from es_queue.slots import Span, spans_to_bytes
from es_queue.strategies.base import Batch
from master.loop.state import ENDING, Best, Counters, RunState
from master.run.setup import Setup, prepare_run
from tests.memory import quick_config
from tests.tiny import QUAD, Script, spec_of
from workers.player import Failure, Player

TABLE = NoiseTable.in_memory(2**14)
PUBLICATION = "{}.1-00000000"


def config_of(**values: Any) -> RunConfig:
    return RunConfig(
        **{
            "env": "Script",
            "seed": 3,
            "noise_size": TABLE.size,
            "strategy": "ars",
            "backend": "stock",
            **({} if "policy" in values else {"biases": False}),
            **values,
        }
    )


def built(kind: str, size: int, outputs: int, reference: Any = None, **values: Any) -> Any:
    """A built-in policy from float32[size] to ``outputs`` numbers."""
    action = ActionSpec("box", (outputs,), (-1.0,) * outputs, (1.0,) * outputs)
    return make_policy(RunConfig(policy=kind, **values), size, action, (), reference)


def player(world: Script, spec: EnvironmentSpec | None = None, **values: Any) -> Player:
    config, spec = config_of(**values), spec or spec_of()
    policy = make_policy(config, spec.observation_size, spec.action)
    return Player(config, spec, policy, world, noise=TABLE)


class Result(NamedTuple):
    """A slot's result; tuples have an entry for each individual that played."""

    slot: int
    fitness: tuple[float, ...]
    returns: tuple[float, ...]
    steps: tuple[int, ...]
    at_limit: tuple[int, ...]
    cut: tuple[int, ...]
    behaviour: bytes
    moments: tuple[tuple[int, bytes, bytes], ...]


class Played(NamedTuple):
    results: list[Result]
    failures: list[Failure]


def play_slots(
    who: Player, task: Task, published: np.ndarray, kind: int, start: int, stop: int
) -> Played:
    """Slots of a kind, as a worker plays them for a publication that has no others."""
    spans = [Span(kind, 0, stop)]
    who.open(replace(task, spans=spans_to_bytes(spans)), published)
    answer = who.play(Block(task.publication, kind, start, stop), 0)
    results = []
    for record in answer.results:
        if record["failure"]:
            continue
        row = int(record["row"])
        players = int(who.slots.table["players"][row])
        columns = [tuple(record[name][:players].tolist()) for name in Result._fields[1:6]]
        moments = tuple(
            (int(each["count"]), each["mean"].tobytes(), each["m2"].tobytes())
            for each in answer.moments[answer.moments["row"] == row]
        )
        behaviour = record["behaviour"][:players].tobytes()
        results.append(Result(row, *columns, behaviour, moments))
    return Played(results, list(answer.failures))


def policy_size(who: Player) -> int:
    """How many parameters the player's policy has."""
    return who.policy.size


def task_of(
    size: int,
    observations: int,
    generation: int = 4,
    sigma: float = 0.1,
    limit: int = 50,
    parameters: Any = None,
) -> tuple[Task, np.ndarray]:
    published = (
        np.zeros(size, np.float32) if parameters is None else np.asarray(parameters, np.float32)
    )
    mean, std = (
        np.full(observations, 0.5, "<f4").tobytes(),
        np.full(observations, 2, "<f4").tobytes(),
    )
    name = PUBLICATION.format(generation)
    return Task(
        name,
        sigma,
        limit,
        len(published),
        bytes_digest(published.tobytes()),
        mean,
        std,
        TABLE.digest,
        0.1,
    ), published


def setup_of(strategy: str, **values: Any) -> Setup:
    return prepare_run(
        quick_config(env=QUAD, strategy=strategy, population=8, noise_size=TABLE.size, **values),
        table=TABLE,
    )


def trained(setup: Setup, generations: int = 3) -> RunState:
    """A state that has moved: optimiser moments, statistics, counters and a best policy in it."""
    state, rng = setup.initial_state(), np.random.default_rng(2)
    for _ in range(generations):
        batch = Batch(TABLE, rng.integers(0, 1000, 4), rng.normal(size=(4, 2)))
        state = replace(
            state,
            generation=state.generation + 1,
            strategy=setup.strategy.learn(state.strategy, batch)[0],
        )
    best = Best(
        rng.normal(size=setup.policy.size).astype(np.float32),
        np.float32([1, 2, 3]),
        np.float32([4, 5, 6]),
        2,
        1 / 3,
        True,
    )
    counters = Counters(
        **{
            one.name: number / 3 if one.name == "seconds" else number
            for number, one in enumerate(fields(Counters), 2**40)
        }
    )
    moments = Moments(17, rng.normal(size=3), rng.normal(size=3) ** 2)
    return replace(
        state,
        moments=moments,
        best=best,
        counters=counters,
        stage=ENDING,
        reason="target",
        step_limit=4,
        confirm_mean=0.1 + 0.2,
        last_evaluation=-1e-300,
        reproducible=False,
    )


@contextmanager
def cores(count: int) -> Iterator[None]:
    """At most ``count`` of the host's cores for this process."""
    usable = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(sorted(usable)[:count]))
    try:
        yield
    finally:
        os.sched_setaffinity(0, usable)
