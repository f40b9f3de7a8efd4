"""Parts of a run for unit tests: an evaluator over a scripted world, a task, a state that has
moved.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np

from es_queue.config.run_config import RunConfig
from es_queue.environments.spaces import EnvironmentSpec
from es_queue.environments.stock import StockEnvironment
from es_queue.numerics.fingerprint import bytes_digest
from es_queue.numerics.noise_table import NoiseTable
from es_queue.numerics.normalization import RunningMoments
from es_queue.policies import make_policy
from es_queue.protocol.messages import Task
from es_queue.strategies import make_strategy
from es_queue.strategies.base import Batch
from master.loop.state import FINAL, Best, Counters, RunState
from master.run.setup import Setup, prepare_run
from tests.ring import quick_config
from tests.tiny import QUAD, Script, spec_of
from workers.episode import EpisodeControl
from workers.slots import Evaluator, RunParts

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
            **values,
        }
    )


def evaluator(world: Script, spec: EnvironmentSpec | None = None, **values: Any) -> Evaluator:
    config, spec = config_of(**values), spec or spec_of()
    policy = make_policy(config, spec.observation_size, spec.action)
    parts = RunParts(config, spec, policy, make_strategy(config, policy.size), world)
    return Evaluator(parts, TABLE, EpisodeControl())


def wrapped_environment(world: StockEnvironment) -> Any:
    """The environment of the other library that this one steps."""
    return world._environment


def policy_size(who: Evaluator) -> int:
    """How many parameters the evaluator's policy has."""
    return who.parts.policy.size


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
    moments = RunningMoments(17, rng.normal(size=3), rng.normal(size=3) ** 2)
    return replace(
        state,
        moments=moments,
        best=best,
        counters=counters,
        stage=FINAL,
        reason="target",
        step_limit=4,
        confirm_mean=0.1 + 0.2,
        last_evaluation=-1e-300,
        reproducible=False,
    )
