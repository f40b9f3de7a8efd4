"""PGPE against its formulas in a loop, and the bounds on its two steps."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from es_queue.config.run_config import RunConfig
from es_queue.numerics.arrays import ArrayNoise
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


@each_case("most", [0.0, 0.05, 0.2])
def test_sigma_changes_by_no_more_than_its_bound(most: float) -> None:
    strategy = made(sigma_learning_rate=1e4, sigma_max_change=most)
    state = {**strategy.start(START), "sigma": SIGMA}
    after, _ = strategy.learn(state, BATCH)
    ratio = after["sigma"].astype(np.float64) / SIGMA
    np.testing.assert_allclose(np.abs(ratio - 1), most, atol=1e-6)
    assert most == 0 or {True, False} == set((ratio > 1).tolist())


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
