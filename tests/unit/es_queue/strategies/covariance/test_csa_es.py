"""CSA-ES against the paper's formulas in a loop over individuals."""

from __future__ import annotations

import numpy as np
import pytest

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
