"""One episode: its two numbers, the exact step at which it ends, and what it leaves behind."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from es_queue.config.episode_rules import EpisodeRules, Patience, Stall, evaluation_rules
from es_queue.environments.spaces import ActionSpec
from es_queue.numerics.noise_table import NoiseTable
from es_queue.numerics.normalization import FrozenStatistics, Moments
from es_queue.numerics.return_statistics import sum_in_order
from es_queue.policies.actions import ActionMap, NonFiniteOutput
from es_queue.policies.linear import LinearPolicy
from tests.cases import each_case
from tests.parts import config_of
from tests.tiny import BOX, Script, spec_of
from workers.episode import (
    ActionNoise,
    Episode,
    EpisodeControl,
    EpisodeFailed,
    EpisodePlayer,
    EpisodeSpec,
    Leaving,
    play_episode,
)

ACTIONS = ActionMap(BOX, "clip")
WIDE = ActionSpec("box", shape=(1,), low=(-9.0,), high=(9.0,))
#: Of the first observation, 0 and 1, they make 0.5 and 0.5.
STATISTICS = FrozenStatistics(
    np.array([-1, 0.5], np.float32), np.array([2, 1], np.float32), clip=5.0
)


def rules(limit: int = 100, **changes: Any) -> EpisodeRules:
    plain = {
        "reward_shift": 0.0,
        "reward_floor": None,
        "patience": None,
        "stall": None,
        "by_sign": False,
    }
    return EpisodeRules(limit, **{**plain, **changes})


def still(observation: np.ndarray) -> np.ndarray:
    return np.zeros(1, np.float32)


def played(
    world: Script, how: EpisodeRules, watch: EpisodeControl | None = None, **more: Any
) -> Episode:
    watch = watch or EpisodeControl()
    return play_episode(world, still, ACTIONS, how, 7, watch, **more)


NOT_A_NUMBER = np.full(1, np.nan, np.float32)
REWARDS = [0.1, -2.0, 0.7, 3.0, -0.2]


@each_case(
    ("changes", "seen"),
    [
        ({}, REWARDS),
        ({"reward_shift": 0.5}, [one - 0.5 for one in REWARDS]),
        ({"reward_floor": -1.0}, [0.1, -1.0, 0.7, 3.0, -0.2]),
        (
            {"reward_shift": 0.5, "reward_floor": -1.0},
            [0.1 - 0.5, -1.0, 0.7 - 0.5, 2.5, -0.2 - 0.5],
        ),
        ({"by_sign": True}, [1, -1, 1, 1, -1]),
        ({"by_sign": True, "reward_shift": 0.7}, [-1, -1, 0, 1, -1]),
    ],
)
def test_the_fitness_is_what_the_rules_make_of_the_rewards_and_the_return_never_is(
    changes: dict[str, Any], seen: list[float]
) -> None:
    episode = played(Script(REWARDS), rules(**changes))
    assert episode.total == sum_in_order(REWARDS)
    assert episode.fitness == sum_in_order(seen)
    assert (episode.steps, episode.at_limit, episode.cut) == (5, False, False)


@each_case(
    ("rewards", "patience", "steps"),
    [
        ([0], Patience(3, 0), 3),
        ([-1, 1, 0], Patience(3, 0), 3),  # back at nothing is no gain
        ([1, 0], Patience(3, 1), 4),
        ([0, 0, 1, 0], Patience(3, 1), 6),  # the last step that patience allows
        ([0, 0, 0.9, 0], Patience(3, 1), 3),
        ([0.5, 0.5, 0], Patience(3, 1), 5),  # small gains add up to one
        ([2, -5, 4, 0], Patience(3, 0), 4),  # 1 is below the best, 2
        ([2, -5, 5.4, 0], Patience(2, 0.5), 3),
    ],
)
def test_patience_ends_the_episode_at_exactly_its_step(
    rewards: list[float], patience: Patience, steps: int
) -> None:
    episode = played(Script(rewards, ends=False), rules(patience=patience))
    assert (episode.steps, episode.cut, episode.at_limit) == (steps, True, False)


def test_patience_looks_at_the_fitness_and_not_at_the_return() -> None:
    assert played(Script([1.0], ends=False), rules(20, patience=Patience(4, 0))).steps == 20
    assert (
        played(
            Script([1.0], ends=False), rules(20, patience=Patience(4, 0), reward_shift=1.0)
        ).steps
        == 4
    )


class Swaying(Script):
    """Observation 1 is 1 except at the steps that ``low`` names."""

    low: tuple[int, ...] = ()

    def observation(self, step: int) -> np.ndarray:
        return np.array([0, -0.01 if step in self.low else -1], np.float32)


@each_case(
    ("low", "steps"),
    [((1, 2, 3), 3), ((1, 2, 4, 5, 6), 6), ((1, 2), 9), ((0, 1, 2, 8, 9), 9), ((5, 6, 7, 8), 7)],
)
def test_stall_wants_its_steps_in_a_row_and_does_not_count_the_reset(
    low: tuple[int, ...], steps: int
) -> None:
    world = Swaying([0.0] * 9)
    world.low = low
    episode = played(world, rules(stall=Stall(1, 0.1, 3)))
    assert (episode.steps, episode.cut) == (steps, steps < 9)


@each_case(
    ("length", "limit", "at_limit", "steps"),
    [(5, 5, False, 5), (6, 5, True, 5), (4, 5, False, 4), (1, 1, False, 1)],
)
def test_an_end_at_the_very_limit_is_the_environments(
    length: int, limit: int, at_limit: bool, steps: int
) -> None:
    episode = played(Script([1.0] * length), rules(limit))
    assert (episode.steps, episode.at_limit, episode.cut) == (steps, at_limit, False)


def test_an_end_that_patience_shares_with_the_environment_is_not_cut() -> None:
    assert not played(Script([0.0] * 3), rules(patience=Patience(3, 0))).cut
    assert played(Script([0.0] * 4), rules(patience=Patience(3, 0))).cut


def test_an_evaluation_knows_no_rule_but_its_limit() -> None:
    episode = played(Script([-1.0], ends=False), evaluation_rules(40))
    assert (episode.steps, episode.total, episode.fitness, episode.at_limit) == (
        40,
        -40.0,
        -40.0,
        True,
    )


@each_case("rewards", [[math.nan], [1, math.inf], [math.inf, -math.inf], [1e308, 1e308]])
def test_a_return_that_is_not_finite_is_no_result(rewards: list[float]) -> None:
    with pytest.raises(EpisodeFailed):
        played(Script(rewards), rules())
    with pytest.raises(EpisodeFailed):
        played(Script(rewards), rules(by_sign=True))


def test_an_action_that_is_not_finite_ends_the_episode() -> None:
    with pytest.raises(NonFiniteOutput):
        play_episode(Script(), lambda _: NOT_A_NUMBER, ACTIONS, rules(), 7, EpisodeControl())


@each_case("at", [0, 2])
def test_leaving_happens_between_two_steps(at: int) -> None:
    watch = EpisodeControl()

    def ask(seed: int, step: int) -> None:
        watch.leave_reason = "asked" if step == at else ""

    world = Script(hook=ask)
    watch.leave_reason = "" if at else "asked"
    with pytest.raises(Leaving):
        played(world, rules(), watch)
    assert len(world.seen) == watch.steps == at


def test_every_step_is_counted_for_the_worker() -> None:
    watch = EpisodeControl()
    played(Script(), rules(), watch)
    played(Script(), rules(3), watch)
    assert watch.steps == 8


def test_moments_are_of_all_observations_from_the_reset_to_the_last() -> None:
    world = Script([1.0] * 4)
    moments = played(world, rules(), observe=True).moments
    seen = np.array([world.observation(step) for step in range(5)])
    expected = Moments.of(seen)
    assert moments is not None and moments.count == 5
    assert (
        moments.mean.tobytes() == expected.mean.tobytes()
        and moments.m2.tobytes() == expected.m2.tobytes()
    )
    assert played(world, rules()).moments is None


@each_case(("statistics", "first"), [(None, 3.5), (STATISTICS, 2.0)])
def test_a_policy_sees_normalised_observations(
    statistics: FrozenStatistics | None, first: float
) -> None:
    parameters = np.array([0.5, 3.5], np.float32)
    config, spec, policy = config_of(), spec_of(action=WIDE), LinearPolicy(2, 1)
    world = Script([1.0])
    player = EpisodePlayer(config, spec, policy, EpisodeControl(), world)
    list(player.play([EpisodeSpec(parameters, 7)], 1, rules(), statistics))
    assert [action.tolist() for *_, action in world.seen] == [[first]]


# --- action noise


def test_action_noise_walks_through_the_table_from_the_place_of_its_key() -> None:
    table, action = NoiseTable.in_memory(100), ActionSpec("box", (3,), (-1.0,) * 3, (1.0,) * 3)
    places = table.size - 3 + 1
    noise = ActionNoise(table, action, 0.5).begin(2**63 + 90)
    at = (2**63 + 90) % places
    for _ in range(100):
        assert noise().tobytes() == (np.float32(0.5) * table.row(at, 3)).tobytes()
        at = (at + 3) % places


def test_action_noise_is_added_before_the_bound() -> None:
    table = NoiseTable.in_memory(1000)
    world = Script([1.0] * 30)
    play_episode(
        world,
        lambda _: np.full(1, 0.9, np.float32),
        ACTIONS,
        rules(),
        7,
        EpisodeControl(),
        noise=ActionNoise(table, BOX, 1.0).begin(5),
    )
    expected = np.clip(np.float32(0.9) + table.row(5, 30), -1, 1)
    assert np.array_equal(np.concatenate([action for *_, action in world.seen]), expected)


@each_case("size", [1, 3])
def test_an_observation_of_another_shape_fails_the_episode_although_numpy_would_stretch_it(
    size: int,
) -> None:
    world = Script()
    world.hook = lambda seed, step: setattr(world, "size", size if step == 3 else 2)
    with pytest.raises(
        EpisodeFailed,
        match=rf"step 3 yields an observation of shape \[{size}\], but reset yields \[2\]",
    ):
        played(world, rules())
