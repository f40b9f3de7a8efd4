"""The comparison with pycma counts the same thing on both sides."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from tools import compare_pycma
from tools.compare_pycma import FUNCTIONS, Case, es_queue_evaluations, pycma_evaluations


def test_each_function_is_zero_at_its_optimum_only() -> None:
    for name, function in FUNCTIONS.items():
        optimum = np.full(5, 1.0 if name == "Rosenbrock" else 0.0)
        values = function.value(np.stack([optimum, optimum + 0.1]))
        assert values[0] == 0 < values[1], name


@pytest.mark.parametrize("strategy", compare_pycma.OPTIONS)
def test_both_reach_the_target_on_a_small_sphere(strategy: str) -> None:
    case = Case(strategy, "sphere", 3)
    for count in (es_queue_evaluations, pycma_evaluations):
        assert 100 < count(case, seed=1) < 2000


def test_a_budget_without_success_counts_as_infinite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FUNCTIONS, "sphere", replace(FUNCTIONS["sphere"], budget=10))
    case = Case("csa_es", "sphere", 3)
    assert math.isinf(es_queue_evaluations(case, 1)) and math.isinf(pycma_evaluations(case, 1))
