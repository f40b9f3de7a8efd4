"""When a descent is over, and how the next one begins."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from es_queue import testing
from es_queue.numerics.noise_table import NoiseTable
from es_queue.numerics.slot_plan import make_generation_plan
from es_queue.strategies import Batch, State, Strategy
from es_queue.strategies.base import Info
from es_queue.strategies.capabilities import restarts
from es_queue.strategies.capabilities.restarts import Descent, is_constant, is_flat, is_stagnant
from es_queue.strategies.covariance.csa_es import CSAES

POPULATION, SIZE = 32, testing.SIZE


def made(rule: str, **settings: Any) -> Strategy:
    return testing.sample_strategy(CSAES, restarts=rule, **settings)


def generation(
    strategy: Strategy, state: State, seed: int, values: Any = None
) -> tuple[State, Info]:
    """One on the sphere, or with the fitness ``values``."""
    batch = testing.run_generation(strategy, state, seed)
    if values is not None:
        batch.fitness[:] = np.reshape(values, (-1, 1))
    return strategy.learn(state, batch)


def descent(state: State) -> Descent:
    return Descent(*state["descent"].tolist())


def begun(strategy: Strategy, **changes: Any) -> State:
    """A state whose first descent has the ``changes``."""
    state = strategy.start(np.full(SIZE, 0.1, np.float32))
    return {**state, **changes}


def sequence(strategy: Strategy, count: int) -> list[Descent]:
    """The first ``count`` descents when each ends after ten generations of its own population."""
    rule, seed, descents = strategy.config.restarts, strategy.config.seed, [Descent()]
    for _ in range(count - 1):
        last = descents[-1]
        for _ in range(10 * last.generations):
            last = last.counted()
        descents.append(last.following(rule, seed)[0])
    return descents


# --- the rules


def test_ipop_doubles_the_population_each_time() -> None:
    assert [one.generations for one in sequence(made("ipop"), 5)] == [1, 2, 4, 8, 16]


def test_bipop_gives_small_descents_as_much_as_large_ones() -> None:
    descents = sequence(made("bipop"), 40)
    large = [one.generations for one in descents if not one.is_small]
    assert large == [2 ** (k + 1) for k in range(len(large))]
    for before, after in pairwise(descents[1:]):
        assert after.is_small == (after.small < after.large)
        if after.is_small:
            assert 1 <= after.generations <= max(1, 2**before.doublings // 2)
    assert descents[-1].small > 0.4 * descents[-1].large


def test_a_small_descent_draws_its_population_and_its_sigma_from_the_runs_seed() -> None:
    late = Descent(number=9, doublings=6, large=100, small=10)
    drawn = [late.following("bipop", seed) for seed in range(20)]
    assert drawn == [late.following("bipop", seed) for seed in range(20)]
    assert len({next_descent.generations for next_descent, _ in drawn}) > 3
    assert all(0.01 <= factor <= 1 for _, factor in drawn)
    assert min(factor for _, factor in drawn) < 0.1 < max(factor for _, factor in drawn)


# --- a descent that ends


def test_a_descent_whose_fitness_is_flat_ends_and_the_next_begins_at_the_first_parameters() -> None:
    strategy = made("ipop")
    state, first = begun(strategy), begun(strategy)
    state, _ = generation(strategy, state, 0)
    assert not np.array_equal(state["parameters"], first["parameters"])
    for seed in range(restarts.FLAT_UPDATES):
        state, info = generation(strategy, state, seed, np.zeros(POPULATION))
    assert info["descent"] == 1 and info["no_step"] == 0
    for name in ("parameters", "sigma", "path"):
        assert np.array_equal(state[name], first[name])
    assert (descent(state).generations, state["history"].shape) == (2, (2, 0))
    assert info["sigma"] == strategy.sigma(state)


@pytest.mark.parametrize("factor", [1e-9, 1e5])
def test_a_sigma_that_vanishes_or_explodes_ends_a_descent(factor: float) -> None:
    strategy = made("ipop")
    state = begun(strategy)
    state["sigma"] *= np.float32(factor)
    state, info = generation(strategy, state, 0, np.arange(POPULATION))
    assert info["descent"] == 1
    assert strategy.sigma(state) == strategy.sigma(begun(strategy))


def test_a_small_descent_of_bipop_begins_with_its_own_sigma() -> None:
    strategy = made("bipop")
    late = Descent(number=9, doublings=6, large=100, small=10)
    state = begun(strategy, **strategy.record(late))  # type: ignore[attr-defined]
    state["sigma"] *= np.float32(1e5)
    _, factor = late.following("bipop", 1)
    state, info = generation(strategy, state, 0, np.arange(POPULATION))
    assert info["descent"] == 10
    assert info["sigma"] == pytest.approx(factor * strategy.sigma(begun(strategy)), rel=1e-6)


def test_without_restarts_a_descent_goes_on_whatever_happens() -> None:
    strategy = made("none")
    state = begun(strategy)
    state["sigma"] *= np.float32(1e-9)
    for seed in range(5):
        state, info = generation(strategy, state, seed, np.zeros(POPULATION))
    assert "descent" not in info and "descent" not in state
    assert strategy.sigma(state) < 1e-8


# --- several generations as one population


def test_generations_are_collected_and_learnt_from_as_one_population() -> None:
    strategy, large = made("ipop"), made("none", population=2 * POPULATION)
    doubled = Descent(number=1, doublings=1, generations=2, is_small=0)
    state = begun(strategy, **strategy.record(doubled))  # type: ignore[attr-defined]
    batches = [testing.run_generation(strategy, state, seed) for seed in (3, 4)]
    after, info = strategy.learn(state, batches[0])
    assert (info["no_step"], info["update_ratio"], info["gradient_norm"]) == (0, 0, 0)
    assert np.array_equal(strategy.published(after), strategy.published(state))
    after, _ = strategy.learn(after, batches[1])
    whole = Batch(
        testing.NOISE,
        np.concatenate([batch.noise_indices for batch in batches]),
        np.concatenate([batch.fitness for batch in batches]),
    )
    expected, _ = large.learn(begun(large), whole)
    for name in ("parameters", "sigma", "path"):
        assert np.array_equal(after[name], expected[name])
    assert len(after["waiting_indices"]) == len(after["waiting_fitness"]) == 0
    assert (descent(after).large, descent(after).updates, descent(after).collected) == (2, 1, 0)


# --- stagnation


def test_fitness_is_flat_when_half_of_the_individuals_are_as_good_as_the_best() -> None:
    alike = np.zeros((2, 3))
    assert is_flat(alike) and not is_flat(alike[:, :2])
    assert not is_flat(np.array([[0.0, 1.0, 0.0], [0.0, 0.0, 0.0]]))


def test_the_best_is_constant_when_float64_hardly_tells_it_from_the_ones_before() -> None:
    assert is_constant(np.array([9.0, *[-4.0, -4.0 - 1e-12] * 5]), 10)
    assert not is_constant(np.array([-4.0, -4.0 - 1e-9] * 5), 10)
    assert not is_constant(np.full(9, -4.0), 10)
    assert not is_constant(np.array([1e308, -1e308]), 2)


def test_a_history_stagnates_when_neither_best_nor_median_has_risen() -> None:
    random = np.random.default_rng(0)
    noise = random.normal(size=(2, 200))
    rising = noise + np.linspace(0, 5, 200)
    assert is_stagnant(noise - np.linspace(0, 1, 200), 200)
    assert not is_stagnant(rising, 200)
    assert not is_stagnant(np.stack([rising[0], -rising[1]]), 200)
    assert not is_stagnant(noise[:, :50] - np.linspace(0, 1, 50), 200)


def test_a_history_keeps_a_fifth_of_the_updates_and_what_the_rules_compare() -> None:
    strategy: Any = made("ipop")
    history = np.zeros((2, 5000))
    least = 120 + 30 * SIZE // POPULATION
    fitness = np.array([3.0, np.nan, 1.0, 2.0])
    extended = strategy.extended(history, np.resize(fitness, POPULATION), 100)
    assert extended.shape == (2, least)
    assert extended[:, -1].tolist() == [3.0, 2.0], "a failed individual is as bad as the worst"
    assert strategy.extended(history, np.ones(POPULATION), 10_000).shape == (2, 2000)


def test_restarts_find_the_highest_of_many_peaks_that_one_descent_misses() -> None:
    assert best_on_rastrigin("none") < -1e-6 <= best_on_rastrigin("ipop")


def best_on_rastrigin(rule: str) -> float:
    """The best fitness in four dimensions within 3000 generations."""
    noise = NoiseTable.in_memory(2**18)
    strategy = testing.sample_strategy(
        CSAES, 4, restarts=rule, population=16, sigma=2.0, noise_size=noise.size
    )
    state, best = strategy.start(np.full(4, 3.0, np.float32)), -np.inf
    for number in range(3000):
        plan = make_generation_plan(strategy.config, number, 4, 1).slots(0, 16)
        rows = noise.rows(plan.noise_indices, 0, 4)
        x = strategy.ask(strategy.published(state), strategy.sigma(state), rows).astype(np.float64)
        fitness = -40 - (np.square(x) - 10 * np.cos(2 * np.pi * x)).sum(axis=-1)
        best = max(best, float(fitness.max()))
        state, _ = strategy.learn(state, Batch(noise, plan.noise_indices, fitness))
    return best
