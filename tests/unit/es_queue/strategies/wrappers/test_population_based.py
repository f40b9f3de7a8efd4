"""Population-based training: which members are copied, and what becomes of their settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from es_queue import testing
from es_queue.config.parsing import config_from_values
from es_queue.config.run_config import RunConfig
from es_queue.config.schedules import RateFactors
from es_queue.errors import UsageError
from es_queue.numerics.ordered_sums import norm
from es_queue.numerics.slot_plan import TUNING_EPISODES, centre_episodes
from es_queue.strategies import STRATEGIES, Batch, State, Strategy, make_strategy
from es_queue.strategies.base import centre_of
from es_queue.strategies.capabilities.hooks import centre_count, migrate_state
from es_queue.strategies.wrappers.population_based import (
    FIRST_STEPS,
    MOST_STEPS,
    first_steps,
    population_based,
    with_copies,
)
from tests.cases import each_case

NOISE, SIZE = testing.NOISE, testing.SIZE
ZEROS = np.zeros(SIZE, np.float32)
PLAIN = ["ars", "openai_es", "pgpe", "snes", "csa_es", "sep_cma_es", "cma_es", "lm_ma_es"]
each_plain = each_case("name", PLAIN)
BOTH = ("sigma", "learning_rate")


def made(**settings: Any) -> Strategy:
    values = {
        "strategy": "openai_es",
        "tune": "sigma,learning_rate",
        "tune_generations": 3,
        "population": 32,
        "seed": 1,
    }
    return make_strategy(RunConfig(**{**values, "noise_size": len(NOISE.noise), **settings}), SIZE)


def generation_of(
    strategy: Strategy, state: State, generation: int, scores: list[float] | None = None
) -> Batch:
    """A generation on the sphere; ``scores`` replace the fitness of its measured members."""
    batch = replace(testing.run_generation(strategy, state, generation), generation=generation)
    if scores is None or not len(batch.centre_fitness):
        return batch
    return replace(batch, centre_fitness=np.array(scores))


def after(strategy: Strategy, generations: int, scores: list[float] | None = None) -> State:
    state = strategy.start(ZEROS)
    for generation in range(generations):
        state, _ = strategy.learn(state, generation_of(strategy, state, generation, scores))
    return state


def member(state: State, row: int) -> State:
    return {
        name.partition(".")[2]: value for name, value in state.items() if name.startswith(f"{row}.")
    }


def alone(strategy: Strategy, state: State, row: int) -> Strategy:
    """A member's strategy by itself, with its settings."""
    kind = STRATEGIES[strategy.config.strategy]
    steps = {name: int(state[f"{name}_steps"][row]) for name in BOTH}
    factors = {name: 1.25**count if count > 0 else 0.8**-count for name, count in steps.items()}
    return kind(strategy.config, SIZE, RateFactors(**factors))


@each_plain
@each_case("check", testing.CHECKS)
def test_members_do_what_every_strategy_must(check: Callable[[Strategy], None], name: str) -> None:
    check(made(strategy=name))


@each_plain
def test_members_are_separate_searches_with_settings_of_their_own(name: str) -> None:
    strategy = made(strategy=name)
    state = strategy.start(ZEROS)
    batch = generation_of(strategy, state, 0)
    learnt, info = strategy.learn(state, batch)
    for row in range(4):
        single = alone(strategy, state, row)
        own = replace(
            batch,
            noise_indices=batch.noise_indices[row::4],
            fitness=batch.fitness[row::4],
        )
        expected, _ = single.learn(single.start(ZEROS), own)
        for array, value in expected.items():
            np.testing.assert_allclose(learnt[f"{row}.{array}"], value, rtol=1e-6)
        assert info[f"member_{row}_sigma"] == pytest.approx(single.sigma(single.start(ZEROS)))
        if single.step_rate is not None:
            assert info[f"member_{row}_learning_rate"] == pytest.approx(single.step_rate)
    assert len({info[f"member_{row}_sigma"] for row in range(4)}) > 1


def test_the_first_member_begins_with_the_configured_settings_and_the_others_around_them() -> None:
    drawn = np.stack([first_steps(seed, row, 5) for seed in range(200) for row in range(2)])
    assert (drawn[:, 0] == 0).all()
    assert (drawn[:, 1:].min(), drawn[:, 1:].max()) == (-FIRST_STEPS, FIRST_STEPS)
    assert not np.array_equal(first_steps(1, 0, 5), first_steps(1, 1, 5))


@each_plain
def test_the_worst_member_continues_with_a_copy_of_the_best_one(name: str) -> None:
    strategy = made(strategy=name)
    before = after(strategy, 2)
    batch = generation_of(strategy, before, 2, [1.0, 4.0, 3.0, 2.0])
    state, info = strategy.learn(before, batch)
    learnt = [search.learn(part, own)[0] for (search, part), own in split(strategy, before, batch)]
    for row, source in enumerate([1, 2, 3]):
        for array, value in learnt[source].items():
            np.testing.assert_array_equal(state[f"{row}.{array}"], value)
    np.testing.assert_array_equal(state["3.parameters"], learnt[1]["parameters"])
    np.testing.assert_array_equal(state["parameters"], learnt[1]["parameters"])
    assert state["score_sum"].tolist() == [4, 3, 2, 4]
    assert [info[f"member_{row}_score"] for row in range(4)] == [1, 4, 3, 2]


def split(strategy: Any, state: State, batch: Batch) -> list[tuple[tuple[Strategy, State], Batch]]:
    pairs = strategy.with_searches(state)
    return [
        (
            pairs[row],
            replace(
                batch,
                noise_indices=batch.noise_indices[row :: len(pairs)],
                fitness=batch.fitness[row :: len(pairs)],
            ),
        )
        for row in range(len(pairs))
    ]


def test_a_copy_has_settings_one_step_from_those_of_its_source_and_no_other_member_changes() -> (
    None
):
    strategy = made()
    before = after(strategy, 2)
    seen = set()
    for generation in range(2, 40):
        batch = generation_of(strategy, before, generation, [1.0, 4.0, 3.0, 2.0])
        state, _ = strategy.learn(before, batch)
        moves = [state[f"{name}_steps"] - before[f"{name}_steps"][[1, 2, 3, 1]] for name in BOTH]
        assert not any(move[:3].any() for move in moves)
        seen.add(tuple(int(move[3]) for move in moves))
    assert seen == {(sigma, rate) for sigma in (1, -1) for rate in (1, -1)}


def test_settings_stay_within_their_bounds() -> None:
    strategy = made()
    state = after(strategy, 2)
    edges = []
    for end in (-MOST_STEPS, MOST_STEPS):
        edge = {f"{name}_steps": np.full(4, end) for name in BOTH}
        for generation in range(2, 12):
            batch = generation_of(strategy, {**state, **edge}, generation)
            learnt, _ = strategy.learn({**state, **edge}, batch)
            edges += [abs(int(learnt[f"{name}_steps"][3])) for name in BOTH]
    assert set(edges) == {MOST_STEPS, MOST_STEPS - 1}


def test_only_the_named_setting_is_tuned() -> None:
    strategy = made(tune="learning_rate")
    state = after(strategy, 7)
    assert "sigma_steps" not in state and state["learning_rate_steps"].any()
    _, info = strategy.learn(state, generation_of(strategy, state, 7))
    assert len({info[f"member_{row}_sigma"] for row in range(4)}) == 1
    assert strategy.step_rate is None and made(tune="sigma").step_rate is not None


def test_the_learnt_sigma_of_a_copy_changes_with_its_setting() -> None:
    strategy = made(strategy="snes", tune="sigma")
    before = after(strategy, 2)
    batch = generation_of(strategy, before, 2, [4.0, 3.0, 2.0, 1.0])
    state, _ = strategy.learn(before, batch)
    factor = norm(state["3.sigma"]) / norm(state["0.sigma"])
    step = int(state["sigma_steps"][3] - state["sigma_steps"][0])
    assert factor == pytest.approx(1.25 if step == 1 else 0.8)


def test_members_are_measured_only_in_a_generation_that_ends_with_a_comparison() -> None:
    strategy = made()
    counts, state = [], strategy.start(ZEROS)
    for generation in range(6):
        counts.append(centre_count(strategy, state))
        state, info = strategy.learn(state, generation_of(strategy, state, generation))
        assert ("member_3_score" in info) == (generation in (2, 5))
    assert counts == [1, 1, 5, 1, 1, 5]
    assert centre_episodes(strategy.config) == TUNING_EPISODES


def test_the_measured_policies_are_those_of_all_members() -> None:
    strategy = made(average_decay=0.5)
    state = after(strategy, 2)
    published = strategy.published(state)
    for row in range(4):
        expected = member(state, row)["averaged_parameters"]
        np.testing.assert_array_equal(centre_of(strategy, published, row + 1, np.zeros), expected)
    best = centre_of(strategy, published, 0, np.zeros)
    np.testing.assert_array_equal(best, strategy.centre(published))


def test_a_member_whose_episodes_all_failed_is_the_worst() -> None:
    strategy = made()
    before = after(strategy, 2)
    batch = generation_of(strategy, before, 2, [-5.0, np.nan, -3.0, -4.0])
    state, info = strategy.learn(before, batch)
    assert state["score_sum"].tolist() == [-3, -4, -5, -3] and info["no_step"] == 0
    assert "member_1_score" not in info


@each_case(
    ("members", "order"),
    [
        (2, [3, 3]),
        (5, [3, 1, 0, 2, 3]),
        (8, [3, 1, 0, 2, 4, 5, 3, 1]),
    ],
)
def test_a_quarter_of_the_members_is_replaced(members: int, order: list[int]) -> None:
    ranks = {2: [3, 1], 5: [3, 1, 0, 2, 4], 8: [3, 1, 0, 2, 4, 5, 6, 7]}
    assert with_copies(ranks[members]) == order


def test_settings_are_tuned_towards_those_that_learn() -> None:
    """A hundredth of a good learning rate is far from enough; members find a higher one."""
    strategy = made(learning_rate=0.0005, population=64, tune="learning_rate", tune_members=8)
    state = after(strategy, 90)
    assert state["learning_rate_steps"][0] >= 8
    fixed = make_strategy(replace(strategy.config, tune="none"), SIZE)
    assert testing.sphere(state["parameters"]) > testing.sphere(after(fixed, 90)["parameters"])


def test_a_changed_setting_applies_to_all_members_at_their_factors() -> None:
    strategy = made(strategy="snes")
    state = after(strategy, 2)
    later = population_based(STRATEGIES["snes"])(strategy.config, SIZE, RateFactors(sigma=0.5))
    migrated = migrate_state(later, state, strategy)
    for row in range(4):
        np.testing.assert_allclose(migrated[f"{row}.sigma"], state[f"{row}.sigma"] * 0.5)
    assert migrated.keys() == state.keys()


@each_case("name", ["ga", "novelty", "random_search"])
def test_a_strategy_whose_slots_differ_cannot_be_tuned(name: str) -> None:
    with pytest.raises(UsageError, match="leave tune out"):
        made(strategy=name, tune="sigma")


@each_case(
    ("settings", "sentence"),
    [
        ({"tune": "momentum"}, "tune is 'momentum': use sigma, learning_rate, sigma,learning_rate"),
        ({"tune": "sigma,sigma"}, "tune is 'sigma,sigma': use sigma"),
        ({"tune": ""}, "tune is '': use sigma"),
        ({"tune_members": 1}, "tune_members is 1 in the settings: use a whole number from 2 to 64"),
        ({"population": 14}, "each of 4 members needs two slots: use 16 or more"),
        (
            {"islands": 2},
            "but islands divides the population too: leave tune or islands out",
        ),
        ({"schedule": "async"}, "leave tune out, or use the schedule sync"),
        (
            {"restart_deadlines": "1=2"},
            "but tune replaces searches by its own rule: leave restart_deadlines or tune out",
        ),
        (
            {"strategy": "ga"},
            "tune is sigma,learning_rate, but ga has no learning rate: leave learning_rate out",
        ),
        (
            {"strategy": "ars", "top": 5},
            "the first of 4 members in one of 32 has 4 pairs: use at most 4",
        ),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(
    settings: dict[str, Any], sentence: str
) -> None:
    values = {"env": "CartPole-v1", "strategy": "openai_es", "population": 32}
    with pytest.raises(UsageError, match=sentence):
        config_from_values({**values, "tune": "sigma,learning_rate", **settings}, "the settings")
