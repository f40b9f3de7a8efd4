"""How Gymnasium's own environments play: observations, actions, endings, independent
episodes.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from es_queue.environments.factory import open_environment
from es_queue.environments.interface import EnvironmentRequest, make_encoder
from es_queue.environments.stock import observation_parts
from tests.cases import each_case

CLEAN = (
    "CartPole-v1",
    "Acrobot-v1",
    "MountainCar-v0",
    "MountainCarContinuous-v0",
    "Pendulum-v1",
    "FrozenLake-v1",
    "LunarLander-v3",
    "LunarLanderContinuous-v2",
)

OWN_MODULE = """
import gymnasium
import numpy as np
from gymnasium import spaces

class Ageing(gymnasium.Env):
    observation_space = spaces.Box(0, 100, (1,), np.float32)
    action_space = spaces.Discrete(2)
    made = closed = 0

    def __init__(self, render_mode=None):
        type(self).made += 1
        self.episodes = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episodes += 1
        self.steps = 0
        self.seen = np.array([self.episodes], np.float32)
        return self.seen, {}

    def step(self, action):
        self.steps += 1
        self.seen[0] = 10 + self.steps
        return self.seen, np.float32(0.1), self.steps == 9, self.steps == 3 and action == 1, {}

    def close(self):
        type(self).closed += 1

class Doubled(gymnasium.RewardWrapper):
    def reward(self, reward):
        return 2 * float(reward)

class Shifted(gymnasium.RewardWrapper):
    def reward(self, reward):
        return reward + 1

gymnasium.registry.pop("Ageing-v0", None)
gymnasium.register("Ageing-v0", Ageing, max_episode_steps=2)
"""


@pytest.fixture
def ageing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An environment that counts its episodes, gives one array again and again, and has a limit of
    2.
    """
    (tmp_path / "ageing_module.py").write_text(OWN_MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "ageing_module", raising=False)
    return "ageing_module:Ageing-v0"


def play(world: Any, seed: int, actions: list[Any]) -> list[tuple[bytes, float, bool]]:
    """All that one episode yields, as bytes and numbers that can be compared."""
    outcomes = [(world.reset(seed).tobytes(), 0.0, False)]
    for action in actions:
        observation, reward, over = world.step(action)
        outcomes.append((observation.tobytes(), reward, over))
        if over:
            break
    return outcomes


def some_actions(environment: str, count: int, seed: int) -> list[Any]:
    space = gymnasium.make(gymnasium.registry[environment]).action_space
    space.seed(seed)
    drawn = [space.sample() for _ in range(count)]
    return [int(a) if isinstance(space, spaces.Discrete) else a for a in drawn]


@each_case("environment", CLEAN)
def test_an_episode_does_not_depend_on_those_before_it(environment: str) -> None:
    request = EnvironmentRequest(environment)
    used, actions = open_environment(request), some_actions(environment, 120, 5)
    for seed in (1, 2, 3):
        play(used, seed, some_actions(environment, 60, seed))
    assert play(used, 4, actions) == play(open_environment(request), 4, actions)


@each_case("environment", ["CartPole-v1", "Pendulum-v1", "LunarLanderContinuous-v3"])
def test_a_stock_world_plays_what_gymnasium_plays(environment: str) -> None:
    plain, world = (
        gymnasium.make(gymnasium.registry[environment]),
        open_environment(EnvironmentRequest(environment)),
    )
    assert np.array_equal(world.reset(3), np.asarray(plain.reset(seed=3)[0], np.float32))
    for action in some_actions(environment, 60, 1):
        observation, reward, terminated, _, _ = plain.step(action)
        seen, gained, over = world.step(action)
        assert np.array_equal(seen, observation.astype(np.float32))
        assert (gained, over) == (float(reward), terminated)
        assert (seen.dtype, type(gained), type(over)) == (np.float32, float, bool)
        if over:
            break


def test_a_users_environment_is_made_anew_for_each_episode(ageing: str) -> None:
    world = open_environment(EnvironmentRequest(ageing))
    assert [world.reset(seed)[0] for seed in range(3)] == [1, 1, 1]
    world.close()
    kind = type(gymnasium.make(ageing).unwrapped)
    assert (kind.made, kind.closed) == (4, 3)


def test_an_episode_ends_when_the_environment_ends_or_truncates_it(ageing: str) -> None:
    world = open_environment(EnvironmentRequest(ageing))
    lengths = [len(play(world, 0, [action] * 20)) - 1 for action in (0, 1)]
    assert lengths == [9, 3]


@each_case(
    ("space", "observation", "flat"),
    [
        (spaces.Box(0, 255, (2, 2), np.int64), np.array([[1, 2], [3, 4]]), [1, 2, 3, 4]),
        (
            spaces.Box(0, 255, (2, 2), np.uint8),
            np.array([[0, 51], [255, 0]], np.uint8),
            [0, np.float32(0.2), 1, 0],
        ),
        (spaces.Discrete(3), np.int64(2), [0, 0, 1]),
        (spaces.Discrete(3, start=5), 5, [1, 0, 0]),
        (spaces.MultiDiscrete([2, 3]), np.array([1, 0]), [0, 1, 1, 0, 0]),
        (spaces.MultiDiscrete([2, 3], start=[4, 7]), np.array([4, 9]), [1, 0, 0, 0, 1]),
        (spaces.MultiBinary(3), np.array([1, 0, 1], np.int8), [1, 0, 1]),
    ],
)
def test_observations_become_flat_float32(
    space: spaces.Space[Any], observation: Any, flat: list[float]
) -> None:
    encoded = make_encoder(observation_parts(space, "Own-v0"))(observation)
    assert (encoded.tolist(), encoded.dtype) == (flat, np.float32)
