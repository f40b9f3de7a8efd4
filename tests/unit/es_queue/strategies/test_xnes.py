"""xNES against the paper's algorithm 1 in float64, with whole matrices."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from es_queue import testing
from es_queue.errors import UsageError
from es_queue.strategies import Batch
from es_queue.strategies.xnes import XNES
from tests.cases import each_case

SIZE, COUNT = 6, 20


def exponential(matrix: np.ndarray) -> np.ndarray:
    """Of a symmetric matrix, from its eigenvectors."""
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray(vectors * np.exp(values) @ vectors.T)


@each_case("scale", [1.0, 20.0])
def test_generations_are_the_papers(scale: float) -> None:
    """``scale``: of the rate, so that the exponential is far from 1 + its argument, too."""
    rate = scale * (9 + 3 * math.log(SIZE)) / (5 * SIZE * math.sqrt(SIZE))
    strategy = testing.sample_strategy(
        XNES, SIZE, population=COUNT, sigma=0.5, covariance_learning_rate=rate
    )
    state = strategy.start(np.arange(SIZE, dtype=np.float32))
    mean, sigma, shape = np.arange(SIZE, dtype=float), 0.5, np.eye(SIZE)
    utilities = np.maximum(0, math.log(COUNT / 2 + 1) - np.log(np.arange(1, COUNT + 1)))
    utilities = utilities / utilities.sum() - 1 / COUNT
    generator = np.random.default_rng(3)
    for _ in range(3):
        indices = generator.integers(0, 50_000, COUNT)
        noise = testing.NOISE.rows(indices, 0, SIZE)
        fitness = generator.normal(size=(COUNT, 1))
        published = strategy.published(state)
        individuals = strategy.ask(published, strategy.sigma(state), noise)[:, 0]
        np.testing.assert_allclose(
            individuals, mean + sigma * noise @ shape.T, rtol=2e-3, atol=1e-4
        )
        state, _ = strategy.learn(state, Batch(testing.NOISE, indices, fitness))
        weights = utilities[np.argsort(np.argsort(-fitness[:, 0]))]
        mean = mean + sigma * shape @ (weights @ noise)
        gradient = sum(
            weight * (np.outer(row, row) - np.eye(SIZE))
            for weight, row in zip(weights, noise.astype(float), strict=True)
        )
        stretch = np.trace(gradient) / SIZE
        sigma *= math.exp(rate / 2 * stretch)
        shape = shape @ exponential(rate / 2 * (gradient - stretch * np.eye(SIZE)))
        np.testing.assert_allclose(state["parameters"], mean, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(state["sigma"][0], sigma, rtol=1e-4)
        np.testing.assert_allclose(state["columns"].T, shape, rtol=2e-3, atol=1e-4)
        assert np.linalg.det(state["columns"]) == pytest.approx(1, rel=1e-2)


def sphere(vector: np.ndarray) -> float:
    return float(np.square(vector).sum())


def ellipsoid(vector: np.ndarray) -> float:
    return float((10 ** (6 * np.arange(len(vector)) / (len(vector) - 1)) * np.square(vector)).sum())


def rosenbrock(vector: np.ndarray) -> float:
    slopes = vector[1:] - np.square(vector[:-1])
    return float((100 * np.square(slopes) + np.square(1 - vector[:-1])).sum())


@pytest.mark.full
@each_case(
    ("function", "first", "sigma", "evaluations"),
    [(sphere, 1.0, 0.5, 5_718), (ellipsoid, 1.0, 0.5, 8_553), (rosenbrock, 0.0, 0.1, 9_520)],
)
def test_a_valley_takes_as_many_evaluations_as_evotorch_needs(
    function: Callable[[np.ndarray], float], first: float, sigma: float, evaluations: int
) -> None:
    """In 10 dimensions with 10 individuals, until one is below 1e-8; ``evaluations``: the medians
    of 7 seeds of EvoTorch 0.6.1's XNES.
    """
    strategy = testing.sample_strategy(XNES, 10, population=10, sigma=sigma)
    state, generator = strategy.start(np.full(10, first, np.float32)), np.random.default_rng(1)
    noise = testing.ArrayNoise(generator.standard_normal(2**20, dtype=np.float32))
    for generation in range(int(1.25 * evaluations) // 10):
        indices = generator.integers(0, 2**20 - 10, 10)
        rows = noise.rows(indices, 0, 10)
        individuals = strategy.ask(strategy.published(state), strategy.sigma(state), rows)[:, 0]
        values = np.array([function(one) for one in individuals.astype(float)])
        if values.min() < 1e-8:
            assert generation > 300  # it is no accident
            return
        state, _ = strategy.learn(state, Batch(noise, indices, -values[:, np.newaxis]))
    raise AssertionError(f"its best value is still {values.min():g}")


def test_a_policy_whose_matrix_would_be_too_large_is_refused_in_one_sentence() -> None:
    with pytest.raises(UsageError, match="at most 2,000 parameters, but this one has 2,001: use"):
        testing.sample_strategy(XNES, 2001)
