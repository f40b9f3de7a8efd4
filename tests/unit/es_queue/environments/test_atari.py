"""Atari games: ids, observations, and episodes that depend only on their seed."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import gymnasium
import numpy as np
import pytest

from es_queue.environments.atari import parse_atari_id
from es_queue.environments.factory import describe, open_environment
from es_queue.environments.interface import Environment, EnvironmentRequest
from es_queue.errors import UsageError
from tests.cases import each_case
from tests.unit.es_queue.environments.test_stock_resets import is_clean

with_games = pytest.mark.skipif(
    not (find_spec("ale_py") and find_spec("cv2")), reason="ale-py or opencv is not installed"
)


@each_case(
    ("name", "rom", "obs_type", "frameskip", "sticky"),
    [
        ("Pong-v0", "pong", "image", "2-4", 0.25),
        ("PongDeterministic-v3", "pong", "image", 4, 0.0),
        ("SpaceInvadersDeterministic-v4", "space_invaders", "image", 3, 0.0),
        ("MsPacmanNoFrameskip-v4", "ms_pacman", "image", 1, 0.0),
        ("Seaquest-ramDeterministic-v4", "seaquest", "ram", 4, 0.0),
        ("ALE/SpaceInvaders-v5", "space_invaders", "image", 4, 0.25),
        ("ALE/TicTacToe3D-v5", "tic_tac_toe_3d", "image", 4, 0.25),
    ],
)
def test_an_id_means_what_it_meant_when_it_was_new(
    name: str, rom: str, obs_type: str, frameskip: Any, sticky: float
) -> None:
    assert parse_atari_id(name) == {
        "rom": rom,
        "obs_type": obs_type,
        "frameskip": frameskip,
        "repeat_action_probability": sticky,
    }


def observations(world: Environment, seed: int, steps: int = 60) -> list[np.ndarray]:
    return [world.reset(seed), *(world.step(number % 6)[0] for number in range(steps))]


@with_games
@each_case(
    ("name", "arguments", "shape", "limit"),
    [
        ("PongDeterministic-v3", {}, (4, 84, 84), 27_000),
        ("PongNoFrameskip-v4", {"screen_size": 42, "stack": 1}, (1, 42, 42), 108_000),
        ("ale_py:ALE/Pong-v5", {"max_num_frames_per_episode": 101}, (4, 84, 84), 26),
        ("ALE/Frostbite-v5", {"obs_type": "ram"}, (), 27_000),
    ],
)
def test_the_id_and_its_arguments_shape_observations_and_limit_steps(
    name: str, arguments: dict[str, Any], shape: tuple[int, ...], limit: int
) -> None:
    request = EnvironmentRequest(name, tuple(arguments.items()))
    spec = describe(request)
    assert (spec.observation_shape, spec.step_limit) == (shape, limit)
    first = open_environment(request).reset(3)
    assert first.shape == (spec.observation_size,) and 0 <= first.min() < first.max() <= 1


@with_games
def test_images_are_those_of_gymnasiums_wrappers_around_the_emulators_own_environment() -> None:
    theirs: Any = gymnasium.make("PongNoFrameskip-v4", max_episode_steps=-1)
    theirs = gymnasium.wrappers.AtariPreprocessing(theirs, noop_max=0)
    theirs = gymnasium.wrappers.FrameStackObservation(theirs, 4)
    ours = open_environment(EnvironmentRequest("PongDeterministic-v4", (("noop_max", 0),)))
    images = [theirs.reset(seed=1)[0], *(theirs.step(n % 6)[0] for n in range(60))]
    for image, observation in zip(images, observations(ours, 5), strict=True):
        assert np.array_equal(image.reshape(-1) / np.float32(255), observation)


@with_games
@each_case(
    ("name", "arguments"),
    [
        ("ALE/Pong-v5", {}),
        ("ALE/Qbert-v5", {"obs_type": "ram"}),
        ("ALE/Tennis-v5", {"obs_type": "ram", "frameskip": "2-4"}),
    ],
)
def test_an_episode_does_not_depend_on_those_before_it(
    name: str, arguments: dict[str, Any]
) -> None:
    """Restoring a state is not enough for Qbert, resetting not for Tennis."""
    assert is_clean(EnvironmentRequest(name, tuple(arguments.items())), range(2), 100)


@with_games
def test_seeds_differ_in_the_frames_before_the_first_action_and_in_sticky_actions() -> None:
    def endings(**arguments: Any) -> set[bytes]:
        request = EnvironmentRequest("Pong-ramDeterministic-v4", tuple(arguments.items()))
        world = open_environment(request)
        return {observations(world, seed)[-1].tobytes() for seed in range(12)}

    assert len(endings(noop_max=0)) == 1
    assert len(endings()) > 6
    assert len(endings(noop_max=0, repeat_action_probability=0.25)) > 6
    assert len(endings(noop_max=0, frameskip="2-4")) > 6


@with_games
@each_case(
    ("name", "value", "fix"),
    [
        ("screen_size", 0, "whole numbers from 1"),
        ("frameskip", "4-2", "a range such as 2-4"),
        ("obs_type", "colour", "image, rgb or ram"),
        ("mode", 3, "but pong has 0, 1"),
    ],
)
def test_a_wrong_argument_is_refused_by_its_name(name: str, value: Any, fix: str) -> None:
    with pytest.raises(UsageError, match=fix) as caught:
        describe(EnvironmentRequest("PongDeterministic-v4", ((name, value),)))
    assert name in str(caught.value) and "\n" not in str(caught.value)
