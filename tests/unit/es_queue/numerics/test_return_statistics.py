"""Figures agree to the last digit on every Python."""

from __future__ import annotations

from es_queue.numerics.statistics import return_statistics, sum_in_order


def test_a_sum_rounds_at_each_step_as_every_python_does() -> None:
    values = [1e16, 1.0, -1e16, 1.0]
    assert sum_in_order(values) == 1.0  # an exact or compensated sum would give 2
    assert sum_in_order([]) == 0.0


def test_figures_are_of_the_order_given() -> None:
    figures = return_statistics([1e16, 1.0, -1e16, 1.0])
    assert figures is not None and (
        figures.mean,
        figures.minimum,
        figures.maximum,
        figures.count,
    ) == (0.25, -1e16, 1e16, 4)


def test_nothing_has_no_figures() -> None:
    assert return_statistics([]) is None


def test_returns_too_large_for_a_square_have_an_infinite_deviation() -> None:
    figures = return_statistics([1e300, -1e300])
    assert figures is not None and (figures.mean, figures.std) == (0.0, float("inf"))
