"""Each strategy's step against its paper's formulas, written out in loops over individuals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from es_queue import testing
from es_queue.config.run_config import RunConfig
from es_queue.numerics.arrays import ArrayNoise, Floats
from es_queue.strategies import Batch, State, Strategy, make_strategy
from es_queue.strategies.cem import CEM
from es_queue.strategies.openai_es import OpenaiES
from es_queue.strategies.shaping import utilities
from tests.cases import each_case

SIZE, PAIRS = 7, 9
NOISE = ArrayNoise(np.random.default_rng(0).standard_normal(500, dtype=np.float32))
INDICES = np.arange(0, 50 * PAIRS, 50)
ROWS = NOISE.rows(INDICES, 0, SIZE).astype(np.float64)
START = np.linspace(-1, 1, SIZE).astype(np.float32)
SIGMA = np.linspace(0.1, 0.4, SIZE).astype(np.float32)
BATCH = Batch(NOISE, INDICES, np.random.default_rng(1).standard_normal((PAIRS, 2)))
SHAPINGS = ["centered-rank", "centered-sign-rank", "sign", "z-score", "log-rank"]


def made(name: str, generation: int = 0, **values: Any) -> Any:
    config = RunConfig(**{"strategy": name, "population": 2 * PAIRS, **values})
    return make_strategy(config, SIZE, generation)


def begun(strategy: Strategy, **arrays: Floats) -> State:
    return {**strategy.start(START), **arrays}


# --- ars

FITNESS = 300 * np.random.default_rng(1).standard_normal((PAIRS, 2))


@each_case("top", [0, 1, 4, PAIRS])
def test_ars_steps_along_the_best_pairs(top: int) -> None:
    kept = sorted(range(PAIRS), key=lambda slot: -FITNESS[slot].max())[: top or PAIRS]
    strategy = made("ars", top=top, learning_rate=0.3)
    after, _ = strategy.learn(begun(strategy), replace(BATCH, fitness=FITNESS))
    expected, deviation = START.astype(np.float64), np.std([FITNESS[slot] for slot in kept])
    for slot in kept:
        difference = FITNESS[slot, 0] - FITNESS[slot, 1]
        expected = expected + 0.3 / (len(kept) * deviation) * difference * ROWS[slot]
    np.testing.assert_allclose(after["parameters"], expected, rtol=1e-5, atol=1e-6)


@each_case("value", [0.0, 0.1, -1e300])
def test_ars_makes_no_step_without_spread_among_the_kept_and_counts_it(value: float) -> None:
    strategy = made("ars", weight_decay=0.5)
    batch = Batch(NOISE, INDICES[:3], np.full((3, 2), value))
    after, info = strategy.learn(begun(strategy), batch)
    assert np.array_equal(after["parameters"], START)
    assert (info["no_step"], info["update_ratio"], info["gradient_norm"]) == (1, 0, 0)


# --- openai_es


def gradient_by_loop(shaping: str, l2: float) -> np.ndarray:
    shaped = utilities(shaping, BATCH.fitness)
    steps = [(plus - minus) * row for (plus, minus), row in zip(shaped, ROWS, strict=True)]
    return np.asarray(sum(steps) / (2 * PAIRS) - l2 * START)


def gradient(**values: Any) -> np.ndarray:
    strategy = made("openai_es", **values)
    assert isinstance(strategy, OpenaiES)
    return strategy.climb(START, BATCH, utilities(strategy.config.shaping, BATCH.fitness))


@each_case("shaping", SHAPINGS)
@each_case("l2", [0.0, 0.3])
def test_openai_ess_gradient_is_that_of_a_naive_loop(shaping: str, l2: float) -> None:
    expected = gradient_by_loop(shaping, l2)
    np.testing.assert_allclose(gradient(shaping=shaping, l2=l2), expected, rtol=1e-4, atol=1e-6)


@each_case("sigma", [0.05, 0.4])
def test_the_true_form_of_the_gradient_is_divided_by_sigma_before_the_decay(sigma: float) -> None:
    plain = gradient_by_loop("centered-rank", 0.0)
    true = gradient(gradient_form="true", sigma=sigma, l2=0.02)
    np.testing.assert_allclose(true, plain / sigma - 0.02 * START, rtol=1e-5, atol=1e-6)
    halved = gradient(
        gradient_form="true", sigma=sigma, sigma_schedule="piecewise:3=0.5", generation=3
    )
    np.testing.assert_allclose(halved, plain / (sigma / 2), rtol=1e-5, atol=1e-6)


def test_l2_passes_through_adam_and_weight_decay_does_not() -> None:
    equal = replace(BATCH, fitness=np.zeros((PAIRS, 2)))
    pulled, decayed = (
        made("openai_es", learning_rate=0.01, **{name: value})
        for name, value in (("l2", 1e-2), ("weight_decay", 0.1))
    )
    by_l2, _ = pulled.learn(begun(pulled), equal)
    by_decay, _ = decayed.learn(begun(decayed), equal)
    # Adam makes any gradient, however small, a step of its learning rate.
    step = 0.01 * np.sign(START)
    np.testing.assert_allclose(START - by_l2["parameters"], step, rtol=1e-3, atol=1e-9)
    np.testing.assert_allclose(by_decay["parameters"], 0.9 * START, rtol=1e-6)


# --- pgpe

OLD = np.linspace(0.5, 0.2, SIZE).astype(np.float32)
FIRST = 4


def pgpe_by_loop(shaping: str, sigmas: Sequence[Floats]) -> tuple[np.ndarray, np.ndarray]:
    """The gradients of the centre and of the deviations."""
    shaped = utilities(shaping, BATCH.fitness)
    centre, deviation = np.zeros(SIZE), np.zeros(SIZE)
    rows = zip(shaped - shaped.mean(), sigmas, ROWS, strict=True)
    for (plus, minus), sigma, epsilon in rows:
        centre += (plus - minus) / 2 * sigma * epsilon / PAIRS
        deviation += (plus + minus) / 2 * sigma * (epsilon**2 - 1) / PAIRS
    return centre, deviation


@each_case("shaping", SHAPINGS)
@each_case("parts", [(), [(slice(0, FIRST), OLD), (slice(FIRST, PAIRS), SIGMA)]])
def test_pgpes_gradients_are_those_of_a_naive_loop_with_the_deviations_of_each_publication(
    shaping: str, parts: Any
) -> None:
    values = {"optimizer": "sgd", "learning_rate": 1.0, "momentum": 0.0, "sigma_max_change": 0.99}
    strategy = made("pgpe", shaping=shaping, **values)
    after, info = strategy.learn(begun(strategy, sigma=SIGMA), replace(BATCH, spreads=parts))
    sigmas = [OLD if parts and row < FIRST else SIGMA for row in range(PAIRS)]
    centre, deviation = pgpe_by_loop(shaping, sigmas)
    np.testing.assert_allclose(after["parameters"], START + centre, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(after["sigma"], SIGMA + 0.1 * deviation, rtol=1e-5)
    assert info["gradient_norm"] == pytest.approx(np.linalg.norm(centre), rel=1e-5)


@each_case("most", [0.0, 0.05, 0.2])
def test_sigma_changes_by_no_more_than_its_bound(most: float) -> None:
    strategy = made("pgpe", sigma_learning_rate=1e4, sigma_max_change=most)
    after, _ = strategy.learn(begun(strategy, sigma=SIGMA), BATCH)
    ratio = after["sigma"].astype(np.float64) / SIGMA
    np.testing.assert_allclose(np.abs(ratio - 1), most, atol=1e-6)
    assert most == 0 or {True, False} == set((ratio > 1).tolist())


@each_case(
    ("values", "radius"),
    [
        ({}, 15 * 2 * 0.06),
        ({"learning_rate": 0.1}, 15 * 2 * 0.1),
        ({"learning_rate": 0.1, "max_speed": 0.15}, 15 * 0.15),
        ({"optimizer": "adam", "learning_rate": 0.001}, 15 * 2 * 0.06),
        ({"sigma": 0.3}, 0.3 * math.sqrt(SIZE)),
    ],
)
def test_the_first_sigma_comes_from_the_radius_unless_it_is_given(
    values: dict[str, Any], radius: float
) -> None:
    strategy = made("pgpe", **values)
    state = begun(strategy)
    np.testing.assert_allclose(state["sigma"], radius / math.sqrt(SIZE), rtol=1e-6)
    assert strategy.sigma(state) == pytest.approx(radius / math.sqrt(SIZE), rel=1e-6)


# --- snes


@each_case(
    ("values", "mean_rate", "linear"),
    [
        ({}, 1.0, 0.0),
        ({"learning_rate": 0.3}, 0.3, 0.0),
        ({"linear_share": 0.6}, 1.0, 0.6),
        ({"linear_share": 1.0}, 1.0, 1.0),
    ],
)
def test_a_step_of_snes_is_the_papers_with_the_share_of_linear_utilities(
    values: dict[str, float], mean_rate: float, linear: float
) -> None:
    """Algorithm 6 with the utilities of section 3.1. Linear ones fall evenly with the rank, and
    have the same sum of absolute values.
    """
    strategy, count, ranks = made("snes", population=5, **values), 5, [2, 5, 1, 3, 4]
    fitness = np.array([[3.0], [-1.0], [10.0], [2.5], [0.0]])
    after, info = strategy.learn(
        begun(strategy, sigma=SIGMA), Batch(NOISE, INDICES[:count], fitness)
    )
    raw = np.maximum(0, math.log(count / 2 + 1) - np.log(np.arange(1, count + 1)))
    logarithmic, even = raw / raw.sum() - 1 / count, (count + 1) / 2 - np.arange(1, count + 1)
    even = even * np.abs(logarithmic).sum() / np.abs(even).sum()
    weights = ((1 - linear) * logarithmic + linear * even)[np.array(ranks) - 1, np.newaxis]
    mean = START + mean_rate * SIGMA * (weights * ROWS[:count]).sum(axis=0)
    rate = (3 + math.log(SIZE)) / (5 * math.sqrt(SIZE))
    sigma = SIGMA * np.exp(0.5 * rate * (weights * (ROWS[:count] ** 2 - 1)).sum(axis=0))
    np.testing.assert_allclose(after["parameters"], mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(after["sigma"], sigma, rtol=1e-5)
    assert info["sigma"] == pytest.approx(math.sqrt(np.square(sigma).mean()), rel=1e-5)


# --- cem


def test_cems_mean_and_deviations_move_to_those_of_the_best() -> None:
    strategy = made("cem", population=8, sigma=0.4, elite_share=0.5, learning_rate=0.6)
    state = begun(strategy)
    noise = NOISE.rows(INDICES[:8], 0, SIZE)
    individuals = strategy.ask(strategy.published(state), 0.0, noise)[:, 0].astype(float)
    fitness = np.array([[0.1], [2.0], [-1.0], [np.nan], [7.0], [0.3], [-9.0], [0.2]])
    best = individuals[[1, 4, 5, 7]]
    after, info = strategy.learn(state, Batch(NOISE, INDICES[:8], fitness))
    expected = START + 0.6 * (best.mean(axis=0) - START)
    np.testing.assert_allclose(after["parameters"], expected, rtol=1e-5, atol=1e-6)
    sigma = 0.4 + 0.7 * (best.std(axis=0) - 0.4)
    np.testing.assert_allclose(after["sigma"], sigma, rtol=1e-5)
    assert info["no_step"] == 0


def test_no_deviation_of_cem_becomes_smaller_than_the_least() -> None:
    strategy = testing.sample_strategy(CEM, population=16, sigma=0.4, least_sigma=0.5)
    state = strategy.start(np.zeros(testing.SIZE, np.float32))
    for seed in range(60):
        state, _ = strategy.learn(state, testing.run_generation(strategy, state, seed))
    assert state["sigma"].min() == np.float32(0.2)
