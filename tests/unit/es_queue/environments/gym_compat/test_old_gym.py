"""The old gym's own environments behind ``--backend gym``, on today's NumPy; and our ids in
``gym.make``.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from es_queue.environments.factory import (
    describe,
    open_environment,
)
from es_queue.environments.interface import EnvironmentRequest, format_parts
from es_queue.errors import EnvironmentFailure, UsageError

OWN_MODULE = '''
import gym
import numpy as np

class Aged(gym.Env):
    """As before gym 0.22: seed(), reset() of an observation, step() of four values."""
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, size=1.0):
        self.size, self.random = size, np.random.RandomState()

    def seed(self, seed=None):
        self.random = np.random.RandomState(seed)
        return [seed]

    def reset(self):
        self.steps = 0
        return self.look()

    def look(self):
        return (self.random.rand(2) * self.size).astype(np.float32)

    def step(self, action):
        self.steps += 1
        return self.look(), np.float32(1), np.bool8(self.steps == 5), {}

def words(environment):
    return "none"

class Parted(Aged):
    observation_space = gym.spaces.Dict({
        "where": gym.spaces.Box(-1, 1, (2,), np.float32),
        "held": gym.spaces.Tuple((gym.spaces.Discrete(3), gym.spaces.MultiBinary(2))),
    })

    def look(self):
        return {"where": super().look(), "held": (2, np.array([0, 1], np.int8))}

class Mute(gym.Env):
    observation_space = gym.spaces.Text(5)
    action_space = gym.spaces.Discrete(2)

for name in ("Aged-v0", "Parted-v0", "Mute-v0"):
    gym.envs.registration.registry.pop(name, None)
gym.register("Aged-v0", Aged, max_episode_steps=9, reward_threshold=4)
gym.register("Parted-v0", Parted, max_episode_steps=9)
gym.register("Mute-v0", Mute)
'''


@pytest.fixture(autouse=True)
def with_gym() -> None:
    pytest.importorskip("gym_notices", reason="the old gym is not installed")


@pytest.fixture
def aged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The id of a user's environment of the old kind."""
    (tmp_path / "aged_module.py").write_text(OWN_MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "aged_module", raising=False)
    return "aged_module:Aged-v0"


def asked(environment: str, **more: Any) -> EnvironmentRequest:
    return EnvironmentRequest(environment, backend="gym", **more)


def trace(
    request: EnvironmentRequest, seeds: tuple[int, ...] = (1, 2, 1), steps: int = 400
) -> list[str]:
    """A digest of each episode's observations and endings, under random actions."""
    world, action, digests = open_environment(request), describe(request).action, []
    for seed in seeds:
        generator, digest = np.random.default_rng(seed), hashlib.sha256(world.reset(seed).tobytes())
        for _ in range(steps):
            box = action.kind == "box"
            chosen = (
                generator.uniform(-1, 1, action.shape).astype(np.float32)
                if box
                else int(generator.integers(action.sizes[0]))
            )
            observation, _, over = world.step(chosen)
            digest.update(observation.tobytes() + bytes([over]))
            if over:
                break
        digests.append(digest.hexdigest())
    world.close()
    return digests


@pytest.mark.parametrize(
    "environment",
    [
        "BipedalWalker-v3",
        "BipedalWalkerHardcore-v2",
        "Marvin-v0",
    ],
)
def test_three_episodes_of_a_walker_are_gymnasiums_to_the_bit(environment: str) -> None:
    gym, stock = trace(asked(environment)), trace(EnvironmentRequest(environment, backend="stock"))
    assert gym == stock
    assert gym[0] == gym[2] != gym[1]


def test_an_environment_of_the_old_kind_plays(aged: str) -> None:
    spec = describe(asked(aged))
    assert (spec.id, spec.observation_size, spec.step_limit, spec.reward_threshold) == (
        aged,
        2,
        9,
        4.0,
    )
    digests = trace(asked(aged))
    assert digests[0] == digests[2] != digests[1], "seeded by seed(), for its reset takes none"
    world = open_environment(asked(aged, arguments=(("size", 0.0),)))
    assert not world.reset(3).any()
    assert [world.step(0)[1:] for _ in range(5)] == [(1.0, False)] * 4 + [(1.0, True)]


def test_what_cannot_be_had_of_gym_gives_a_sentence(aged: str) -> None:
    def failure(request: EnvironmentRequest) -> str:
        with pytest.raises((EnvironmentFailure, UsageError)) as caught:
            describe(request)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert failure(asked("BipedalWaker-v3")).startswith(
        "there is no environment 'BipedalWaker-v3': did you mean BipedalWalker"
    )
    assert failure(asked("so wrong")).startswith("there is no environment 'so wrong': ")
    assert "ModuleNotFoundError" in failure(asked("no_such_module:Own-v0"))
    assert "observations of aged_module:Mute-v0 are a Text" in failure(asked("aged_module:Mute-v0"))
    assert "does not accept the arguments colour='red'" in failure(
        asked(aged, arguments=(("colour", "red"),))
    )
    assert "cannot be created: TypeError: the wrappers do not return a gym environment" in failure(
        asked(aged, wrappers=("aged_module:words",))
    )
    assert "max_episode_steps is not allowed" in failure(
        asked("CartPole-v1", arguments=(("max_episode_steps", 5),))
    )
    assert "cannot be imported" in failure(asked("Hopper-v2")) or "cannot be created" in failure(
        asked("Hopper-v2")
    )


def test_observations_of_parts_are_flattened_in_gyms_own_order(aged: str) -> None:
    spec = describe(asked(aged.replace("Aged", "Parted")))
    assert format_parts(spec.observation) == "held.0 0-2, held.1 3-4, where 5-6"
    world = open_environment(asked(aged.replace("Aged", "Parted")))
    first = world.reset(1)
    assert first.tolist()[:5] == [0, 0, 1, 0, 1] and np.array_equal(
        first[5:], open_environment(asked(aged)).reset(1)
    )


def test_who_forgets_the_back_end_is_told_of_it(aged: str) -> None:
    with pytest.raises(
        EnvironmentFailure,
        match="Gymnasium does not know 'Aged-v0', but the old gym does: use --backend gym",
    ):
        describe(EnvironmentRequest(aged))


def in_a_new_process(program: str) -> str:
    """Its output, whatever it says on either stream."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_gym_makes_our_ids_by_itself() -> None:
    said = in_a_new_process(
        "import gym\n"
        "for name in ('BipedalWalker-v2', 'BipedalWalkerHardcore-v2', 'Marvin-v0'):\n"
        "    env = gym.make(name)\n"
        "    env.reset(seed=1); print(len(env.step(env.action_space.sample())), "
        "env.spec.max_episode_steps, isinstance(env.unwrapped, gym.Env))\n"
    )
    assert said.count("5 1600 True") == said.count("5 2000 True") == said.count("5 None True") == 1
