"""Atari games: ids, observations, and episodes that depend only on their seed."""

from __future__ import annotations

import sys
from typing import Any

import gymnasium
import numpy as np
import pytest

from es_queue.config.episode_rules import evaluation_rules, training_rules
from es_queue.config.run_config import RunConfig
from es_queue.environments.atari import parse_atari_id
from es_queue.environments.factory import describe, open_environment
from es_queue.environments.interface import Environment, EnvironmentRequest
from es_queue.errors import EnvironmentFailure, MissingPackage, UsageError
from tests.cases import each_case
from tests.unit.es_queue.environments.test_stock_resets import is_clean
from workers.episode import EpisodeControl, play_episode


@each_case(
    ("name", "rom", "obs_type", "frameskip", "sticky"),
    [
        ("Pong-v0", "pong", "image", "2-4", 0.25),
        ("Pong", "pong", "image", "2-4", 0.0),
        ("PongDeterministic-v0", "pong", "image", 4, 0.25),
        ("PongDeterministic-v3", "pong", "image", 4, 0.0),
        ("SpaceInvadersDeterministic-v4", "space_invaders", "image", 3, 0.0),
        ("MsPacmanNoFrameskip-v4", "ms_pacman", "image", 1, 0.0),
        ("Pong-ram-v0", "pong", "ram", "2-4", 0.25),
        ("Seaquest-ramDeterministic-v4", "seaquest", "ram", 4, 0.0),
        ("ALE/SpaceInvaders-v5", "space_invaders", "image", 4, 0.25),
        ("ALE/Pong-ram-v5", "pong", "ram", 4, 0.25),
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


@each_case("name", ["CartPole-v0", "Pong-v5", "ALE/Pong-v4", "ALE/PongDeterministic-v5", "pong-v4"])
def test_other_ids_are_not_atari_games(name: str) -> None:
    assert parse_atari_id(name) is None


def test_a_missing_opencv_gives_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("ale_py", reason="ale-py is not installed")
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(MissingPackage, match=r"pip install 'es-queue\[atari\]'"):
        describe(EnvironmentRequest("PongDeterministic-v4"))


def observations(world: Environment, seed: int, steps: int = 60) -> list[np.ndarray]:
    return [world.reset(seed), *(world.step(number % 6)[0] for number in range(steps))]


class TestGames:
    """With the emulator and OpenCV."""

    @pytest.fixture(autouse=True)
    def _needs(self) -> None:
        pytest.importorskip("ale_py", reason="ale-py is not installed")
        pytest.importorskip("cv2", reason="opencv is not installed")

    @pytest.mark.parametrize(
        ("name", "arguments", "shape", "limit"),
        [
            ("PongDeterministic-v3", {}, (4, 84, 84), 27_000),
            ("Venture-v4", {}, (4, 84, 84), 54_000),
            ("PongNoFrameskip-v4", {"screen_size": 42, "stack": 1}, (1, 42, 42), 108_000),
            ("ale_py:ALE/Pong-v5", {"max_num_frames_per_episode": 101}, (4, 84, 84), 26),
            ("ALE/Pong-v5", {"obs_type": "rgb"}, (210, 160, 3), 27_000),
            ("Seaquest-ram-v0", {}, (), 54_000),
            ("ALE/Frostbite-v5", {"obs_type": "ram"}, (), 27_000),
        ],
    )
    def test_the_id_and_its_arguments_shape_observations_and_limit_steps(
        self, name: str, arguments: dict[str, Any], shape: tuple[int, ...], limit: int
    ) -> None:
        request = EnvironmentRequest(name, tuple(arguments.items()))
        spec = describe(request)
        assert (spec.observation_shape, spec.step_limit, spec.clean_reset) == (shape, limit, True)
        assert spec.observation_size == (int(np.prod(shape)) if shape else 128)
        world = open_environment(request)
        first = world.reset(3)
        assert first.dtype == np.float32 and 0 <= first.min() < first.max() <= 1
        world.close()

    def test_images_are_those_of_gymnasiums_wrappers_around_the_emulators_own_environment(
        self,
    ) -> None:
        theirs: Any = gymnasium.make("PongNoFrameskip-v4", max_episode_steps=-1)
        theirs = gymnasium.wrappers.AtariPreprocessing(theirs, noop_max=0)
        theirs = gymnasium.wrappers.FrameStackObservation(theirs, 4)
        ours = open_environment(EnvironmentRequest("PongDeterministic-v4", (("noop_max", 0),)))
        images = [theirs.reset(seed=1)[0], *(theirs.step(n % 6)[0] for n in range(60))]
        for image, observation in zip(images, observations(ours, 5), strict=True):
            assert np.array_equal(image.reshape(-1) / np.float32(255), observation)

    @pytest.mark.parametrize(
        ("name", "arguments"),
        [
            ("ALE/Pong-v5", {}),
            ("Amidar-v0", {}),
            ("ALE/Qbert-v5", {"obs_type": "ram"}),
            ("ALE/Tennis-v5", {"obs_type": "ram", "frameskip": "2-4"}),
            ("ALE/BeamRider-v5", {"obs_type": "ram"}),
            ("ALE/Breakout-v5", {"obs_type": "ram", "mode": 8, "difficulty": 1}),
        ],
    )
    def test_an_episode_does_not_depend_on_those_before_it(
        self, name: str, arguments: dict[str, Any]
    ) -> None:
        """Restoring a state is not enough for Qbert and Amidar, resetting not for Tennis and
        BeamRider.
        """
        assert is_clean(EnvironmentRequest(name, tuple(arguments.items())), range(2), 100)

    def test_seeds_differ_in_the_frames_before_the_first_action_and_in_sticky_actions(self) -> None:
        def endings(**arguments: Any) -> set[bytes]:
            request = EnvironmentRequest("Pong-ramDeterministic-v4", tuple(arguments.items()))
            world = open_environment(request)
            return {observations(world, seed)[-1].tobytes() for seed in range(12)}

        assert len(endings(noop_max=0)) == 1
        assert len(endings()) > 6
        assert len(endings(noop_max=0, repeat_action_probability=0.25)) > 6
        assert len(endings(noop_max=0, frameskip="2-4")) > 6

    def test_the_frame_limit_ends_an_episode(self) -> None:
        arguments = (("noop_max", 0), ("max_num_frames_per_episode", 40))
        world = open_environment(EnvironmentRequest("PongDeterministic-v4", arguments))
        world.reset(1)
        assert [world.step(0)[2] for _ in range(10)] == [False] * 9 + [True]

    def test_only_training_episodes_end_at_a_lost_life_and_clip_rewards(self) -> None:
        request = EnvironmentRequest("SpaceInvadersDeterministic-v4", (("obs_type", "ram"),))
        spec, world = describe(request), open_environment(request)
        assert spec.lives == 3
        config = RunConfig(env=request.id, life_loss=True, reward_clip=True)

        def episode(rules: Any) -> Any:
            return play_episode(
                world,
                lambda observation: observation[:1],
                Always(1),  # type: ignore[arg-type]
                rules,
                7,
                EpisodeControl(),
            )

        training = episode(training_rules(config, 2000, by_sign=False))
        evaluation = episode(evaluation_rules(2000))
        assert training.cut and 2 * training.steps < evaluation.steps
        assert 0 < training.fitness < training.total
        assert evaluation.fitness == evaluation.total > training.total

    def test_wrappers_of_your_own_get_colour_frames(self) -> None:
        wrappers = ("gymnasium.wrappers:GrayscaleObservation",)
        spec = describe(EnvironmentRequest("PongDeterministic-v4", wrappers=wrappers))
        assert spec.observation_shape == (210, 160)

    @pytest.mark.parametrize(
        ("name", "value", "fix"),
        [
            ("screen_size", 0, "whole numbers from 1"),
            ("stack", 2.5, "whole numbers from 1"),
            ("frameskip", "4-2", "a range such as 2-4"),
            ("repeat_action_probability", 1.0, "from 0 to below 1"),
            ("noop_max", -1, "of 0 or more"),
            ("max_num_frames_per_episode", 0, "of 1 or more"),
            ("obs_type", "colour", "image, rgb or ram"),
            ("mode", 3, "but pong has 0, 1"),
        ],
    )
    def test_a_wrong_argument_is_refused_by_its_name(self, name: str, value: Any, fix: str) -> None:
        with pytest.raises(UsageError, match=fix) as caught:
            describe(EnvironmentRequest("PongDeterministic-v4", ((name, value),)))
        assert name in str(caught.value) and "\n" not in str(caught.value)

    def test_an_unknown_argument_and_an_unknown_game_are_refused(self) -> None:
        with pytest.raises(EnvironmentFailure, match="does not accept the arguments colour=1"):
            describe(EnvironmentRequest("Pong-v0", (("colour", 1),)))
        with pytest.raises(EnvironmentFailure, match="there is no environment 'ALE/Pongg-v5'"):
            describe(EnvironmentRequest("ALE/Pongg-v5"))

    def test_novelty_compares_the_memory_of_a_game_of_images(self) -> None:
        spec = describe(EnvironmentRequest("PongDeterministic-v4", behaviour="auto"))
        assert (spec.behaviour, spec.behaviour_size) == ("ram", 128)

    def test_it_draws_itself(self) -> None:
        world = open_environment(EnvironmentRequest("PongDeterministic-v4"), "rgb_array")
        world.reset(1)
        image = world.render()
        assert image is not None and image.shape == (210, 160, 3)
        world.close()


class Always:
    """One action, in place of the map from a policy's outputs to actions."""

    def __init__(self, action: int) -> None:
        self.action = action

    def act_one(self, output: Any, noise: Any) -> int:
        return self.action
