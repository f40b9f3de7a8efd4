"""Islands against independent strategies in a loop, and what they publish."""

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
from es_queue.protocol.messages import TRAIN
from es_queue.strategies import STRATEGIES, Batch, State, Strategy, make_strategy
from es_queue.strategies.base import make_builder
from es_queue.strategies.capabilities.hooks import SlotDraw, migrate_state
from es_queue.strategies.wrappers.islands import islands_of
from tests.cases import each_case

NOISE, SIZE = testing.NOISE, testing.SIZE
ZEROS = np.zeros(SIZE, np.float32)
PLAIN = ["ars", "openai_es", "pgpe", "snes", "csa_es", "sep_cma_es", "cma_es", "lm_ma_es"]
each_plain = each_case("name", PLAIN)


def made(**settings: Any) -> Strategy:
    values = {"strategy": "snes", "islands": 4, "island_generations": 3, "population": 32}
    return make_strategy(RunConfig(**{**values, "noise_size": len(NOISE.noise), **settings}), SIZE)


def generation_of(strategy: Strategy, state: State, generation: int) -> Batch:
    return replace(testing.run_generation(strategy, state, generation), generation=generation)


def after(strategy: Strategy, generations: int) -> State:
    state = strategy.start(ZEROS)
    for generation in range(generations):
        state, _ = strategy.learn(state, generation_of(strategy, state, generation))
    return state


def naive(name: str, generations: int) -> list[dict[str, Any]]:
    """Islands as separate strategies, each with its own list of slots, the best mean first."""
    config = made(strategy=name).config
    alone = make_strategy(replace(config, islands=1), SIZE)
    islands = [{"state": alone.start(ZEROS), "means": []} for _ in range(4)]
    slots = config.population // alone.per_slot
    for generation in range(generations):
        indices = np.random.default_rng(generation).choice(50_000, slots, replace=False)
        for place, island in enumerate(islands):
            own = [index for slot, index in enumerate(indices) if slot % len(islands) == place]
            rows, state = NOISE.rows(np.array(own), 0, SIZE), island["state"]
            sigma = float(np.float32(alone.sigma(state)))
            individuals = alone.ask(alone.published(state), sigma, rows)
            fitness = testing.sphere(individuals)
            island["state"], _ = alone.learn(state, Batch(NOISE, np.array(own), fitness))
            island["means"].append(fitness.mean())
        islands.sort(key=lambda island: -decayed_mean(island["means"]))
        if (generation + 1) % 3 == 0 and len(islands) > 1:
            islands = islands[: len(islands) // 2]
    return islands


def decayed_mean(means: list[float]) -> float:
    weights = [0.9**age for age in range(len(means))]
    pairs = zip(weights, reversed(means), strict=True)
    return sum(weight * mean for weight, mean in pairs) / sum(weights)


@each_plain
@each_case("check", testing.CHECKS)
def test_islands_do_what_every_strategy_must(check: Callable[[Strategy], None], name: str) -> None:
    check(made(strategy=name))


@each_plain
@each_case(("generations", "count"), [(2, 4), (3, 2), (5, 2), (6, 1), (9, 1)])
def test_islands_are_separate_searches_of_which_the_worse_half_ends(
    name: str, generations: int, count: int
) -> None:
    state, islands = after(made(strategy=name), generations), naive(name, generations)
    assert len(state["score_sum"]) == len(islands) == count
    np.testing.assert_array_equal(state["parameters"], islands[0]["state"]["parameters"])
    for row, island in enumerate(islands):
        for array, value in island["state"].items():
            np.testing.assert_array_equal(state[f"{row}.{array}"], value)


@each_plain
def test_a_slot_is_built_by_its_island_whatever_the_block(name: str) -> None:
    strategy = made(strategy=name)
    alone = make_strategy(replace(strategy.config, islands=1), SIZE)
    state = after(strategy, 2)
    build, rows = make_builder(strategy, NOISE), NOISE.rows(np.arange(8), 0, SIZE)
    for slot in (5, 2, 7, 0):
        row = {
            array.partition(".")[2]: value
            for array, value in state.items()
            if array.startswith(f"{slot % 4}.")
        }
        sigma = float(np.float32(alone.sigma(row)))
        expected = alone.ask(alone.published(row), sigma, rows[slot : slot + 1])[0]
        drawn = SlotDraw(TRAIN, 2, slot, slot, rows[slot])
        np.testing.assert_array_equal(build(strategy.published(state), 9.0, drawn), expected)


def test_a_publication_of_another_length_is_refused() -> None:
    strategy = made()
    published = strategy.published(strategy.start(ZEROS))
    assert strategy.fits(len(published), 0) and not strategy.fits(len(published) - 1, 0)
    drawn = SlotDraw(TRAIN, 0, 0, 0, ZEROS)
    with pytest.raises(ValueError, match="do not divide into islands"):
        make_builder(strategy, NOISE)(published[:-1], 0.1, drawn)


def test_an_island_whose_individuals_all_failed_stays_and_keeps_its_score() -> None:
    strategy = made()
    state = after(strategy, 2)
    batch = generation_of(strategy, state, 0)
    batch.fitness[1::4] = np.nan
    learnt, info = strategy.learn(state, batch)
    kept = [row for row in range(4) if (learnt["score_sum"][row] == state["score_sum"][1])]
    assert info["no_step"] == 0 and len(kept) == 1
    for array in ("parameters", "sigma"):
        np.testing.assert_array_equal(learnt[f"{kept[0]}.{array}"], state[f"1.{array}"])


def test_a_generation_of_equal_fitness_changes_nothing() -> None:
    strategy = made()
    state = after(strategy, 2)
    batch = generation_of(strategy, state, 2)
    batch.fitness[:] = 1.0
    learnt, info = strategy.learn(state, batch)
    assert info["no_step"] == 1 and testing.is_same(learnt, state)


@each_plain
def test_islands_climb_the_sphere(name: str) -> None:
    end = testing.sphere(after(made(strategy=name, island_generations=10), 150)["parameters"])
    assert end > 0.1 * testing.sphere(ZEROS)


def test_an_island_without_any_result_ends_first() -> None:
    strategy = made(islands=2, island_generations=1)
    state = strategy.start(ZEROS)
    batch = generation_of(strategy, state, 0)
    batch.fitness[0::2] = np.nan
    learnt, _ = strategy.learn(state, batch)
    assert len(learnt["score_sum"]) == 1 and learnt["parameters"].any()


def test_a_schedule_of_sigma_holds_on_each_island() -> None:
    strategy = made()
    state = after(strategy, 2)
    later = islands_of(STRATEGIES["snes"])(strategy.config, SIZE, RateFactors(sigma=0.5))
    migrated = migrate_state(later, state, strategy)
    for row in range(4):
        np.testing.assert_array_equal(migrated[f"{row}.sigma"], state[f"{row}.sigma"] * 0.5)


@each_case("name", ["ga", "novelty", "random_search"])
def test_a_strategy_whose_slots_differ_has_no_islands(name: str) -> None:
    with pytest.raises(UsageError, match="leave islands out"):
        made(strategy=name)


@each_case(
    ("settings", "sentence"),
    [
        ({"population": 7}, "each of 4 islands needs two slots: use 8 or more"),
        ({"strategy": "openai_es", "population": 14}, "use 16 or more"),
        (
            {"strategy": "ars", "population": 32, "top": 5},
            "the first of 4 islands in one of 32 has 4 pairs: use at most 4",
        ),
    ],
)
def test_a_population_that_is_too_small_for_its_islands_is_refused(
    settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence):
        made(**settings)


def test_islands_close_with_their_own_generation() -> None:
    values = {"env": "CartPole-v1", "strategy": "snes", "schedule": "async", "islands": 2}
    with pytest.raises(UsageError, match="leave islands out, or use the schedule sync"):
        config_from_values(values, "the settings")
