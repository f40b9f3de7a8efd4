"""Behaviours: what of an episode is compared, by environment, from the episode's end to the
master's batch.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import gymnasium
import numpy as np
import pytest

from es_queue.environments.factory import describe, open_environment, resolve
from es_queue.environments.interface import EnvironmentRequest
from es_queue.environments.registry import find_environment
from es_queue.environments.stock import (
    LAST,
    POSITION,
    RAM,
    resolve_behaviour,
)
from es_queue.environments.walker import LeanWalker
from es_queue.errors import EnvironmentFailure, UsageError
from es_queue.protocol import messages
from es_queue.protocol.messages import CENTRE, EVAL, TRAIN
from tests.cases import each_case
from tests.deceptive import MAZE
from tests.parts import Result, play_slots, player, task_of
from tests.tiny import Script, spec_of
from workers.player import Player

WALKER = "BipedalWalker-v3"
NOVEL: dict[str, Any] = {
    "strategy": "novelty",
    "members": 2,
    "behaviour_episodes": 3,
    "population": 8,
}


def asked(environment: str, behaviour: str = "auto", backend: str = "auto") -> EnvironmentRequest:
    return EnvironmentRequest(environment, backend=backend, behaviour=behaviour)


# --- by environment


@each_case(
    ("environment", "fits"),
    [
        (WALKER, POSITION),
        ("BipedalWalkerHardcore-v2", POSITION),
        ("Ant-v5", POSITION),
        ("Humanoid-v5", POSITION),
        ("Reacher-v5", LAST),
        ("CartPole-v1", LAST),
        (MAZE, LAST),
    ],
)
def test_auto_is_what_fits_the_environment(environment: str, fits: str) -> None:
    assert resolve_behaviour(find_environment(asked(environment)), asked(environment)) == fits


@each_case(
    ("request_", "sentence"),
    [
        (
            asked(WALKER, backend="envpool"),
            (
                "the envpool back end does not report the final-position of BipedalWalker-v3: use "
                "--backend auto or lean or stock or gym, or the behaviour last-observation"
            ),
        ),
        (
            asked(WALKER, "tests.deceptive:quarter", "lean"),
            (
                "the lean back end does not report the tests.deceptive:quarter of "
                "BipedalWalker-v3: use --backend auto or stock"
            ),
        ),
        (
            asked("CartPole-v1", POSITION),
            (
                "final-position of CartPole-v1 cannot be read: final-position is not known for "
                "CartPoleEnv: use the behaviour last-observation"
            ),
        ),
        (
            asked("CartPole-v1", "tests.deceptive:missing"),
            "the behaviour tests.deceptive:missing cannot be imported: AttributeError",
        ),
        (
            asked(MAZE, "tests.deceptive:nothing"),
            f"the behaviour has 0 numbers, but must have 1 to {messages.MAX_BEHAVIOUR_NUMBERS}",
        ),
    ],
)
def test_a_behaviour_that_cannot_be_had_is_refused_in_one_sentence(
    request_: EnvironmentRequest, sentence: str
) -> None:
    with pytest.raises((UsageError, EnvironmentFailure)) as refusal:
        describe(request_)
    assert sentence in str(refusal.value) and "\n" not in str(refusal.value)


def test_the_final_position_of_a_mujoco_body_is_where_gymnasium_has_it() -> None:
    pytest.importorskip("mujoco", reason="MuJoCo is not installed")
    world, other = open_environment(asked("Ant-v5", POSITION)), gymnasium.make("Ant-v5")
    world.reset(3)
    other.reset(seed=3)
    body: Any = other.unwrapped
    for _ in range(10):
        action = np.full(8, 0.3, np.float32)
        world.step(action)
        other.step(action)
    assert behaviour_of(world) == body.data.qpos[:2].astype(np.float32).tolist()
    assert abs(body.data.qpos[:2]).max() > 0.01


def test_the_ram_of_an_atari_game_is_what_the_game_shows_as_its_observation() -> None:
    pytest.importorskip("ale_py", reason="ale-py is not installed")
    request = asked("ALE/Pong-ram-v5", RAM)
    world, seen = open_environment(request), []
    world.reset(3)
    for _ in range(30):
        observation, _, _ = world.step(2)
        assert behaviour_of(world) == (255 * observation).round().tolist()
        seen.append(observation.tolist())
    assert len(seen[0]) == 128 and seen[0] != seen[-1]


def behaviour_of(world: Any) -> list[float]:
    values: list[float] = world.behaviour().tolist()
    return values


def test_both_walkers_tell_where_the_hull_is() -> None:
    lean, stock = (
        open_environment(asked(WALKER, backend=backend)) for backend in ("lean", "stock")
    )
    assert isinstance(lean, LeanWalker)
    for world in (lean, stock):
        world.reset(3)
        before = world.behaviour()  # type: ignore[attr-defined]
        for _ in range(20):
            world.step(np.array([0.4, -0.2, 0.1, 0.3], np.float32))
        after = world.behaviour()  # type: ignore[attr-defined]
        assert (
            before.dtype == np.float32
            and before.shape == (2,)
            and not np.array_equal(before, after)
        )
    assert after == pytest.approx(lean.behaviour(), abs=0.3)  # on other ground
    assert resolve(asked(WALKER, backend="lean")).open_vector() is None


# --- the worker


def sent(who: Player, kind: int, start: int, stop: int, **more: Any) -> list[Result]:
    return play_slots(who, *task_of(4, 2, **more), kind, start, stop).results


def numbers(result: Result) -> list[list[float]]:
    return np.frombuffer(result.behaviour, "<f4").reshape(len(result.fitness), -1).tolist()


def novel(world: Any, **values: Any) -> Player:
    return player(
        world,
        dataclasses.replace(spec_of(), behaviour=LAST, behaviour_size=2),
        **{**NOVEL, "obs_norm": False, **values},
    )


def test_a_slot_tells_with_what_each_individual_ended_and_an_evaluation_nothing() -> None:
    who = novel(Script([1.0] * 5))
    assert [numbers(one) for one in sent(who, TRAIN, 0, 2)] == [[[5.0, 6.0]] * 2] * 2
    assert [numbers(one) for one in sent(who, CENTRE, 0, 2)] == [[[5.0, 6.0]]] * 2
    assert [numbers(one) for one in sent(who, EVAL, 0, 2)] == [[[0.0, 0.0]]] * 2
    assert [
        one.behaviour
        for one in sent(player(Script([1.0] * 5), strategy="novelty", obs_norm=False), EVAL, 0, 1)
    ] == [b""]


def test_an_episode_that_ends_with_what_is_not_finite_has_failed() -> None:
    class Infinite(Script):
        def observation(self, step: int) -> np.ndarray:
            return np.array([1.0, np.inf if step == 3 else 0.0], np.float32)

    who = novel(Infinite([1.0] * 3))
    told = play_slots(who, *task_of(4, 2), TRAIN, 0, 1)
    reason = "the episode's behaviour contains a number that is not finite"
    assert not told.results and reason in told.failures[0].reason
