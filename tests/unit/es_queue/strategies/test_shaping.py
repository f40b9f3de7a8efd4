"""Fitness to utility: ties, failures and equals, against a reference that only counts."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from es_queue.strategies.shaping import SHAPINGS, utilities
from tests.cases import each_case

BY_RANK = ("centered-rank", "centered-sign-rank", "log-rank")
BY_VALUE = ("sign", "z-score")
FAILED = [math.nan, math.inf, -math.inf]
# Few different values, so that ties and failures are common.
fitnesses = st.lists(
    st.sampled_from([-2.0, -1.0, -0.0, 0.0, 0.5, 3.0, math.nan]), min_size=2, max_size=14
)


def table_of(shaping: str, size: int) -> list[float]:
    """Utilities from the worst place to the best, straight from the formulas."""
    if shaping != "log-rank":
        return [place / (size - 1) - 0.5 for place in range(size)]
    raw = [max(0.0, math.log(size / 2 + 1) - math.log(k)) for k in range(1, size + 1)]
    return [value / sum(raw) - 1 / size for value in reversed(raw)]


def counted(shaping: str, fitness: list[float]) -> list[float]:
    """Each individual's utility by counting who is below it and who is beside it."""
    values = [value if math.isfinite(value) else -math.inf for value in fitness]
    if len(set(values)) == 1:
        return [0.0] * len(values)
    table = table_of(shaping, len(values))
    shares = []
    for value in values:
        below, equal = sum(other < value for other in values), values.count(value)
        shares.append(math.fsum(table[below : below + equal]) / equal)
    return shares


@pytest.mark.parametrize("shaping", BY_RANK)
@given(fitness=fitnesses)
@settings(max_examples=150, deadline=None)
def test_ranks_share_the_mean_utility_of_their_ties_and_failures_come_last(
    shaping: str, fitness: list[float]
) -> None:
    np.testing.assert_allclose(
        utilities(shaping, np.array(fitness)), counted(shaping, fitness), atol=1e-12
    )


@each_case("shaping", SHAPINGS)
@each_case("value", [0.1, -7.3, 1e308, math.nan])
def test_when_all_are_equal_every_utility_is_exactly_zero(shaping: str, value: float) -> None:
    assert not utilities(shaping, np.full((3, 2), value)).any()


@each_case("shaping", BY_VALUE)
@each_case("failed", FAILED)
def test_a_failure_counts_as_the_smallest_finite_fitness_where_values_count(
    shaping: str, failed: float
) -> None:
    with_failure = utilities(shaping, np.array([3.0, failed, -2.0, 5.0]))
    assert np.array_equal(with_failure, utilities(shaping, np.array([3.0, -2.0, -2.0, 5.0])))


def test_a_z_score_has_mean_zero_and_population_deviation_one() -> None:
    shaped = utilities("z-score", np.array([1.0, 2.0, 4.0, 9.0]))
    np.testing.assert_allclose(shaped, np.array([-3, -2, 0, 5]) / math.sqrt(38 / 4))
