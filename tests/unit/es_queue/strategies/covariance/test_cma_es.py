"""MA-ES against the paper's formulas in a loop over individuals, with whole matrices."""

from __future__ import annotations

import numpy as np
import pytest

from es_queue import testing
from es_queue.errors import UsageError
from es_queue.strategies import Batch
from es_queue.strategies.covariance import CMAES, MOST_PARAMETERS
from tests.cases import each_case
from tests.parts import cores
from tests.unit.es_queue.strategies.covariance.tutorial import (
    Paper,
    doubles,
    middle,
    sigma_after,
)

SIZE = 12


@each_case("active", [True, False])
def test_a_step_is_the_papers(active: bool) -> None:
    strategy, state, batch, rows = middle("cma_es", active=active)
    paper, before = Paper(32, SIZE, active), doubles(state)
    matrix = before["columns"].T
    mean = paper.mean(rows)
    path = paper.path(before["path"], paper.c_sigma, mean)
    unit = np.eye(SIZE)
    change = paper.c_1 / 2 * (np.outer(path, path) - unit)
    for weight, bounded, row in zip(paper.weights, paper.bounded(rows), rows, strict=True):
        change += paper.c_mu / 2 * (bounded * np.outer(row, row) - weight * unit)
    after, _ = strategy.learn(state, batch)
    parameters = before["parameters"] + before["sigma"] * (matrix @ mean)
    np.testing.assert_allclose(after["parameters"], parameters, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(after["sigma"], sigma_after(paper, before["sigma"], path), rtol=1e-5)
    np.testing.assert_allclose(after["columns"].T, matrix @ (unit + change), rtol=1e-4, atol=1e-6)


def test_any_number_of_cores_gives_the_same_bits() -> None:
    size = 700  # the products are then worth threads
    strategy = testing.sample_strategy(CMAES, size, population=16)
    state = strategy.start(np.zeros(size, np.float32))
    indices = np.arange(0, 1600, 100)
    fitness = np.random.default_rng(1).normal(size=(16, 1))
    states = []
    for count in (1, 3):
        with cores(count):
            after = state
            for _ in range(2):
                after, _ = strategy.learn(after, Batch(testing.NOISE, indices, fitness))
        states.append(after)
    assert testing.is_same(*states)
    assert not np.array_equal(states[0]["columns"], state["columns"])


def test_a_policy_whose_matrix_would_be_too_large_is_refused_in_one_sentence() -> None:
    testing.sample_strategy(CMAES, MOST_PARAMETERS)
    with pytest.raises(UsageError, match="at most 2,000 parameters, but this one has 2,001: use"):
        testing.sample_strategy(CMAES, MOST_PARAMETERS + 1)
