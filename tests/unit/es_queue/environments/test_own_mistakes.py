"""What is wrong with a user's environment or objective, in one sentence that says what to write."""

from __future__ import annotations

import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from es_queue.config.run_config import RunConfig
from es_queue.environments.episode_rules import EpisodeRules
from es_queue.environments.factory import describe, open_environment
from es_queue.environments.interface import EnvironmentRequest
from es_queue.errors import EnvironmentFailure, EsQueueError
from es_queue.numerics.noise_table import NoiseTable
from es_queue.policies import make_policy
from es_queue.user_code import allowing
from tests.cases import each_case
from tests.memory import NOISE, quick_config
from workers.episode import EpisodeFailed, EpisodeSpec
from workers.heartbeat import EpisodeControl
from workers.player import Player, join


class Fine(gymnasium.Env[Any, Any]):
    observation_space = spaces.Box(-1.0, 1.0, (2,))
    action_space = spaces.Discrete(2)
    steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return np.zeros(2, np.float32), 1.0, self.steps > 8, False, {}


class FourValues(Fine):
    def step(self, action: Any) -> Any:
        return np.zeros(2, np.float32), 1.0, True, {}


class NoInfo(Fine):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(2, np.float32)


class RewardOfArray(Fine):
    def step(self, action: Any) -> Any:
        return np.zeros(2, np.float32), np.array([1.0]), True, False, {}


class RewardOfNoNumber(Fine):
    def step(self, action: Any) -> Any:
        observation, _, *rest = super().step(action)
        return observation, float("nan"), *rest


class CartPole(Fine):
    """Gymnasium has this name, too."""


class NoSpace(gymnasium.Env[Any, Any]):
    action_space = spaces.Discrete(2)


class Broken(Fine):
    def step(self, action: Any) -> Any:
        _, *rest = super().step(action)
        return np.array([0, np.nan if self.steps == 3 else 0], np.float32), *rest


class Leaves(Fine):
    def step(self, action: Any) -> Any:
        sys.exit()


class Sized(Fine):
    def __init__(self, size: int) -> None:
        self.size = size


class NoSeed(Fine):
    def reset(self) -> Any:  # type: ignore[override]
        return np.zeros(2, np.float32), {}


class Duck:
    """It has all but the base class."""


def three_values(vector: Any) -> Any:
    return 1.0, 2.0, 3.0


def noisy(vector: Any) -> float:
    return float(np.random.default_rng().random())


@each_case(
    "name, sentence",
    [
        ("FourValues", "step returned 4 values, but must return five values: observation, reward"),
        ("NoInfo", r"reset returned ndarray of shape \[2\], but must return \(observation, info\)"),
        ("RewardOfArray", r"the reward of a step is ndarray of shape \[1\].*: return float\("),
        ("Leaves", r"Leaves calls sys\.exit\(None\): raise an error in its place"),
        ("RewardOfNoNumber", "the reward of a step is nan: an environment must keep its numbers"),
        ("Sized", "argument: 'size'.*; --env-arg NAME=VALUE gives an argument"),
        ("NoSeed", r"argument 'seed'; define reset\(self, \*, seed=None, options=None\)"),
        ("NoSpace", "has no observation_space: set it to one of gymnasium.spaces"),
        ("Duck", "Duck is a class that does not extend gymnasium.Env: give one that does"),
    ],
)
def test_a_mistake_in_an_environment_is_named_with_what_to_write(name: str, sentence: str) -> None:
    with pytest.raises(EnvironmentFailure, match=sentence):
        describe(EnvironmentRequest(f"{__name__}:{name}"))


def test_a_class_of_a_module_is_not_an_id_of_gymnasium_with_its_name() -> None:
    assert describe(EnvironmentRequest(f"{__name__}:CartPole")).observation_size == 2


@each_case(
    "module, sentence",
    [
        ("my-env", r"'my-env' cannot be a module's name: rename the file, such as my_env\.py"),
        ("zoo.py", r"'zoo\.py' is a file: name its module, such as zoo,"),
        ("./zoo", r"'\./zoo' is a file: name its module, such as zoo,"),
    ],
)
def test_what_is_no_modules_name_is_refused_with_the_name_to_give(
    module: str, sentence: str
) -> None:
    for request in (
        EnvironmentRequest(f"{module}:Fine"),
        EnvironmentRequest(f"{module}:function", parameters=2),
        EnvironmentRequest("CartPole-v1", wrappers=(f"{module}:Wrapper",)),
    ):
        with pytest.raises(EsQueueError, match=sentence):
            describe(request)


class BrokenRows:
    """Episodes at once, of which the second yields a number that is not finite."""

    min_episodes, max_episodes, steps = 1, 8, 0

    def reset(self, seeds: Any) -> Any:
        self.steps = 0
        return np.zeros((len(seeds), 2), np.float32)

    def step(self, rows: Any, actions: Any) -> Any:
        self.steps += 1
        observations = np.zeros((len(rows), 2), np.float32)
        observations[rows == 1, 1] = np.nan if self.steps == 3 else 0
        return observations, np.ones(len(rows)), np.full(len(rows), self.steps > 8)

    def close(self) -> None: ...


def test_an_observation_that_is_not_finite_fails_its_episode_with_step_and_number() -> None:
    request = EnvironmentRequest(f"{__name__}:Broken")
    config, spec, env = RunConfig(env=request.id), describe(request), open_environment(request)
    policy = make_policy(config, spec.observation_size, spec.action)
    specs = [EpisodeSpec(np.ones(policy.size, np.float32), seed) for seed in range(3)]
    for envs, failing in ((None, [0, 1, 2]), (BrokenRows(), [1])):
        player = Player(config, spec, policy, env, envs)
        played = [*player.play_episodes(specs, 3, EpisodeRules(limit=20), None)]
        failed = [number for number, one in enumerate(played) if isinstance(one, EpisodeFailed)]
        assert failed == failing
        assert "step 3 yields an observation whose number 1 is nan" in str(played[1])


def test_an_objective_that_returns_other_values_or_does_not_repeat_itself_is_told_the_form() -> (
    None
):
    with pytest.raises(EnvironmentFailure, match="returned 3 values, but must return a number, or"):
        describe(EnvironmentRequest(f"{__name__}:three_values", parameters=2))
    allowed = allowing([__name__])
    with allowed, pytest.raises(EsQueueError, match="take seed as the second argument"):
        config = quick_config(env="", objective=f"{__name__}:noisy", parameters=2)
        join(config, EpisodeControl(), table=NoiseTable.in_memory(NOISE))


def test_a_wrapper_that_reads_the_step_limit_finds_it() -> None:
    wrapper = ("gymnasium.wrappers:TimeAwareObservation",)
    request = EnvironmentRequest("Pendulum-v1", wrappers=wrapper)
    env = open_environment(request)
    env.reset(1)
    for step in range(1, 4):
        assert env.step(np.zeros(1, np.float32))[0][-1] == step
