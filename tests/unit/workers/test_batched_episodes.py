"""Episodes played together: each is to the bit what it is alone, whatever its neighbours do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from es_queue.config.episode_rules import EpisodeRules, Patience, Stall
from es_queue.numerics.normalization import FrozenStatistics
from es_queue.policies.base import Policy
from es_queue.policies.mlp import MlpPolicy
from es_queue.protocol.messages import Answer, Block
from tests.cases import each_case
from tests.parts import TABLE, config_of, policy_size, task_of
from tests.tiny import BOX, spec_of
from workers.episode import (
    Episode,
    EpisodeControl,
    EpisodeFailed,
    EpisodePlayer,
    EpisodeSpec,
    Leaving,
    Outcome,
)
from workers.slots import Evaluator, FailureReport, RunParts, pack_moments

POLICY = MlpPolicy(2, 1, (5,), "tanh")
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


def rules(limit: int = 100, **changes: Any) -> EpisodeRules:
    plain = {
        "reward_shift": 0.0,
        "reward_floor": None,
        "patience": None,
        "stall": None,
        "by_sign": False,
    }
    return EpisodeRules(limit, **{**plain, **changes})


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
) -> list[Outcome]:
    player = EpisodePlayer(
        config_of(action_noise=noise),
        spec_of(),
        policy,
        watch or EpisodeControl(),
        Swing(),
        worlds,
        TABLE,
    )
    with np.errstate(all="ignore"):
        return list(player.play(wanted, len(wanted), how, statistics))


def together(
    how: EpisodeRules, wanted: Sequence[EpisodeSpec], make: Any = Swing, **more: Any
) -> list[Outcome]:
    return play(how, wanted, Many(make, 100), **more)


def alone(how: EpisodeRules, game: EpisodeSpec, **more: Any) -> Outcome:
    return play(how, [game], None, **more)[0]


def same(one: Outcome, other: Outcome) -> bool:
    assert isinstance(one, Episode) and isinstance(other, Episode)
    moments = [
        None if episode.moments is None else pack_moments(episode.moments)
        for episode in (one, other)
    ]
    return moments[0] == moments[1] and replace(one, moments=None) == replace(other, moments=None)


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


def test_the_rules_of_these_tests_end_episodes_in_every_way() -> None:
    ends = {
        (one.steps < game.seed, one.at_limit, one.cut)
        for changes in HOW
        for game in games()
        for one in [alone(rules(**changes), game)]
        if isinstance(one, Episode)
    }
    assert {(False, False, False), (True, True, False), (True, False, True)} <= ends


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


def test_the_episodes_of_a_batch_share_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    watch, now, longest = EpisodeControl(), [100.0], [0.0]

    class Slow(Swing):
        def step(self, action: Any) -> tuple[np.ndarray, float, bool]:
            assert watch.episode_began is not None
            longest[0] = max(longest[0], now[0] - watch.episode_began)
            now[0] += 1.0
            return super().step(action)

    monkeypatch.setattr("workers.episode.time.monotonic", lambda: now[0])
    together(rules(), games(), Slow, watch=watch)
    assert longest[0] <= sum(SEEDS) / len(SEEDS) + len(SEEDS)


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


def test_a_batch_shrinks_as_its_episodes_end() -> None:
    left: list[int] = []

    class Counted(Many):
        def step(self, rows: np.ndarray, actions: np.ndarray) -> Any:
            left.append(len(rows))
            return super().step(rows, actions)

    play(rules(), games(), Counted(Swing, 100))
    assert left == [sum(seed > step for seed in SEEDS) for step in range(max(SEEDS))]


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


class Copied(MlpPolicy):
    """Counts the parameter vectors that are bound: each has been copied for it."""

    rows = 0

    def bind(self, parameters: np.ndarray) -> Any:
        self.rows += len(parameters)
        return super().bind(parameters)


def long_games(lengths: Sequence[int], every: int = 2) -> list[EpisodeSpec]:
    generator = np.random.default_rng(6)
    return [
        EpisodeSpec(
            generator.normal(size=POLICY.size).astype(np.float32), length, number % every == 0
        )
        for number, length in enumerate(lengths)
    ]


@each_case("lengths", [range(1, 81), range(80, 0, -1), [3, 200] * 20, [70] * 9])
def test_parameters_are_copied_a_few_times_in_whatever_order_the_games_end(
    lengths: Sequence[int],
) -> None:
    policy, wanted = Copied(2, 1, (5,), "tanh"), long_games(lengths)
    found = together(rules(300), wanted, policy=policy)
    assert policy.rows <= 4 * len(lengths)
    assert all(same(one, alone(rules(300), game)) for one, game in zip(found, wanted, strict=True))


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


# --- whole blocks


def evaluator(worlds: Any, make: Any = Swing, **values: Any) -> Evaluator:
    from es_queue.policies import make_policy
    from es_queue.strategies import make_strategy

    config, spec = config_of(policy="mlp", hidden=(4,), **values), spec_of(limit=400)
    policy = make_policy(config, 2, BOX)
    strategy = make_strategy(config, policy.size)
    parts = RunParts(config, spec, policy, strategy, make(), worlds)
    return Evaluator(parts, TABLE, EpisodeControl())


class Short(Swing):
    """Lasts 5 to 44 steps; raises in its fourth where ``fault`` names the remainder by which it is
    known.
    """

    fault_of = -1

    def reset(self, seed: int) -> np.ndarray:
        self.whole = seed
        first = super().reset(5 + seed % 40)
        self.fault = self.seed if seed % 7 == self.fault_of else -1
        return first


class Faulty(Short):
    fault_of = 3


def block_of(
    who: Evaluator, kind: str, stop: int, said: list[FailureReport] | None = None
) -> Answer:
    size = policy_size(who)
    task, published = task_of(
        size, 2, limit=30, parameters=np.random.default_rng(2).normal(size=size)
    )
    return who.evaluate(
        task,
        published,
        Block(task.publication, kind, 0, stop),
        "host-1-abcdef",
        (said if said is not None else []).append,
    )


@each_case(
    ("kind", "stop"), [("train", 9), ("eval", 9), ("centre", 1), ("train", 1), ("final", 40)]
)
@each_case(
    "values",
    [
        {},
        {"episodes": 4, "obs_sample": 1.0, "action_noise": 0.3},
        {"patience": "3,0.1", "reward_floor": "-0.5"},
    ],
)
def test_a_block_played_together_gives_the_same_answer(
    kind: str, stop: int, values: dict[str, Any]
) -> None:
    for make in (Short, Faulty):
        said: list[list[FailureReport]] = [[], []]
        one, other = (
            block_of(evaluator(worlds, make, **values), kind, stop, told)
            for worlds, told in zip((None, Many(make)), said, strict=True)
        )
        assert (one.results, one.failures) == (other.results, other.failures)
        assert [(failure.slot, failure.seed, failure.reason) for failure in said[0]] == [
            (failure.slot, failure.seed, failure.reason) for failure in said[1]
        ]
        assert all("fell over" in failure.trace for failure in said[1])


def test_batches_are_of_about_equal_size() -> None:
    many = Many(Short, most=5)
    block_of(evaluator(many, Short), "train", 9)
    assert many.sizes == [4, 5, 4, 5]
    many.sizes.clear()
    block_of(evaluator(many, Short, episodes=4), "train", 2)
    assert many.sizes == [4, 4, 4, 4]


def test_fewer_episodes_than_pay_are_played_one_by_one() -> None:
    many = Many(Short, most=8)
    many.min_episodes = 6
    who = evaluator(many, Short)
    one, other = block_of(who, "train", 2), block_of(evaluator(None, Short), "train", 2)
    assert many.sizes == [] and one.results == other.results
    block_of(who, "train", 3)
    assert many.sizes == [6]


def test_a_process_that_has_grown_too_large_answers_what_it_has_played() -> None:
    who = evaluator(Many(Short, most=4), Short)
    who.control.finish_reason = "too large"
    sent = block_of(who, "train", 9)
    assert 1 <= len(sent.results) <= 2 and not sent.failures


def test_leaving_is_no_failure_of_a_batch() -> None:
    who = evaluator(Many(Short), Short)
    who.control.leave_reason = "asked"
    with pytest.raises(Leaving):
        block_of(who, "train", 9)
    assert who.control.episode_began is None


def test_a_noise_table_that_cannot_be_read_is_the_failure_of_its_slots(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    who = evaluator(Many(Short), Short)

    def unreadable(*_: object) -> list[np.ndarray]:
        raise OSError("no table")

    monkeypatch.setattr(who.table, "views", unreadable)
    sent = block_of(who, "train", 3)
    assert sent.results == () and {reason for _, reason in sent.failures} == {
        "host: OSError: no table"
    }
