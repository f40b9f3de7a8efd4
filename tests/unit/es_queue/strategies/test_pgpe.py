"""PGPE against its formulas in a loop, and the bounds on its two steps."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from es_queue.config.run_config import RunConfig
from es_queue.numerics.ordered_sums import ArrayNoise
from es_queue.strategies import Batch
from es_queue.strategies.pgpe import PGPE
from es_queue.strategies.shaping import utilities
from tests.cases import each_case

SIZE, PAIRS = 7, 9
NOISE = ArrayNoise(np.random.default_rng(0).standard_normal(500, dtype=np.float32))
INDICES = np.arange(0, 50 * PAIRS, 50)
START = np.linspace(-1, 1, SIZE).astype(np.float32)
SIGMA = np.linspace(0.1, 0.4, SIZE).astype(np.float32)
BATCH = Batch(NOISE, INDICES, np.random.default_rng(1).standard_normal((PAIRS, 2)))
SHAPINGS = ["centered-rank", "centered-sign-rank", "sign", "z-score", "log-rank"]


def made(**settings: Any) -> PGPE:
    return PGPE(RunConfig(strategy="pgpe", population=2 * PAIRS, **settings), SIZE)


def looped(shaping: str) -> tuple[np.ndarray, np.ndarray]:
    shaped = utilities(shaping, BATCH.fitness)
    shaped = shaped - shaped.mean()
    centre, deviation = np.zeros(SIZE), np.zeros(SIZE)
    for (plus, minus), index in zip(shaped, INDICES, strict=True):
        epsilon = NOISE.noise[index : index + SIZE].astype(np.float64)
        centre += (plus - minus) / 2 * SIGMA * epsilon / PAIRS
        deviation += (plus + minus) / 2 * SIGMA * (epsilon**2 - 1) / PAIRS
    return centre, deviation


@each_case("shaping", SHAPINGS)
def test_both_gradients_are_those_of_a_naive_loop(shaping: str) -> None:
    strategy = made(
        shaping=shaping, optimizer="sgd", learning_rate=1.0, momentum=0.0, sigma_max_change=0.99
    )
    state = {**strategy.start(START), "sigma": SIGMA}
    after, info = strategy.learn(state, BATCH)
    centre, deviation = looped(shaping)
    np.testing.assert_allclose(after["parameters"], START + centre, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(after["sigma"], SIGMA + 0.1 * deviation, rtol=1e-5)
    assert info["gradient_norm"] == pytest.approx(np.linalg.norm(centre), rel=1e-5)


def test_a_common_offset_of_utilities_does_not_change_sigma() -> None:
    strategy = made(shaping="sign")
    shifted = Batch(NOISE, INDICES, BATCH.fitness + 64.0)
    one, other = (
        strategy.learn(strategy.start(START), batch)[0]["sigma"] for batch in (BATCH, shifted)
    )
    np.testing.assert_allclose(one, other, rtol=1e-6)


def test_sigma_does_not_change_where_every_perturbation_is_one_deviation_long() -> None:
    strategy, ones = made(), ArrayNoise(np.ones(500, np.float32))
    utilities_of_any_mean = np.arange(2.0 * PAIRS).reshape(PAIRS, 2)
    after = strategy.next_sigma(SIGMA, Batch(ones, INDICES, BATCH.fitness), utilities_of_any_mean)
    assert np.array_equal(after, SIGMA)


def test_sigma_grows_along_what_helps_when_far_and_shrinks_along_what_hurts_both_ways() -> None:
    strategy = made()
    rows = NOISE.rows(INDICES, 0, SIZE)
    away = np.repeat(np.square(rows[:, :1]), 2, axis=1).astype(np.float64)
    grown, shrunk = (
        strategy.learn(strategy.start(START), Batch(NOISE, INDICES, sign * away))[0]["sigma"][0]
        for sign in (1, -1)
    )
    assert shrunk < strategy.start(START)["sigma"][0] < grown


@each_case("most", [0.0, 0.05, 0.2])
def test_sigma_changes_by_no_more_than_its_bound(most: float) -> None:
    strategy = made(sigma_learning_rate=1e4, sigma_max_change=most)
    state = {**strategy.start(START), "sigma": SIGMA}
    after, _ = strategy.learn(state, BATCH)
    ratio = after["sigma"].astype(np.float64) / SIGMA
    np.testing.assert_allclose(np.abs(ratio - 1), most, atol=1e-6)
    assert most == 0 or {True, False} == set((ratio > 1).tolist())


def test_a_sigma_learning_rate_of_zero_keeps_sigma_and_sums_no_noise_for_it() -> None:
    strategy = made(sigma_learning_rate=0.0)
    state = strategy.start(START)
    assert strategy.learn(state, BATCH)[0]["sigma"] is state["sigma"]


def test_equal_fitness_leaves_centre_and_sigma_to_the_bit() -> None:
    strategy = made()
    after, _ = strategy.learn(
        strategy.start(START), Batch(NOISE, INDICES, np.full((PAIRS, 2), 0.1))
    )
    assert np.array_equal(after["parameters"], START)
    assert np.array_equal(after["sigma"], strategy.start(START)["sigma"])


def test_a_step_of_the_centre_is_never_longer_than_the_top_speed() -> None:
    strategy = made(max_speed=0.05, learning_rate=1.0)
    state = strategy.start(START)
    for _ in range(5):
        after, _ = strategy.learn(state, BATCH)
        moved = after["parameters"].astype(np.float64) - state["parameters"]
        assert np.linalg.norm(moved) == pytest.approx(0.05, rel=1e-4)
        state = after


@each_case(
    ("settings", "radius"),
    [
        ({}, 15 * 2 * 0.06),
        ({"learning_rate": 0.1}, 15 * 2 * 0.1),
        ({"learning_rate": 0.1, "max_speed": 0.15}, 15 * 0.15),
        ({"optimizer": "adam", "learning_rate": 0.001}, 15 * 2 * 0.06),
        ({"sigma": 0.3}, 0.3 * math.sqrt(SIZE)),
    ],
)
def test_the_first_sigma_comes_from_the_radius_unless_it_is_given(
    settings: dict[str, Any], radius: float
) -> None:
    strategy = made(**settings)
    state = strategy.start(START)
    np.testing.assert_allclose(state["sigma"], radius / math.sqrt(SIZE), rtol=1e-6)
    assert strategy.sigma(state) == pytest.approx(radius / math.sqrt(SIZE), rel=1e-6)


def test_workers_perturb_each_parameter_by_its_own_published_sigma() -> None:
    strategy = made()
    published = strategy.published({"parameters": START, "sigma": SIGMA})
    rows = NOISE.rows(INDICES[:1], 0, SIZE)
    plus, minus = strategy.ask(published, 99.0, rows)[0]
    np.testing.assert_array_equal(plus, START + SIGMA * rows[0])
    np.testing.assert_array_equal(minus, START - SIGMA * rows[0])
    assert published.tobytes() == START.tobytes() + SIGMA.tobytes()
