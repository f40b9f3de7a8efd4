"""What describe() says of environments, and the sentence for each way in which one cannot
be had.
"""

from __future__ import annotations

import sys
from pathlib import Path

import gymnasium
import pytest

from es_queue.environments.factory import describe, open_environment
from es_queue.environments.interface import EnvironmentRequest
from es_queue.environments.registry import format_unknown_id
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


@pytest.fixture(autouse=True)
def without_envpool(monkeypatch: pytest.MonkeyPatch) -> None:
    """What auto chooses must not hang on what this machine has."""
    monkeypatch.setattr("es_queue.environments.factory.is_installed", lambda: False)


def failure(request: EnvironmentRequest) -> str:
    """The one sentence of the EnvironmentFailure that describing ``request`` ends with."""
    with pytest.raises(EnvironmentFailure) as caught:
        describe(request)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@each_case(
    ("environment", "limit", "threshold", "backend"),
    [
        ("BipedalWalker-v2", 1600, 300.0, "lean"),
        ("BipedalWalker-v3", 1600, 300.0, "lean"),
        ("BipedalWalkerHardcore-v2", 2000, 300.0, "lean"),
        ("BipedalWalkerHardcore-v3", 2000, 300.0, "lean"),
        ("LunarLander-v2", 1000, 200.0, "stock"),
        ("LunarLanderContinuous-v2", 1000, 200.0, "stock"),
        ("CartPole-v1", 500, 475.0, "lean"),
    ],
)
def test_old_and_new_ids_carry_their_limit_and_threshold(
    environment: str, limit: int, threshold: float, backend: str
) -> None:
    spec = describe(EnvironmentRequest(environment))
    assert (spec.id, spec.step_limit, spec.reward_threshold, spec.backend) == (
        environment,
        limit,
        threshold,
        backend,
    )


def test_an_id_without_a_version_means_the_newest() -> None:
    assert describe(EnvironmentRequest("BipedalWalker")).id == "BipedalWalker-v3"


def test_a_users_environment_is_found_by_its_module(own: str) -> None:
    spec = describe(EnvironmentRequest(own))
    assert (spec.id, spec.observation_size, spec.step_limit, spec.reward_threshold) == (
        own,
        6,
        7,
        3.0,
    )
    assert (spec.action.kind, spec.action.sizes, spec.action.starts) == ("discrete", (3,), (1,))
    assert (spec.backend, spec.clean_reset, spec.highest_reward) == ("stock", False, None)


def test_a_declared_reward_range_gives_the_highest_reward(own: str) -> None:
    request = EnvironmentRequest(own, wrappers=("own_module:Rewarded",))
    assert describe(request).highest_reward == 5.0


@each_case(
    ("environment", "highest"),
    [("Pendulum-v1", 0.0), ("MountainCar-v0", -1.0), ("Acrobot-v1", 0.0), ("CartPole-v1", None)],
)
def test_environments_without_positive_rewards_are_known(
    environment: str, highest: float | None
) -> None:
    assert describe(EnvironmentRequest(environment)).highest_reward == highest


def test_arguments_reach_the_environment() -> None:
    request = EnvironmentRequest("FrozenLake-v1", arguments=(("map_name", "8x8"),))
    assert describe(request).observation_size == 64


@each_case("hardcore", [False, True])
def test_the_argument_hardcore_keeps_the_lean_back_end(hardcore: bool) -> None:
    spec = describe(EnvironmentRequest("BipedalWalker-v3", arguments=(("hardcore", hardcore),)))
    assert (spec.backend, spec.step_limit) == ("lean", 1600)


def test_an_unknown_id_names_the_close_ones() -> None:
    sentence = failure(EnvironmentRequest("BipedalWaker-v2"))
    assert sentence.startswith("there is no environment 'BipedalWaker-v2': did you mean ")
    assert "BipedalWalker-v2" in sentence


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


def test_a_function_of_a_module_makes_an_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "makers.py").write_text(
        "from gymnasium.envs.classic_control import CartPoleEnv\ndef make(): return CartPoleEnv()"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert describe(EnvironmentRequest("makers:make")).observation_size == 4


def test_a_game_of_atari_is_named_with_its_package_or_by_its_id_if_that_is_registered() -> None:
    unregistered = format_unknown_id("Pong-v5", ["CartPole-v1", "Pendulum-v1"])
    assert "use ALE/Pong-v5 (pip install" in unregistered
    registered = format_unknown_id("Pong-v5", ["Pong-v4", "PongNoFrameskip-v4", "ALE/Pong-v5"])
    assert registered.endswith("did you mean ALE/Pong-v5?")


@each_case(
    ("environment", "blocked", "command"),
    [
        ("HalfCheetah-v5", "mujoco", "pip install 'es-queue[mujoco]'"),
        ("ALE/Pong-v5", "ale_py", "pip install 'es-queue[atari]'"),
        ("PongNoFrameskip-v4", "ale_py", "pip install 'es-queue[atari]'"),
    ],
)
def test_a_missing_package_gives_the_command_that_installs_it(
    environment: str, blocked: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("gymnasium.envs.mujoco")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, blocked, None)
    assert failure(EnvironmentRequest(environment)).endswith(command)


@each_case("fault", ["reset", "step"])
def test_an_environment_that_raises_is_reported_with_type_and_text(own: str, fault: str) -> None:
    sentence = failure(EnvironmentRequest(own, arguments=(("fault", fault),)))
    text = {"reset": "RuntimeError: the motor burnt", "step": "ValueError: bad action 1"}[fault]
    assert sentence == f"{own} fails when it is played: {text}"


def test_an_environment_that_belies_its_space_is_reported(own: str) -> None:
    sentence = failure(EnvironmentRequest(own, arguments=(("fault", "shape"),)))
    assert "declares observations of 6 numbers but yields 1" in sentence


def test_arguments_that_the_environment_does_not_take_are_named(own: str) -> None:
    sentence = failure(EnvironmentRequest(own, arguments=(("colour", "red"),)))
    assert "does not accept the arguments colour='red'" in sentence


def test_an_argument_that_belongs_to_us_is_refused() -> None:
    with pytest.raises(UsageError, match="max_episode_steps is not allowed"):
        describe(EnvironmentRequest("CartPole-v1", arguments=(("max_episode_steps", 5),)))


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


def test_the_lean_back_end_is_refused_where_there_is_none() -> None:
    wrapped = EnvironmentRequest(
        "BipedalWalker-v3", wrappers=("gymnasium.wrappers:FlattenObservation",), backend="lean"
    )
    for request in (EnvironmentRequest("Acrobot-v1", backend="lean"), wrapped):
        with pytest.raises(UsageError, match="the lean back end does not play"):
            describe(request)
    with pytest.raises(UsageError, match="there is no back end 'fast'"):
        open_environment(EnvironmentRequest("CartPole-v1", backend="fast"))
