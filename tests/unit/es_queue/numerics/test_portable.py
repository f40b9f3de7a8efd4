"""Arithmetic with equal bits on every CPU agrees with the mathematics."""

from __future__ import annotations

import math

import numpy as np

from es_queue.numerics.portable import recombination_weights, squared_less_one, steady_exp


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


def test_recombination_weights_add_up_to_nothing_and_fall_with_the_rank() -> None:
    weights = recombination_weights(10)
    assert abs(weights.sum()) < 1e-15 and (np.diff(weights[:6]) < 0).all()
    assert (weights[6:] == -0.1).all()


def test_the_square_less_one_is_float32() -> None:
    out = np.empty(3, np.float32)
    squared_less_one(np.array([0, 1, 2], np.float32), out)
    assert out.tolist() == [-1, 0, 3]
