"""CSA-ES against the paper's formulas in a loop over individuals."""

from __future__ import annotations

import math

import numpy as np
import pytest

from es_queue import testing
from es_queue.strategies.covariance import CSAES
from tests.cases import each_case
from tests.unit.es_queue.strategies.covariance.tutorial import (
    Paper,
    doubles,
    middle,
    sigma_after,
)


@each_case("rate", [1.0, 0.3])
def test_a_step_is_the_papers(rate: float) -> None:
    strategy, state, batch, rows = middle("csa_es", learning_rate=rate)
    paper, before = Paper(32, strategy.size, active=False), doubles(state)
    mean = paper.mean(rows)
    path = paper.path(before["path"], paper.c_sigma, mean)
    after, info = strategy.learn(state, batch)
    parameters = before["parameters"] + rate * before["sigma"] * mean
    np.testing.assert_allclose(after["parameters"], parameters, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(after["path"], path, rtol=1e-4, atol=1e-5)
    sigma = sigma_after(paper, before["sigma"], path)
    np.testing.assert_allclose(after["sigma"], sigma, rtol=1e-5)
    assert info["sigma"] == pytest.approx(float(sigma[0]), rel=1e-5)


def test_the_first_individuals_are_as_far_away_in_policies_of_any_size() -> None:
    for size in (10, 1000):
        strategy = testing.sample_strategy(CSAES, size)
        sigma = strategy.sigma(strategy.start(np.zeros(size, np.float32)))
        assert sigma * math.sqrt(size) == pytest.approx(1.8)
    named = testing.sample_strategy(CSAES, sigma=0.25)
    assert named.sigma(named.start(np.zeros(testing.SIZE, np.float32))) == 0.25


def test_individuals_that_are_all_alike_teach_nothing() -> None:
    strategy, state, batch, _ = middle("csa_es")
    batch.fitness[:] = 2.0
    after, info = strategy.learn(state, batch)
    assert info["no_step"] == 1 and testing.is_same(after, state)
