"""EnvPool against the lean walker, step by step and in whole runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from es_queue.environments.factory import describe, open_environment, resolve
from es_queue.environments.interface import EnvironmentRequest
from es_queue.environments.vector import EnvPoolVectorEnvironment
from es_queue.numerics.fingerprint import bytes_digest
from es_queue.numerics.noise_table import NoiseTable
from es_queue.protocol.messages import TRAIN, Task
from master.run.setup import prepare_run
from tests.memory import NOISE, MemoryServer, Sink, make_master, quick_config, run_ring, workers
from tests.parts import Played, play_slots
from workers.heartbeat import EpisodeControl
from workers.player import join

# --- the lean BipedalWalker against EnvPool: observations, float32 rewards and endings, equal to
# the bit


envpool = pytest.importorskip("envpool", reason="envpool is not installed")

Act = Callable[[NDArray[np.float32]], NDArray[np.float32]]

NORMAL, HARDCORE = "BipedalWalker-v3", "BipedalWalkerHardcore-v3"


def random_policy(generator: np.random.Generator) -> Act:
    return lambda observation: generator.uniform(-1.2, 1.2, 4).astype(np.float32)


def linear_policy(generator: np.random.Generator) -> Act:
    weights = generator.normal(size=(24, 4)).astype(np.float32)
    return lambda observation: np.tanh(observation @ weights)


def tiny_policy(generator: np.random.Generator) -> Act:
    """Actions about EnvPool's limit of 1e-8, below which an action has no sign."""
    values = np.array([0, 1e-9, -1e-9, 9.9e-9, 1.1e-8, -1e-40, 0.6, -0.6], np.float32)
    return lambda observation: generator.choice(values, 4)


def both(
    environment: str, seed: int, act: Act
) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
    """EnvPool's and our (observation, reward, over) of each step, from the reset to the end."""
    limit = describe(EnvironmentRequest(environment)).step_limit
    assert limit is not None
    pool: Any = envpool.make(environment, "gymnasium", num_envs=1, env_seed=[seed])
    world = open_environment(EnvironmentRequest(environment))
    seen = world.reset(seed)
    yield (pool.reset()[0][0], 0.0, False), (seen, 0.0, False)
    for _ in range(limit - 1):
        action = act(seen)
        theirs, reward, terminated, truncated, _ = pool.step(action[None])
        seen, gained, over = world.step(action)
        yield (
            (theirs[0], float(reward[0]), bool(terminated[0] or truncated[0])),
            (seen, gained, over),
        )
        if over:
            break
    pool.close()


@pytest.mark.parametrize("policy", [random_policy, linear_policy, tiny_policy])
@pytest.mark.parametrize("environment", [NORMAL, HARDCORE])
def test_every_step_is_envpools_to_the_bit(environment: str, policy: Any) -> None:
    for episode in range(4):
        generator = np.random.default_rng(episode)
        seed = int(generator.integers(2**31))
        for theirs, ours in both(environment, seed, policy(generator)):
            assert np.array_equal(theirs[0], ours[0])
            assert theirs[1:] == ours[1:]


# --- envPool and lean, episode by episode and run by run: the same bits


TABLE = NoiseTable.in_memory(NOISE)


def answered(
    backend: str, kind: int = TRAIN, stop: int = 50, limit: int = 1600, **values: Any
) -> tuple[Played, str]:
    """The answer of a worker on ``backend`` to a block of slots 0 … stop - 1, and its
    fingerprint.
    """
    config = prepare_run(
        quick_config(
            **{
                "env": NORMAL,
                "strategy": "ars",
                "population": 2 * stop,
                "backend": backend,
                **values,
            }
        ),
        table=TABLE,
    ).config
    joined = join(config, EpisodeControl(), table=TABLE)
    assert joined.backend == backend
    size = prepare_run(config, table=TABLE).policy.size
    published = np.random.default_rng(3).normal(0, 0.1, size).astype(np.float32)
    mean, std = np.full(24, 0.1, "<f4").tobytes(), np.full(24, 0.7, "<f4").tobytes()
    task = Task(
        "3.1-00000000",
        0.2,
        limit,
        size,
        bytes_digest(published.tobytes()),
        mean,
        std,
        TABLE.digest,
        1.0,
    )
    return play_slots(joined, task, published, kind, 0, stop), joined.numerics


@pytest.mark.parametrize("environment", [NORMAL, HARDCORE])
def test_a_hundred_whole_episodes_are_equal_in_observations_lengths_and_returns(
    environment: str,
) -> None:
    """All observations of each episode go into its moments, float64 to the bit."""
    lean, numerics = answered("lean", env=environment, policy="mlp", obs_sample=1.0)
    pool, theirs = answered("envpool", env=environment, policy="mlp", obs_sample=1.0)
    assert lean.results == pool.results and not lean.failures + pool.failures
    assert numerics == theirs
    assert sum(len(one.moments) for one in pool.results) == 100
    assert max(max(one.steps) for one in pool.results) == 1600


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"env": HARDCORE, "action_noise": 0.2},
        {"episodes": 2, "env_seeds": "slot"},
        {"patience": "30,0.2", "stall": "2:0.05:9", "reward_shift": 0.01, "reward_floor": "-1"},
        {"observe": "0-13", "obs_sample": 1.0},
        {"observe": "2,13,20", "obs_sample": 1.0, "stall": "22:0.5:9"},
    ],
)
def test_a_block_is_answered_alike_under_every_rule(values: dict[str, Any]) -> None:
    lean, numerics = answered("lean", stop=8, limit=120, **values)
    pool, theirs = answered("envpool", stop=8, limit=120, **values)
    assert lean.results == pool.results and numerics == theirs


@pytest.mark.parametrize(
    ("environment", "actions"),
    [("CartPole-v1", "discrete"), ("Pendulum-v1", "box"), ("LunarLanderContinuous-v3", "box")],
)
def test_other_ids_of_envpool_can_be_asked_for(environment: str, actions: str) -> None:
    request = EnvironmentRequest(environment, backend="envpool")
    spec = describe(request)
    assert (spec.backend, spec.action.kind) == ("envpool", actions)
    worlds = resolve(request).open_vector()
    assert worlds is not None and worlds.max_episodes == EnvPoolVectorEnvironment.max_episodes
    assert worlds.reset([1, 2]).shape == (2, spec.observation_size)
    config = quick_config(
        env=environment,
        backend="envpool",
        strategy="ars",
        population=4,
        step_limit="20",
        generations=2,
        eval_every=0,
        final_episodes=0,
    )
    assert run_ring(config)[0].state.generation == 2


RUN: dict[str, Any] = {
    "env": NORMAL,
    "strategy": "ars",
    "population": 48,
    "generations": 4,
    "step_limit": "60",
    "block": 6,
    "eval_every": 1,
    "eval_episodes": 12,
    "eval_step_limit": 60,
    "final_episodes": 24,
    "target_reward": "none",
}


def test_one_lean_and_one_envpool_worker_together_give_the_digest_of_each_alone() -> None:
    alone = {
        backend: run_ring(quick_config(**RUN, backend=backend))[0].digest
        for backend in ("lean", "envpool", "any")
    }
    config, server, sink = (
        prepare_run(quick_config(**RUN, backend="any"), table=TABLE).config,
        MemoryServer(),
        Sink(),
    )
    master = make_master(prepare_run(config, table=TABLE), server, sink)
    with (
        workers(server, replace(config, backend="lean"), TABLE),
        workers(server, replace(config, backend="envpool"), TABLE),
    ):
        mixed = master.train(prepare_run(config, table=TABLE).initial_state())
    assert {*alone.values(), mixed.digest} == {alone["lean"]}
    assert max(record["workers"] for record in sink.records) == 2
    assert not any("mixed fleet" in note for note in sink.notes)
