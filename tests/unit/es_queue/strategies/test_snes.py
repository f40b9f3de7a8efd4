"""SNES against the paper's formulas in a loop over individuals."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from es_queue.config.run_config import RunConfig
from es_queue.numerics.arrays import ArrayNoise
from es_queue.strategies import Batch, State, Strategy, make_strategy
from tests.cases import each_case

NOISE = ArrayNoise(np.random.default_rng(0).standard_normal(5_000, dtype=np.float32))
SIZE = 9
INDICES = np.array([7, 1500, 31, 2222, 900])


def made(**settings: Any) -> Strategy:
    return make_strategy(RunConfig(strategy="snes", population=5, **settings), SIZE)


def begun(strategy: Strategy) -> State:
    state = strategy.start(np.linspace(-1, 1, SIZE).astype(np.float32))
    return {**state, "sigma": np.linspace(0.1, 0.5, SIZE).astype(np.float32)}


def batch(*fitness: float) -> Batch:
    return Batch(NOISE, INDICES[: len(fitness)], np.array(fitness)[:, None])


def paper(
    state: State, ranks: list[int], mean_rate: float, sigma_rate: float, linear: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Algorithm 6 with the utilities of section 3.1; ``ranks``: of each individual, 1 the best.

    linear: share of utilities that fall evenly with the rank, of the same sum of absolute values
    """
    count = len(ranks)
    raw = [max(0.0, math.log(count / 2 + 1) - math.log(rank)) for rank in range(1, count + 1)]
    utility = [one / sum(raw) - 1 / count for one in raw]
    even = [(count + 1) / 2 - rank for rank in range(1, count + 1)]
    size = sum(abs(one) for one in utility) / sum(abs(one) for one in even)
    utility = [
        (1 - linear) * one + linear * size * other for one, other in zip(utility, even, strict=True)
    ]
    mean, sigma = state["parameters"].astype(np.float64), state["sigma"].astype(np.float64)
    rows = NOISE.rows(INDICES[:count], 0, SIZE).astype(np.float64)
    for_mean = sum(utility[rank - 1] * row for rank, row in zip(ranks, rows, strict=True))
    for_sigma = sum(utility[rank - 1] * (row**2 - 1) for rank, row in zip(ranks, rows, strict=True))
    return mean + mean_rate * sigma * for_mean, sigma * np.exp(0.5 * sigma_rate * for_sigma)


@each_case(
    ("settings", "mean_rate", "linear"),
    [
        ({}, 1.0, 0.0),
        ({"learning_rate": 0.3}, 0.3, 0.0),
        ({"linear_share": 0.6}, 1.0, 0.6),
        ({"linear_share": 1.0}, 1.0, 1.0),
    ],
)
def test_a_step_is_the_papers_with_the_share_of_linear_utilities(
    settings: dict[str, float], mean_rate: float, linear: float
) -> None:
    strategy = made(**settings)
    state = begun(strategy)
    after, info = strategy.learn(state, batch(3.0, -1.0, 10.0, 2.5, 0.0))
    mean, sigma = paper(
        state, [2, 5, 1, 3, 4], mean_rate, (3 + math.log(SIZE)) / (5 * math.sqrt(SIZE)), linear
    )
    np.testing.assert_allclose(after["parameters"], mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(after["sigma"], sigma, rtol=1e-5)
    assert info["sigma"] == pytest.approx(math.sqrt(np.square(sigma).mean()), rel=1e-5)
