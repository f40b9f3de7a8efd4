"""How an environment that is given as an object is named for workers, and what cannot be."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import pytest
from gymnasium.envs.box2d import BipedalWalker
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import FlattenObservation

from es_queue.environments.registry import environment_settings
from es_queue.errors import UsageError
from tests.cases import each_case


class Plain(gymnasium.Env[Any, Any]):
    def __init__(self, render_mode: str | None = None) -> None:
        pass


class Sized(Plain):
    def __init__(self, size: int = 3) -> None:
        super().__init__()


class Outer:
    class Inner(Plain):
        pass


def make_plain() -> Plain:
    return Plain()


HERE = __name__


@each_case(
    ("env", "settings"),
    [
        ("CartPole-v1", {"env": "CartPole-v1"}),
        (Plain, {"env": f"{HERE}:Plain"}),
        (make_plain, {"env": f"{HERE}:make_plain"}),
        (Plain(), {"env": f"{HERE}:Plain"}),
        (
            BipedalWalker(hardcore=True),
            {
                "env": "gymnasium.envs.box2d.bipedal_walker:BipedalWalker",
                "env_arg": {"hardcore": True},
            },
        ),
        (
            FlattenObservation(gymnasium.make("Pendulum-v1", g=9.0, render_mode="rgb_array")),
            {
                "env": "Pendulum-v1",
                "env_arg": {"g": 9.0},
                "wrapper": ["gymnasium.wrappers.transform_observation:FlattenObservation"],
            },
        ),
    ],
)
def test_what_workers_can_make_too_is_named(env: Any, settings: dict[str, Any]) -> None:
    assert environment_settings(env) == settings


@each_case(
    ("env", "reason"),
    [
        (lambda: Plain(), "is not what"),
        (Outer.Inner, "is defined inside a function or class"),
        (type("Program", (Plain,), {"__module__": "__main__"}), "in the program or notebook"),
        (functools.partial(Plain), "an object of the class partial"),
        (Sized(size=4), "does not record its constructor's arguments"),
        (gymnasium.make("CartPole-v1", max_episode_steps=7), "with 7 steps"),
        (gymnasium.spec("CartPole-v1"), "a specification: give its id, 'CartPole-v1'"),
    ],
)
def test_what_workers_cannot_make_is_refused_with_the_reason(env: Any, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        environment_settings(env)


@each_case("entry_point", [f"{HERE}:Plain", Plain, make_plain])
def test_an_id_that_only_the_program_has_registered_is_refused_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch, entry_point: Any
) -> None:
    monkeypatch.setitem(gymnasium.registry, "Here-v0", EnvSpec("Here-v0", entry_point))
    with pytest.raises(UsageError, match="'module:Here-v0'"):
        environment_settings("Here-v0")
    assert environment_settings(f"{HERE}:Here-v0") == {"env": f"{HERE}:Here-v0"}
