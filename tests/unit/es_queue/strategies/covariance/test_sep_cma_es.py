"""sep-CMA-ES against the paper's formulas in a loop over individuals."""

from __future__ import annotations

import math

import numpy as np

from tests.cases import each_case
from tests.unit.es_queue.strategies.covariance.tutorial import (
    Floats,
    Paper,
    doubles,
    middle,
    sigma_after,
)

SIZE = 12


@each_case("active", [True, False])
@each_case("length", [1.0, 30.0])
def test_a_step_is_the_papers(active: bool, length: float) -> None:
    strategy, state, batch, rows = middle("sep_cma_es", active=active)
    state["path"][:] = length / math.sqrt(SIZE)
    paper, before = Paper(32, SIZE, active, (SIZE + 2) / 3), doubles(state)
    mean = paper.mean(rows * before["deviations"])
    path = paper.path(before["path"], paper.c_sigma, paper.mean(rows))
    after, _ = strategy.learn(state, batch)
    parameters = before["parameters"] + before["sigma"] * mean
    np.testing.assert_allclose(after["parameters"], parameters, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(after["sigma"], sigma_after(paper, before["sigma"], path), rtol=1e-5)
    moves = 1.0 if length == 1 else 0.0
    covariance_path = (1 - paper.c_c) * before["covariance_path"]
    covariance_path += moves * math.sqrt(paper.c_c * (2 - paper.c_c) * paper.mu_eff) * mean
    np.testing.assert_allclose(after["covariance_path"], covariance_path, rtol=1e-4, atol=1e-5)
    variances = diagonal(paper, before["deviations"] ** 2, covariance_path, rows, moves)
    np.testing.assert_allclose(after["deviations"] ** 2, variances, rtol=1e-4)


def diagonal(paper: Paper, before: Floats, path: Floats, rows: Floats, moves: float) -> Floats:
    """Equation 47 of the tutorial for each variance."""
    delta = (1 - moves) * paper.c_c * (2 - paper.c_c)
    after = np.empty(SIZE)
    for j in range(SIZE):
        samples = zip(paper.bounded(rows), rows, strict=True)
        rank_mu = sum(weight * before[j] * row[j] ** 2 for weight, row in samples)
        kept = 1 + paper.c_1 * delta - paper.c_1 - paper.c_mu * sum(paper.weights)
        after[j] = kept * before[j] + paper.c_1 * path[j] ** 2 + paper.c_mu * rank_mu
    return after
