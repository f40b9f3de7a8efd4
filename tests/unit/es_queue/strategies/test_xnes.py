"""xNES against the paper's algorithm 1 in float64, with whole matrices."""

from __future__ import annotations

import math

import numpy as np
import pytest

from es_queue import testing
from es_queue.errors import UsageError
from es_queue.strategies import Batch
from es_queue.strategies.covariance import XNES
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


def test_a_policy_whose_matrix_would_be_too_large_is_refused_in_one_sentence() -> None:
    with pytest.raises(UsageError, match="at most 2,000 parameters, but this one has 2,001: use"):
        testing.sample_strategy(XNES, 2001)
