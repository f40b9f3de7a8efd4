"""Arithmetic with equal bits on every CPU agrees with the mathematics."""

from __future__ import annotations

import math

import numpy as np

from es_queue.numerics.arrays import steady_exp


def test_the_exponential_is_exact_to_a_few_units_in_the_last_place() -> None:
    values = np.concatenate(
        [
            np.linspace(-700, 700, 2001),
            np.linspace(-1, 1, 2001),
            [0.0, -0.0, 1e-300, math.log(2) / 2],
        ]
    )
    wanted = np.array([math.exp(one) for one in values])
    assert (np.abs(steady_exp(values) - wanted) <= 4e-13 * wanted).all()
    near = np.abs(values) <= 1
    assert (np.abs(steady_exp(values) - wanted) <= 4 * np.spacing(wanted))[near].all()
    assert steady_exp(np.array([0.0, -0.0])).tolist() == [1.0, 1.0]


def test_the_exponential_ends_in_nothing_or_infinity() -> None:
    with np.errstate(over="ignore"):
        assert steady_exp(np.array([-1e9, -800.0, 800.0, math.inf])).tolist() == [
            0.0,
            0.0,
            math.inf,
            math.inf,
        ]
