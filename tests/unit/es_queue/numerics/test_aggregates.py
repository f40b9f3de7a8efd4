"""Mean, interquartile mean and bootstrap intervals over runs, against values worked out by hand."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import settings

from es_queue.numerics.statistics import (
    aggregate,
    bootstrap_interval,
    interquartile_means,
    means,
)
from tests.cases import each_case

#: A busy machine may be slow at any moment.
ANY_TIME = settings(deadline=None)
FIGURES = ("mean", "iqm", "median", "worst", "best")


def iqm(*values: float) -> float:
    return float(interquartile_means(np.sort(np.array([values], np.float64)))[0])


def test_all_figures_of_five_runs() -> None:
    found = aggregate([3.0, 0.0, 1000.0, 1.0, 2.0])
    assert [getattr(found, name) for name in FIGURES] == [201.2, 2.0, 2.0, 0.0, 1000.0]
    assert (found.count, found.total) == (5, 5)


def test_a_run_without_a_figure_is_told_and_not_taken_for_a_value() -> None:
    found = aggregate([1.0, None, 5.0, math.nan, -math.inf, 3.0])
    assert (found.count, found.total) == (3, 6)
    assert (found.mean, found.median, found.worst) == (3.0, 3.0, 1.0)


@each_case("values", [[4.0], [4.0, 6.0]])
def test_fewer_than_three_runs_have_no_interval(values: list[float]) -> None:
    found = aggregate(values)
    assert (found.mean_interval, found.iqm_interval) == (None, None)
    assert found.mean is not None


def test_the_interval_of_three_runs_is_that_of_all_their_27_resamples() -> None:
    values = [0.0, 10.0, 40.0]
    exact = np.sort([sum(draw) / 3 for draw in product(values, repeat=3)])
    # The lowest and the highest are one draw of 27 each, more than the 2.5 % that an interval
    # leaves out on a side.
    assert bootstrap_interval(values, means) == (exact[0], exact[-1]) == (0.0, 40.0)
    low, high = bootstrap_interval(values, means, level=0.8)
    assert (low, high) == (exact[int(0.1 * 27)], exact[int(0.9 * 27)])


def test_the_interval_of_many_runs_is_the_normal_one() -> None:
    values = list(np.random.default_rng(1).normal(100, 20, 100))
    low, high = bootstrap_interval(values, means)
    half = 1.96 * np.std(values) / 10
    assert (low, high) == pytest.approx((np.mean(values) - half, np.mean(values) + half), abs=0.25)
