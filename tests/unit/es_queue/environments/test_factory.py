"""What describe() says of environments, and the sentence for each way in which one cannot
be had.
"""

from __future__ import annotations

import sys
from pathlib import Path

import gymnasium
import pytest

from es_queue.environments.factory import describe
from es_queue.environments.interface import EnvironmentRequest
from es_queue.errors import EnvironmentFailure, UsageError
from tests.cases import each_case

OWN_MODULE = """
import gymnasium
import numpy as np
from gymnasium import spaces

class Own(gymnasium.Env):
    def __init__(self, observation=None, action=None, fault="", size=2, render_mode=None):
        self.observation_space = observation or spaces.Box(-1, 1, (2, 3), np.float64)
        self.action_space = action or spaces.Discrete(3, start=1)
        self.fault, self.size = fault, size

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if self.fault == "reset":
            raise RuntimeError("the\\nmotor burnt")
        shape = (1,) if self.fault == "shape" else (2, 3)
        return np.ones(shape), {}

    def step(self, action):
        if self.fault == "step":
            raise ValueError(f"bad action {action!r}")
        return np.ones((2, 3)), 1.0, False, False, {}

class Rewarded(gymnasium.Wrapper):
    reward_range = (-1.0, 5.0)

if "Own-v0" not in gymnasium.registry:
    gymnasium.register("Own-v0", Own, max_episode_steps=7, reward_threshold=3)
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The id of a user's environment, in a module of its own."""
    (tmp_path / "own_module.py").write_text(OWN_MODULE)
    (tmp_path / "broken_module.py").write_text("import nothing_of_this_name")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_module", raising=False)
    monkeypatch.delitem(gymnasium.registry, "Own-v0", raising=False)
    return "own_module:Own-v0"


def failure(request: EnvironmentRequest) -> str:
    """The one sentence of the EnvironmentFailure that describing ``request`` ends with."""
    with pytest.raises(EnvironmentFailure) as caught:
        describe(request)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@each_case(
    ("environment", "limit", "threshold"),
    [
        ("BipedalWalker-v2", 1600, 300.0),
        ("BipedalWalkerHardcore-v3", 2000, 300.0),
        ("LunarLander-v2", 1000, 200.0),
        ("CartPole-v1", 500, 475.0),
    ],
)
def test_old_and_new_ids_carry_their_limit_and_threshold(
    environment: str, limit: int, threshold: float
) -> None:
    spec = describe(EnvironmentRequest(environment))
    assert (spec.id, spec.step_limit, spec.reward_threshold) == (environment, limit, threshold)


def test_a_users_environment_is_found_by_its_module(own: str) -> None:
    spec = describe(EnvironmentRequest(own))
    assert (spec.id, spec.observation_size, spec.step_limit, spec.reward_threshold) == (
        own,
        6,
        7,
        3.0,
    )
    assert (spec.action.kind, spec.action.sizes, spec.action.starts) == ("discrete", (3,), (1,))
    assert (spec.backend, spec.highest_reward) == ("stock", None)


def test_an_unknown_id_names_the_close_ones() -> None:
    sentence = failure(EnvironmentRequest("BipedalWaker-v2"))
    assert sentence.startswith("there is no environment 'BipedalWaker-v2': did you mean ")
    assert "BipedalWalker-v2" in sentence
    sentence = failure(EnvironmentRequest("CartPoll-v7"))
    assert sentence.endswith("did you mean CartPole-v1?")


def test_a_module_that_cannot_be_imported_gives_a_sentence(own: str) -> None:
    assert "ModuleNotFoundError" in failure(EnvironmentRequest("no_such_module:Own-v0"))
    assert "nothing_of_this_name" in failure(EnvironmentRequest("broken_module:Own-v0"))
    assert failure(EnvironmentRequest("own_module:Other-v0")).startswith(
        "the module own_module has no environment 'Other-v0'"
    )


def test_a_class_of_a_module_is_an_environment_without_an_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "from gymnasium.envs.classic_control import CartPoleEnv as Pole; text = 'no class'"
    (tmp_path / "class_module.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    spec = describe(EnvironmentRequest("class_module:Pole"))
    assert (spec.id, spec.observation_size, spec.step_limit) == ("class_module:Pole", 4, None)
    assert "no environment 'text'" in failure(EnvironmentRequest("class_module:text"))


@each_case("fault", ["reset", "step"])
def test_an_environment_that_raises_is_reported_with_type_and_text(own: str, fault: str) -> None:
    sentence = failure(EnvironmentRequest(own, arguments=(("fault", fault),)))
    text = {"reset": "RuntimeError: the motor burnt", "step": "ValueError: bad action 1"}[fault]
    assert sentence == f"{own} fails when it is played: {text}"


def test_an_environment_that_belies_its_space_is_reported(own: str) -> None:
    sentence = failure(EnvironmentRequest(own, arguments=(("fault", "shape"),)))
    assert "declares observations of 6 numbers but yields 1" in sentence


def test_a_space_that_no_policy_serves_gives_a_sentence(own: str) -> None:
    text = gymnasium.spaces.Text(5)
    assert "are a Text; es-queue supports Box" in failure(
        EnvironmentRequest(own, arguments=(("observation", text),))
    )
    action = gymnasium.spaces.Dict({"a": gymnasium.spaces.Discrete(2)})
    assert "actions of" in failure(EnvironmentRequest(own, arguments=(("action", action),)))


@pytest.mark.parametrize(
    ("path", "complaint"),
    [
        ("Rewarded", "is not of the form"),
        ("no_such_module:Rewarded", "cannot be imported: ModuleNotFoundError"),
        ("own_module:Missing", "cannot be imported: AttributeError"),
        ("own_module:OWN", "is not a class"),
    ],
)
def test_a_bad_wrapper_path_gives_a_sentence(
    own: str, path: str, complaint: str, tmp_path: Path
) -> None:
    (tmp_path / "own_module.py").write_text(OWN_MODULE + "OWN = 3\n")
    with pytest.raises(UsageError, match=complaint):
        describe(EnvironmentRequest(own, wrappers=(path,)))
