"""What episodes are worth, the step at which they end, and what they leave behind. An episode in a
batch has the same bits as the same episode played by itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from es_queue.config.run_config import RunConfig
from es_queue.environments.episode_rules import EpisodeRules, Patience, Stall
from es_queue.environments.interface import ActionSpec
from es_queue.numerics.noise_table import NoiseTable
from es_queue.numerics.statistics import FrozenStatistics, Moments, sum_in_order
from es_queue.policies.actions import ActionMap, NonFiniteOutput
from es_queue.policies.base import Policy
from es_queue.protocol.messages import TRAIN, Block
from es_queue.slots import Span, spans_to_bytes
from tests.cases import each_case
from tests.parts import built, config_of, task_of
from tests.tiny import BOX, Script, spec_of
from workers.episode import Episode, EpisodeFailed, EpisodeSpec, Played, action_noise, play_episode
from workers.heartbeat import EpisodeControl, Leaving
from workers.player import Player

TABLE = NoiseTable.in_memory(2**14)
ACTIONS = ActionMap(BOX, "clip")
WIDE = ActionSpec("box", shape=(1,), low=(-9.0,), high=(9.0,))
#: Of the first observation, 0 and 1, they make 0.5 and 0.5.
HALVES = FrozenStatistics(np.array([-1, 0.5], np.float32), np.array([2, 1], np.float32), clip=5.0)


def rules(limit: int = 100, **changes: Any) -> EpisodeRules:
    return EpisodeRules(limit, **changes)


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
    assert played(Script([1.0], ends=False), EpisodeRules(20, patience=Patience(4, 0))).steps == 20
    assert (
        played(
            Script([1.0], ends=False), EpisodeRules(20, patience=Patience(4, 0), reward_shift=1.0)
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
    episode = played(Script([1.0] * length), EpisodeRules(limit))
    assert (episode.steps, episode.at_limit, episode.cut) == (steps, at_limit, False)


def test_an_end_that_patience_shares_with_the_environment_is_not_cut() -> None:
    assert not played(Script([0.0] * 3), rules(patience=Patience(3, 0))).cut
    assert played(Script([0.0] * 4), rules(patience=Patience(3, 0))).cut


def test_an_evaluation_knows_no_rule_but_its_limit() -> None:
    episode = played(Script([-1.0], ends=False), EpisodeRules(40))
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
def test_leaving_happens_between_two_steps_of_an_episode(at: int) -> None:
    watch = EpisodeControl()

    def ask(seed: int, step: int) -> None:
        watch.leave_reason = "asked" if step == at else ""

    world = Script(hook=ask)
    watch.leave_reason = "" if at else "asked"
    with pytest.raises(Leaving):
        played(world, rules(), watch)
    assert len(world.seen) == watch.steps == at


def test_moments_are_of_all_observations_from_the_reset_to_the_last() -> None:
    world = Script([1.0] * 4)
    moments = played(world, rules(), sampled=True).moments
    seen = np.array([world.observation(step) for step in range(5)])
    expected = Moments.of(seen)
    assert moments is not None and moments.count == 5
    assert (
        moments.mean.tobytes() == expected.mean.tobytes()
        and moments.m2.tobytes() == expected.m2.tobytes()
    )
    assert played(world, rules()).moments is None


@each_case(("statistics", "first"), [(None, 3.5), (HALVES, 2.0)])
def test_a_policy_sees_normalised_observations(
    statistics: FrozenStatistics | None, first: float
) -> None:
    parameters = np.array([0.5, 3.5, 0.0], np.float32)
    config, spec, policy = RunConfig(env="Script"), spec_of(action=WIDE), built("linear", 2, 1)
    world = Script([1.0])
    player = Player(config, spec, policy, world)
    list(player.play_episodes([EpisodeSpec(parameters, 7)], 1, rules(), statistics))
    assert [action.tolist() for *_, action in world.seen] == [[first]]


# --- action noise


def test_action_noise_walks_through_the_table_from_the_place_of_its_key() -> None:
    table = NoiseTable.in_memory(100)
    places = table.size - 3 + 1
    noise = action_noise(table, 3, 0.5, 2**63 + 90)
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
        noise=action_noise(table, 1, 1.0, 5),
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


# --- many at once

POLICY = built("mlp", 2, 1, hidden=(5,))
STATISTICS = FrozenStatistics(np.array([1, -1], np.float32), np.array([2, 0.5], np.float32), 5.0)
SEEDS = list(range(11, 24))


class Swing:
    """An Environment: rewards and observations depend on seed and actions; the episode of seed s
    lasts s steps.
    """

    def __init__(self, fault: int = -1, worst: float = 0.0) -> None:
        self.fault, self.worst = fault, worst

    def reset(self, seed: int) -> np.ndarray:
        self.seed, self.at, self.x = seed, 0, seed / 7
        return self._look()

    def _look(self) -> np.ndarray:
        return np.array([np.sin(self.x), np.cos(3 * self.x)], np.float32)

    def step(self, action: Any) -> tuple[np.ndarray, float, bool]:
        assert self.at < self.seed, "stepped after its end"
        self.at += 1
        self.x += float(action[0]) + 0.3
        if self.seed == self.fault and self.at == 4:
            raise RuntimeError(f"seed {self.seed} fell over")
        return self._look(), float(np.float32(np.sin(self.x) - 0.2)), self.at == self.seed

    def close(self) -> None: ...


class Many:
    """A VectorEnvironment made of single ones. ``sizes``: how many episodes each reset began."""

    min_episodes = 1

    def __init__(self, make: Any = Swing, most: int = 5) -> None:
        self.make, self.max_episodes, self.sizes = make, most, []

    def reset(self, seeds: Sequence[int]) -> np.ndarray:
        self.sizes.append(len(seeds))
        self.worlds = [self.make() for _ in seeds]
        return np.stack([world.reset(seed) for world, seed in zip(self.worlds, seeds, strict=True)])

    def step(
        self, rows: np.ndarray, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        found = [self.worlds[row].step(action) for row, action in zip(rows, actions, strict=True)]
        observations, rewards, over = zip(*found, strict=True)
        return np.stack(observations), np.array(rewards), np.array(over)

    def close(self) -> None: ...


def games() -> list[EpisodeSpec]:
    generator = np.random.default_rng(5)
    return [
        EpisodeSpec(
            generator.normal(size=POLICY.size).astype(np.float32),
            seed,
            number % 3 == 0,
            77 * number,
        )
        for number, seed in enumerate(SEEDS)
    ]


def play(
    how: EpisodeRules,
    wanted: Sequence[EpisodeSpec | Exception],
    worlds: Many | None,
    watch: EpisodeControl | None = None,
    statistics: Any = STATISTICS,
    policy: Policy = POLICY,
    noise: float = 0.0,
) -> list[Played]:
    config = RunConfig(env="Script", action_noise=noise)
    player = Player(config, spec_of(), policy, Swing(), worlds, TABLE, watch)
    with np.errstate(all="ignore"):
        return list(player.play_episodes(wanted, len(wanted), how, statistics))


def together(
    how: EpisodeRules, wanted: Sequence[EpisodeSpec], make: Any = Swing, **more: Any
) -> list[Played]:
    return play(how, wanted, Many(make, 100), **more)


def alone(how: EpisodeRules, game: EpisodeSpec, **more: Any) -> Played:
    return play(how, [game], None, **more)[0]


def same(one: Played, other: Played) -> bool:
    assert isinstance(one, Episode) and isinstance(other, Episode)
    bits = [
        episode.moments
        and (episode.moments.count, episode.moments.mean.tobytes(), episode.moments.m2.tobytes())
        for episode in (one, other)
    ]
    return bits[0] == bits[1] and replace(one, moments=None) == replace(other, moments=None)


HOW = [
    {},
    {"limit": 15},
    {"limit": 1},
    {"reward_shift": 0.1},
    {"reward_floor": -0.5},
    {"by_sign": True, "reward_shift": 0.05},
    {"patience": Patience(4, 0.2)},
    {"patience": Patience(3, 0.0), "reward_shift": 0.3, "reward_floor": -0.4},
    {"stall": Stall(1, 0.7, 2)},
    {"stall": Stall(0, 0.9, 3), "patience": Patience(6, 0.1), "limit": 14},
    {"patience": Patience(3, 0.0), "reward_floor": 0.0},
    {"patience": Patience(11, 0.0), "reward_shift": 10.0, "reward_floor": 0.0},
]


@each_case("statistics", [None, STATISTICS])
@each_case("changes", HOW)
def test_each_episode_is_what_it_is_alone(changes: dict[str, Any], statistics: Any) -> None:
    how = rules(**changes)
    found = together(how, games(), statistics=statistics)
    assert all(
        same(one, alone(how, game, statistics=statistics))
        for one, game in zip(found, games(), strict=True)
    )


def test_action_noise_is_each_episodes_own() -> None:
    found = together(rules(), games(), noise=0.5)
    assert all(
        same(one, alone(rules(), game, noise=0.5)) for one, game in zip(found, games(), strict=True)
    )
    assert not all(
        same(one, alone(rules(), game)) for one, game in zip(found, games(), strict=True)
    )


def test_every_step_is_counted_for_the_worker() -> None:
    watch = EpisodeControl()
    together(rules(), games(), watch=watch)
    assert watch.steps == sum(SEEDS)


def test_leaving_happens_between_two_steps() -> None:
    watch = EpisodeControl()

    class Asked(Swing):
        def step(self, action: Any) -> tuple[np.ndarray, float, bool]:
            watch.leave_reason = "asked" if self.at == 2 else ""
            return super().step(action)

    with pytest.raises(Leaving):
        together(rules(), games(), Asked, watch=watch)
    assert watch.steps == 3 * len(SEEDS)


def test_an_output_that_is_not_finite_fails_its_own_episode_alone() -> None:
    wanted = games()
    wanted[3] = replace(wanted[3], parameters=np.full(POLICY.size, np.nan, np.float32))
    found = together(rules(), wanted)
    assert str(found[3]) == "the policy returned a number that is not finite"
    assert all(
        same(one, alone(rules(), game))
        for one, game in zip(found, wanted, strict=True)
        if game is not wanted[3]
    )
    assert all(isinstance(one, Exception) for one in together(rules(), [wanted[3]] * 3))


class Costly(Swing):
    """Pays ``worst`` besides in each step of the faulty seed, and does not raise."""

    def step(self, action: Any) -> tuple[np.ndarray, float, bool]:
        fault, self.fault = self.fault, -1
        observation, reward, over = super().step(action)
        self.fault = fault
        return observation, reward + (self.worst if self.seed == fault else 0.0), over


@each_case("worst", [np.nan, np.inf, 1e308])
def test_a_return_that_is_not_finite_fails_its_own_episode_alone(worst: float) -> None:
    found = together(rules(), games(), partial(Costly, SEEDS[6], worst))
    assert [isinstance(one, EpisodeFailed) for one in found] == [
        game.seed == SEEDS[6] for game in games()
    ]


def test_where_the_environments_raise_the_episode_at_fault_is_found() -> None:
    found = together(rules(), games(), partial(Swing, SEEDS[4]), noise=0.5)
    assert [type(one) for one in found].count(RuntimeError) == 1 and str(
        found[4]
    ) == f"seed {SEEDS[4]} fell over"
    assert all(
        same(one, alone(rules(), game, noise=0.5))
        for number, (one, game) in enumerate(zip(found, games(), strict=True))
        if number != 4
    )


def test_an_individual_that_cannot_be_built_is_its_own_outcome() -> None:
    fault = RuntimeError("no individual")
    wanted: list[EpisodeSpec | Exception] = list(games())
    wanted[2] = wanted[12] = fault
    for worlds in (None, Many(Swing, 100), Many(Swing, 2)):
        found = play(rules(), wanted, worlds)
        assert [one for one in found if isinstance(one, Exception)] == [fault] * 2
        assert all(
            one is game if isinstance(game, Exception) else same(one, alone(rules(), game))
            for one, game in zip(found, wanted, strict=True)
        )


def long_games(lengths: Sequence[int], every: int = 2) -> list[EpisodeSpec]:
    generator = np.random.default_rng(6)
    return [
        EpisodeSpec(
            generator.normal(size=POLICY.size).astype(np.float32), length, number % every == 0
        )
        for number, length in enumerate(lengths)
    ]


@each_case("limit", [63, 64, 65, 400])
def test_the_observations_of_long_games_are_all_kept(limit: int) -> None:
    wanted = long_games([300, 5, 64, 65, 129, 63, 260, 128, 1], every=1)
    found = together(rules(limit), wanted)
    assert all(
        same(one, alone(rules(limit), game)) for one, game in zip(found, wanted, strict=True)
    )
    moments = [one.moments for one in found if isinstance(one, Episode)]
    assert [one.count for one in moments if one] == [1 + min(limit, game.seed) for game in wanted]


def test_an_output_that_fails_leaves_the_others_their_action_noise() -> None:
    wanted = games()
    for number in (0, 7, len(wanted) - 1):
        wanted[number] = replace(
            wanted[number], parameters=np.full(POLICY.size, np.inf, np.float32)
        )
    found = together(rules(), wanted, noise=0.5)
    assert [isinstance(one, Episode) for one in found] == [
        number not in (0, 7, len(wanted) - 1) for number in range(len(wanted))
    ]
    assert all(
        same(one, alone(rules(), game, noise=0.5))
        for one, game in zip(found, wanted, strict=True)
        if isinstance(one, Episode)
    )


@each_case(
    ("most", "fewest", "count", "sizes"),
    [
        (5, 1, 13, [4, 4, 5]),
        (100, 1, 13, [13]),
        (8, 6, 12, [6, 6]),
        (8, 6, 11, []),  # 5 and 6: fewer than pay
        (8, 6, 6, [6]),
        (8, 6, 5, []),
    ],
)
def test_batches_are_of_about_equal_size_and_too_few_episodes_are_played_one_by_one(
    most: int, fewest: int, count: int, sizes: list[int]
) -> None:
    many = Many(Swing, most)
    many.min_episodes = fewest
    found = play(rules(), games()[:count], many)
    assert many.sizes == sizes
    assert all(same(one, alone(rules(), game)) for one, game in zip(found, games(), strict=False))


def test_episodes_are_played_as_their_outcomes_are_read() -> None:
    for worlds, sizes in ((None, []), (Many(Swing, 5), [4])):
        watch = EpisodeControl()
        config = RunConfig(env="Script")
        player = Player(config, spec_of(), POLICY, Swing(), worlds, TABLE, watch)
        outcomes = player.play_episodes(iter(games()), len(SEEDS), rules(), STATISTICS)
        assert watch.steps == 0
        next(outcomes)
        played = SEEDS[:4] if worlds else SEEDS[:1]
        assert watch.steps == sum(played) and watch.episode_began is None
        assert worlds is None or worlds.sizes == sizes


class Exiting(Swing):
    def step(self, action: Any) -> tuple[np.ndarray, float, bool]:
        if (self.seed, self.at) == (SEEDS[3], 4):
            raise SystemExit(0)
        return super().step(action)


@each_case("at_once", [True, False])
def test_an_environment_that_exits_fails_only_its_own_episode(at_once: bool) -> None:
    many = Many(Exiting, 100) if at_once else None
    player = Player(RunConfig(env="Script"), spec_of(), POLICY, Exiting(), many)
    found = list(player.play_episodes(games(), len(SEEDS), rules(), STATISTICS))
    assert str(found[3]) == "the environment calls sys.exit(0)"
    assert all(isinstance(one, Episode) for one in found[:3] + found[4:])


def test_a_process_that_grew_too_large_answers_with_all_that_was_played_at_once() -> None:
    config = config_of(population=8)
    policy = built("linear", 2, 1)
    control, worlds = EpisodeControl(), Many(partial(Script, (1.0,) * 3), 100)
    player = Player(config, spec_of(), policy, Swing(), worlds, TABLE, control)
    task, published = task_of(policy.size, 2)
    task = replace(task, spans=spans_to_bytes([Span(TRAIN, 0, 4)]))
    player.open(task, published)
    control.finish("its process is too large")
    answer = player.play(Block(task.publication, "train", 0, 4), 0)
    seconds = answer.results["seconds"]
    assert worlds.sizes == [8] and len(answer.results) == 4
    assert seconds[0] > 0 and (seconds == seconds[0]).all()
