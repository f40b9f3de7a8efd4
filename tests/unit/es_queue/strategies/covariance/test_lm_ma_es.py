"""LM-MA-ES against the paper's algorithm in a loop over individuals."""

from __future__ import annotations

import math

import numpy as np

from es_queue import testing
from es_queue.strategies.covariance import LMMAES
from tests.cases import each_case
from tests.unit.es_queue.strategies.covariance.tutorial import Floats, Paper, doubles

SIZE = 12
#: So few that all of the paper's c_c,j stay below their bound.
POPULATION = 4


def applied(directions: Floats, z: Floats) -> Floats:
    """Lines 6 to 9."""
    d = z
    for place, direction in enumerate(directions):
        c_d = 1 / (1.5**place * SIZE)
        d = (1 - c_d) * d + c_d * direction * (direction @ d)
    return d


@each_case("generations", [0, 3, 30])
def test_a_step_is_the_papers(generations: int) -> None:
    strategy = testing.sample_strategy(LMMAES, population=POPULATION)
    state = testing.begin(strategy, generations)
    batch = testing.run_generation(strategy, state, 99)
    order = np.argsort(-batch.fitness[:, 0], kind="stable")
    rows = testing.NOISE.rows(batch.noise_indices[order], 0, SIZE).astype(np.float64)
    paper, before = Paper(POPULATION, SIZE, active=False), doubles(state)
    factors = before["directions"][: min(generations, 4 + int(3 * math.log(SIZE)))]
    after, _ = strategy.learn(state, batch)
    step = before["sigma"] * paper.mean(np.array([applied(factors, row) for row in rows]))
    np.testing.assert_allclose(after["parameters"], before["parameters"] + step, atol=1e-5)
    c_sigma = min(2 * POPULATION / SIZE, 0.5)
    path = paper.path(before["path"], c_sigma, paper.mean(rows))
    sigma = before["sigma"] * math.exp(c_sigma / 2 * (path @ path / SIZE - 1))
    np.testing.assert_allclose(after["sigma"], sigma, rtol=1e-4)
    for place, direction in enumerate(before["directions"]):
        expected = paper.path(direction, POPULATION / (4**place * SIZE), paper.mean(rows))
        np.testing.assert_allclose(after["directions"][place], expected, rtol=1e-4, atol=1e-5)
