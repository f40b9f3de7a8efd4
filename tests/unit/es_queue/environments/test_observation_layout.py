"""Observations made of parts: Dict and Tuple, nested, become one vector whose parts have names, and
a checkpoint takes them as they are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from es_queue.environments.factory import describe, open_environment
from es_queue.environments.interface import (
    EnvironmentRequest,
    flatten,
    format_parts,
    make_encoder,
    parts_from_json,
)
from es_queue.environments.stock import observation_parts
from es_queue.errors import EnvironmentFailure, UsageError
from es_queue.policies.saved_policy import load_policy
from master.loop.checkpoint import Checkpoints
from tests.cases import each_case
from tests.memory import quick_config, run_ring

ARM = spaces.Dict({"position": spaces.Box(-1, 1, (2, 2)), "gripper": spaces.Discrete(3, start=1)})
SPACE = spaces.Dict(
    {
        "arm": ARM,
        "touch": spaces.MultiBinary(2),
        "clocks": spaces.Tuple([spaces.Discrete(2), spaces.MultiDiscrete([2, 3])]),
    }
)
SEEN = {
    "arm": {"position": np.array([[1, 2], [3, 4]]), "gripper": np.int64(2)},
    "touch": np.array([1, 0], np.int8),
    "clocks": (1, np.array([0, 2])),
}
FLAT = [0, 1, 0, 1, 2, 3, 4, 0, 1, 1, 0, 0, 0, 1, 1, 0]
GATHER = "tests.unit.es_queue.environments.test_observation_layout:Gather-v0"


class Gather(gymnasium.Env[Any, int]):
    """Pays for the action that the flag among the parts of its observation names."""

    observation_space = spaces.Dict(
        {"flag": spaces.Discrete(2), "noise": spaces.Box(-1, 1, (2, 2), np.float32)}
    )
    action_space = spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._seen(), {}

    def _seen(self) -> Any:
        self._flag = int(self.np_random.integers(2))
        return {
            "noise": self.np_random.uniform(-1, 1, (2, 2)).astype(np.float32),
            "flag": self._flag,
        }

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        paid = float(action == self._flag)
        return self._seen(), paid, False, False, {}


if "Gather-v0" not in gymnasium.registry:
    gymnasium.register("Gather-v0", Gather, max_episode_steps=10)


def test_nested_parts_become_one_vector_in_the_spaces_order() -> None:
    encode = make_encoder(observation_parts(SPACE, "Own-v0"))
    found = encode(SEEN)
    assert (found.tolist(), found.dtype) == (FLAT, np.float32)
    assert encode(SEEN) is not encode(SEEN), "an observation is the caller's to keep"


def planted(*path: Any, **values: Any) -> dict[str, Any]:
    return {"path": path, "size": 1, "choices": [], "starts": [], **values}


@each_case(
    "values",
    [
        3,
        [3],
        [planted(size=0)],
        [planted(size=-1), planted("a", size=5)],
        [planted(size=2**40)],
        [planted(size=1.0)],
        [planted(size=3, choices=[2], starts=[0])],
        [planted(size=0, choices=[3, -3], starts=[0, 0])],
        [planted("a"), planted("a")],
        [planted("a"), planted("a", "b")],
        [planted("a"), planted(1)],
        [planted(1)],
        [planted(["a"])],
        [planted(*["x"] * 20_000)],
    ],
)
def test_planted_parts_are_refused(values: Any) -> None:
    with pytest.raises(ValueError, match="observation"):
        parts_from_json(values)


@each_case(
    ("space", "sentence"),
    [
        (
            spaces.Dict({"a": spaces.Dict({"b": spaces.Text(3)})}),
            "the observations a.b of Own-v0 are a Text",
        ),
        (
            spaces.Tuple([spaces.Discrete(2), spaces.Sequence(spaces.Discrete(2))]),
            "the observations 1 of Own-v0 are a Sequence",
        ),
        (spaces.Dict({}), "the observations of Own-v0 are a Dict"),
        (spaces.Dict({"a\nb": spaces.Discrete(2)}), "have a part named"),
    ],
)
def test_parts_that_no_policy_can_observe_are_refused_by_name(space: Any, sentence: str) -> None:
    with pytest.raises(EnvironmentFailure, match=sentence):
        observation_parts(space, "Own-v0")


def test_an_environment_is_described_and_played_with_its_parts() -> None:
    request = EnvironmentRequest(GATHER)
    spec = describe(request)
    assert spec.observation_size == 6
    assert format_parts(spec.observation) == "flag 0-1, noise 2-5"
    assert describe(EnvironmentRequest("CartPole-v1")).observation == ()
    world = open_environment(request)
    assert world.reset(3).shape == world.step(1)[0].shape == (6,)
    with pytest.raises(UsageError, match="envpool"):
        describe(EnvironmentRequest(GATHER, backend="envpool"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gather")
    config = quick_config(
        env=GATHER,
        generations=25,
        population=32,
        eval_every=5,
        eval_episodes=5,
        final_episodes=5,
        target_reward="none",
    )
    ended, sink = run_ring(config, 2, checkpoints=Checkpoints(folder))
    assert (
        ended.state.reason == "generations"
        and max(one["eval_mean"] or 0 for one in sink.records) > 8
    )
    return folder / "checkpoints" / "best.npz"


def test_a_loaded_policy_takes_the_very_mapping_that_the_environment_yields(trained: Path) -> None:
    policy = load_policy(trained)
    environment = Gather()
    seen, paid = environment.reset(seed=8)[0], 0.0
    for _ in range(40):
        seen, reward, *_ = environment.step(policy.act(seen))
        paid += reward
    assert paid > 30
    with pytest.raises(
        UsageError,
        match=(
            "does not take this observation: "
            "the observation must have exactly the parts flag, noise"
        ),
    ):
        policy.act(np.zeros(6))


# --- pictures


def test_a_picture_of_bytes_comes_as_zero_to_one_everywhere_and_other_numbers_as_they_are() -> None:
    picture, memory = np.full((2, 3), 51, np.uint8), np.full(6, 51, np.uint8)
    assert flatten(picture).tolist() == [np.float32(0.2)] * 6
    assert flatten(memory).tolist() == flatten(picture.astype(np.float32)).tolist() == [51.0] * 6
    parts = observation_parts(
        spaces.Dict(
            {
                "camera": spaces.Box(0, 255, (2, 3), np.uint8),
                "ram": spaces.Box(0, 255, (6,), np.uint8),
            }
        ),
        "here",
    )
    assert (
        make_encoder(parts)({"camera": picture, "ram": memory}).tolist()
        == [np.float32(0.2)] * 6 + [51.0] * 6
    )
    encode = make_encoder(observation_parts(spaces.Box(0, 255, (2, 3), np.uint8), "here"))
    assert encode(picture).tolist() == [np.float32(0.2)] * 6
