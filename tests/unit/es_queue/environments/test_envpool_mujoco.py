"""EnvPool's MuJoCo bodies against Gymnasium's: starts, observations, rewards and endings.

Their starts come from generators of their own, so Gymnasium's body is put where EnvPool's is before
each step.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from es_queue.environments.factory import open_vector_environment
from es_queue.environments.interface import EnvironmentRequest
from es_queue.numerics.arrays import Doubles
from tests.cases import each_case

envpool = pytest.importorskip("envpool", reason="envpool is not installed")
pytest.importorskip("mujoco", reason="MuJoCo is not installed")

#: How many numbers of the pose an observation leaves out: the place in the world. And where it cuts
#: off velocities.
BODIES = {
    "HalfCheetah-v5": (1, np.inf),
    "Hopper-v5": (1, 10.0),
    "Swimmer-v5": (2, np.inf),
    "Walker2d-v5": (1, 10.0),
}
EPISODES, STEPS = 4, 150


@pytest.fixture(autouse=True)
def beside_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MuJoCo writes its warnings into a file of the working directory."""
    monkeypatch.chdir(tmp_path)


def put_where(body: Any, observation: Doubles, hidden: int, limit: float) -> None:
    """Give Gymnasium's ``body`` the pose and velocities of EnvPool's, which it is close to, unless
    a velocity is cut off.
    """
    seen = body.model.nq - hidden
    velocities = observation[seen : seen + body.model.nv]
    if np.abs(velocities).max() < limit:
        pose = np.concatenate([body.data.qpos[:hidden], observation[:seen]])
        body.set_state(pose, velocities)


def both(environment: str, episode: int) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
    """EnvPool's and Gymnasium's (observation, reward, over) after each action of an episode: random
    ones, or those of a random linear policy.
    """
    generator = np.random.default_rng(episode)
    body: Any = gymnasium.make(environment).unwrapped
    body.reset(seed=episode)
    pool: Any = envpool.make(environment, "gymnasium", num_envs=1, env_seed=[episode])
    seen = pool.reset()[0][0]
    size, high = body.action_space.shape[0], body.action_space.high
    weights = generator.normal(size=(len(seen), size))
    for _ in range(STEPS):
        put_where(body, seen, *BODIES[environment])
        raw = generator.uniform(-1, 1, size) if episode % 2 else np.tanh(seen @ weights)
        action = (raw * high).astype(np.float32)
        theirs, reward, terminated, _, _ = pool.step(action[None].astype(np.float64))
        ours, gained, over = body.step(action)[:3]
        seen = theirs[0]
        yield (seen, float(reward[0]), bool(terminated[0])), (ours, float(gained), bool(over))
        if terminated[0]:
            break
    pool.close()
    body.close()


@each_case("environment", BODIES)
def test_every_step_of_a_body_is_gymnasiums(environment: str) -> None:
    for episode in range(EPISODES):
        for theirs, ours in both(environment, episode):
            np.testing.assert_allclose(theirs[0], ours[0], rtol=1e-4, atol=1e-5)
            assert theirs[1] == pytest.approx(ours[1], rel=1e-4, abs=1e-5)
            assert theirs[2] == ours[2]


@each_case("environment", BODIES)
def test_starts_of_a_body_differ_by_seed_and_spread_as_gymnasiums(environment: str) -> None:
    count = 200
    pool = open_vector_environment(EnvironmentRequest(environment, backend="envpool"))
    assert pool is not None
    theirs = pool.reset(range(count))
    np.testing.assert_array_equal(pool.reset([7]), theirs[7:8])
    pool.close()
    body = gymnasium.make(environment)
    ours = np.stack([body.reset(seed=seed)[0] for seed in range(count)])
    body.close()
    assert len(np.unique(theirs, axis=0)) == count
    np.testing.assert_allclose(theirs.std(axis=0), ours.std(axis=0), rtol=0.25)
    error = ours.std(axis=0) * (2 / count) ** 0.5
    assert (np.abs(theirs.mean(axis=0) - ours.mean(axis=0)) < 4 * error).all()
