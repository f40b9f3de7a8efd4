"""Atari games: what a policy sees, how an episode begins and ends, and that it hangs on nothing but
its seed.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest

ale_py = pytest.importorskip("ale_py", reason="ale-py is not installed")

from es_queue.config.episode_rules import evaluation_rules, training_rules  # noqa: E402
from es_queue.config.run_config import RunConfig  # noqa: E402
from es_queue.environments.atari.game import (  # noqa: E402
    AtariConsole,
    AtariGame,
)
from es_queue.environments.atari.settings import (  # noqa: E402
    PRESETS,
    AtariSettings,
    settings_of,
)
from es_queue.environments.factory import describe, open_environment  # noqa: E402
from es_queue.environments.interface import EnvironmentRequest  # noqa: E402
from es_queue.environments.registry import find_environment  # noqa: E402
from es_queue.environments.stock import StockEnvironment  # noqa: E402
from es_queue.errors import EnvironmentFailure, UsageError  # noqa: E402
from master.run.setup import validate_environment_settings  # noqa: E402
from tests.parts import wrapped_environment  # noqa: E402
from tests.unit.es_queue.environments.test_stock_resets import is_clean  # noqa: E402
from workers.episode import EpisodeControl, play_episode  # noqa: E402

Trace = list[tuple[bytes, float, bool]]


def game(rom: str = "pong", preset: str = "dqn", **own: Any) -> AtariGame:
    return AtariGame(rom, **{**PRESETS[preset], **own})


def trace(env: AtariGame, seed: int, steps: int = 60) -> Trace:
    chance = np.random.default_rng(seed)
    seen: Trace = [(env.reset(seed=seed)[0].tobytes(), 0.0, False)]
    while len(seen) <= steps and not seen[-1][2]:
        observation, reward, over, cut, _ = env.step(int(chance.integers(env.action_space.n)))  # type: ignore[attr-defined]
        seen.append((observation.tobytes(), reward, over or cut))
    return seen


def plain(rom: str) -> Any:
    """ale-py's own environment, a frame a step, in grey."""
    return gymnasium.make(
        f"ALE/{rom.title()}-v5",
        frameskip=1,
        repeat_action_probability=0.0,
        obs_type="grayscale",
        max_episode_steps=-1,
    ).unwrapped


# --- what is seen


@pytest.mark.parametrize(
    ("name", "preprocessing", "shape", "limit"),
    [
        ("PongDeterministic-v3", "auto", (4, 84, 84), 27_000),
        ("PongDeterministic-v4", "small", (1, 42, 42), 27_000),
        ("Venture-v4", "raw", (210, 160, 3), 54_000),
        ("Seaquest-ram-v0", "auto", (128,), 54_000),
        ("PongNoFrameskip-v4", "auto", (4, 84, 84), 108_000),
        ("ALE/Frostbite-v5", "ram", (128,), 27_000),
        ("ale_py:ALE/Pong-v5", "dqn", (4, 84, 84), 27_000),
    ],
)
def test_presets_shape_what_is_seen_and_frames_limit_the_steps(
    name: str, preprocessing: str, shape: tuple[int, ...], limit: int
) -> None:
    request = EnvironmentRequest(name, preprocessing=preprocessing)
    spec = describe(request)
    assert (spec.observation_size, spec.step_limit, spec.backend, spec.clean_reset) == (
        int(np.prod(shape)),
        limit,
        "stock",
        True,
    )
    world = open_environment(request)
    assert isinstance(world, StockEnvironment)
    assert wrapped_environment(world).observation_space.shape == shape
    first = world.reset(3)
    assert first.dtype == np.float32 and 0 <= first.min() < first.max() <= 1
    world.close()


def test_frames_are_those_of_the_emulators_own_environment() -> None:
    theirs = plain("pong")
    frames = [theirs.reset(seed=1)[0]] + [theirs.step(action)[0] for action in [0] * 7 + [3] * 16]
    ours = game(stack=2, size=0, noop_max=0, fire_reset=False, max_of_two=False, frameskip=1)
    seen = [ours.reset(seed=5)[0]] + [ours.step(action)[0] for action in [0] * 7 + [3] * 16]
    for at in range(1, 24):
        assert np.array_equal(
            seen[at], np.stack(frames[at - 1 : at + 1]).astype(np.float32) / np.float32(255)
        )


def test_a_held_action_shows_the_brighter_of_its_last_two_frames_and_sums_the_rewards() -> None:
    theirs, ours = plain("pong"), game(stack=1, size=0, noop_max=0, fire_reset=False)
    theirs.reset(seed=1)
    ours.reset(seed=1)
    total = 0.0
    for _ in range(80):
        frames, rewards = zip(*[theirs.step(2)[:2] for _ in range(4)], strict=True)
        observation, reward, *_ = ours.step(2)
        assert np.array_equal(
            observation[0], np.maximum(*frames[2:]).astype(np.float32) / np.float32(255)
        )
        assert reward == sum(rewards)
        total += reward
    assert total < 0


def test_the_first_observation_fills_the_stack_and_the_newest_comes_last() -> None:
    env = game()
    first = env.reset(seed=1)[0]
    assert all(np.array_equal(first[at], first[0]) for at in range(4))
    second = env.step(2)[0]
    assert np.array_equal(second[:3], first[1:]) and not np.array_equal(second[3], first[3])
    kept = second.copy()
    third = env.step(3)[0]
    assert np.array_equal(third[:3], second[1:]) and not np.array_equal(third[2], third[1])
    assert np.array_equal(second, kept), "an observation is its receiver's to keep"


def test_opencvs_preprocessing_sees_the_same_but_for_halves() -> None:
    pytest.importorskip("cv2", reason="opencv is not installed")
    theirs = gymnasium.wrappers.AtariPreprocessing(gymnasium.make("PongNoFrameskip-v4"), noop_max=0)
    ours = game(stack=1, noop_max=0, fire_reset=False)
    theirs.reset(seed=2)
    ours.reset(seed=2)
    for action in [2] * 20 + [3] * 20:
        apart = np.abs(np.rint(ours.step(action)[0][0] * 255) - theirs.step(action)[0])
        assert apart.max() <= 1 and np.count_nonzero(apart) < 20


# --- chance


@pytest.mark.parametrize("rom", ["pong", "frostbite", "amidar", "qbert", "tennis", "beam_rider"])
def test_one_object_playing_many_episodes_gives_the_bits_of_fresh_ones(rom: str) -> None:
    """Restoring a state alone is not enough for Qbert and Amidar, resetting alone not for Tennis
    and BeamRider.
    """
    sticky: dict[str, Any] = {"repeat_action_probability": 0.25, "frameskip": "2-4"}
    used = game(rom, **sticky)
    for seed in (4, 9, 4):
        trace(used, seed + 100, 150)
        assert trace(used, seed) == trace(game(rom, **sticky), seed)


@pytest.mark.parametrize(
    "request_",
    [
        EnvironmentRequest("Frostbite-v0"),
        EnvironmentRequest("Breakout-ram-v4"),
        EnvironmentRequest("PongDeterministic-v4", preprocessing="small"),
    ],
    ids=lambda one: one.id,
)
def test_a_world_keeps_nothing_from_one_episode_to_the_next(request_: EnvironmentRequest) -> None:
    assert is_clean(request_, range(2), 60)


def test_seeds_differ_in_the_frames_that_pass_before_the_first_action() -> None:
    env = game(size=0, stack=1, fire_reset=False)
    waited = []
    for seed in range(40):
        env.reset(seed=seed)
        waited.append(env.ale.getEpisodeFrameNumber())
    assert min(waited) >= 1 and max(waited) <= 30 and len(set(waited)) > 10
    none = game(noop_max=0, fire_reset=False)
    none.reset(seed=1)
    assert none.ale.getEpisodeFrameNumber() == 0


def test_fire_begins_games_that_wait_for_it_and_no_others() -> None:
    for rom, frames in (("breakout", 8), ("pong", 8), ("freeway", 0)):
        env = game(rom, noop_max=0)
        env.reset(seed=1)
        assert env.ale.getEpisodeFrameNumber() == frames, rom


def test_sticky_actions_repeat_about_as_often_as_they_are_to() -> None:
    console = AtariConsole("pong", AtariSettings(frameskip=1, repeat_action_probability=0.25))
    played: list[Any] = []

    def act(action: Any) -> float:
        played.append(action)
        return 0.0

    console.ale = SimpleNamespace(act=act, game_over=lambda: False)
    wanted = [2 + number % 2 for number in range(4000)]
    for action in wanted:
        console.repeat_action(action)
    # A quarter, less those that repeat what a repeated action left: d = (1 - d) / 4.
    repeated = sum(
        console.actions[action] != frame for action, frame in zip(wanted, played, strict=True)
    )
    assert 720 < repeated < 880


def test_a_random_frame_skip_draws_from_both_ends_of_its_range() -> None:
    env = game(frameskip="2-4", noop_max=0, fire_reset=False)
    env.reset(seed=1)
    held = []
    for _ in range(60):
        before = env.ale.getEpisodeFrameNumber()
        env.step(0)
        held.append(env.ale.getEpisodeFrameNumber() - before)
    assert set(held) == {2, 3, 4}


# --- the end


def test_the_frame_cap_ends_an_episode() -> None:
    env = game(noop_max=0, fire_reset=False, max_num_frames_per_episode=40)
    env.reset(seed=1)
    ends = [env.step(0)[2:4] for _ in range(10)]
    assert ends == [(False, False)] * 9 + [(False, True)]


def test_only_training_episodes_end_at_a_lost_life_and_have_the_rewards_signs_as_fitness() -> None:
    request = EnvironmentRequest(
        "SpaceInvadersDeterministic-v4", arguments=(("size", 0), ("stack", 1))
    )
    spec, world = describe(request), open_environment(request)
    assert spec.lives == 3
    config = RunConfig(env=request.id, life_loss=True, reward_clip=True)
    rules = {
        "training": training_rules(config, 2000, by_sign=False),
        "evaluation": evaluation_rules(2000),
    }

    def episode(kind: str) -> Any:
        return play_episode(
            world,
            lambda: lambda observation: observation[:1],
            Always(1),
            rules[kind],
            7,
            EpisodeControl(),
        )  # type: ignore[arg-type]

    training, evaluation = episode("training"), episode("evaluation")
    assert training.cut and not training.at_limit and not evaluation.cut
    assert 2 * training.steps < evaluation.steps
    assert (
        0 < training.fitness < training.total
        and evaluation.fitness == evaluation.total > training.total
    )
    world.close()


class Always:
    """One action, in place of the map from a policy's outputs to actions."""

    def __init__(self, action: int) -> None:
        self.action = action

    def act_one(self, output: Any, noise: Any) -> int:
        return self.action


def test_a_game_without_lives_cannot_end_by_losing_one() -> None:
    config = RunConfig(env="Pong-ram-v0", life_loss=True)
    with pytest.raises(UsageError, match="life_loss is set, but Pong-ram-v0 does not count lives"):
        validate_environment_settings(config, describe(EnvironmentRequest.of(config)))


def test_training_by_signs_is_asked_for_by_reward_clip() -> None:
    assert training_rules(RunConfig(reward_clip=True), 10, by_sign=False).by_sign
    assert not training_rules(RunConfig(), 10, by_sign=False).by_sign


# --- settings


def test_single_values_replace_those_of_the_preset_and_of_the_id() -> None:
    own = (
        ("size", 42),
        ("stack", 2),
        ("frameskip", 8),
        ("repeat_action_probability", 0.5),
        ("full_action_space", True),
        ("max_num_frames_per_episode", 8000),
    )
    request = EnvironmentRequest("Pong-v0", arguments=own)
    spec = describe(request)
    assert (spec.observation_size, spec.step_limit, spec.action.sizes) == (2 * 42 * 42, 1000, (18,))
    assert find_environment(request).arguments["repeat_action_probability"] == 0.5


def test_without_preprocessing_or_with_a_wrapper_it_is_the_emulators_own_environment() -> None:
    plain_one = describe(EnvironmentRequest("Pong-ramDeterministic-v4", preprocessing="none"))
    wrapped = EnvironmentRequest(
        "PongDeterministic-v4", wrappers=("gymnasium.wrappers:GrayscaleObservation",)
    )
    assert (plain_one.observation_size, plain_one.clean_reset) == (128, True)
    assert find_environment(wrapped).entry_point == "ale_py.env:AtariEnv"
    assert describe(wrapped).observation_size == 210 * 160


def test_a_mode_of_the_game_can_be_chosen_and_one_that_it_lacks_is_refused() -> None:
    def memories(env: Any) -> list[bytes]:
        env.reset(seed=1)
        return [env.unwrapped.ale.getRAM().tobytes() for _ in range(30) if env.step(1)]

    switched = AtariGame("breakout", mode=8, difficulty=1, noop_max=0)
    theirs = gymnasium.make("ALE/Breakout-v5", mode=8, difficulty=1, repeat_action_probability=0.0)
    assert (
        memories(switched)
        == memories(theirs)
        == memories(switched)
        != memories(AtariGame("breakout", noop_max=0))
    )
    with pytest.raises(UsageError, match="env_arg mode is 3, but breakout has 0, 4"):
        game("breakout", mode=3)


@pytest.mark.parametrize(
    ("name", "value", "fix"),
    [
        ("size", 161, "up to 160"),
        ("size", -1, "from 0"),
        ("size", 8.5, "whole number"),
        ("stack", 0, "from 1 to 16"),
        ("stack", True, "whole number"),
        ("frameskip", 0, "1 or more"),
        ("frameskip", "4-2", "a range such as 2-4"),
        ("frameskip", "often", "a range such as 2-4"),
        ("repeat_action_probability", 1.0, "from 0 to below 1"),
        ("repeat_action_probability", True, "a number"),
        ("noop_max", -1, "from 0"),
        ("max_of_two", 1, "true or false"),
        ("crop", "194:34", "TOP:BOTTOM"),
        ("crop", "0:999", "0:210"),
        ("crop", 34, "TOP:BOTTOM"),
        ("obs_type", "colour", "grayscale, rgb, ram"),
        ("max_num_frames_per_episode", 0, "from 1"),
        ("difficulty", 7, "but pong has 0"),
        ("colour", 1, "does not accept: use one of obs_type"),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_its_name(name: str, value: Any, fix: str) -> None:
    with pytest.raises(UsageError, match=fix) as caught:
        describe(EnvironmentRequest("PongDeterministic-v4", arguments=((name, value),)))
    assert name in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        (
            EnvironmentRequest("CartPole-v1", preprocessing="dqn"),
            "preprocessing is dqn, but CartPole-v1 is not one of",
        ),
        (
            EnvironmentRequest("Pong-ram-v0", preprocessing="dqn"),
            "Pong-ram-v0 observes the console's memory: use ram",
        ),
        (
            EnvironmentRequest("Pong-v0", arguments=(("stack", 4),), preprocessing="raw"),
            "colour frames are not stacked",
        ),
        (
            EnvironmentRequest("Pong-v0", arguments=(("size", 84),), preprocessing="raw"),
            "only grayscale is cropped and resized",
        ),
        (
            EnvironmentRequest("Pong-v0", arguments=(("render_mode", "human"),)),
            "render_mode is not allowed",
        ),
    ],
    ids=lambda one: "",
)
def test_settings_that_do_not_fit_together_are_refused(
    request_: EnvironmentRequest, sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence):
        describe(request_)


def test_an_unknown_game_is_unknown() -> None:
    with pytest.raises(EnvironmentFailure, match="there is no environment 'ALE/Pongg-v5'"):
        describe(EnvironmentRequest("ALE/Pongg-v5"))


def test_a_range_of_frames_limits_the_steps_by_its_lower_end() -> None:
    assert settings_of({"frameskip": "2-4", "max_num_frames_per_episode": 101}).step_limit() == 51
    assert AtariSettings().step_limit() == 27_000


def test_memory_is_what_novelty_compares_of_a_preprocessed_game_too() -> None:
    spec = describe(EnvironmentRequest("PongDeterministic-v4", behaviour="auto"))
    assert (spec.behaviour, spec.behaviour_size) == ("ram", 128)


def test_it_draws_itself() -> None:
    world = open_environment(EnvironmentRequest("PongDeterministic-v4"), "rgb_array")
    world.reset(1)
    picture = world.render()
    assert picture is not None and picture.shape == (210, 160, 3)
    world.close()
