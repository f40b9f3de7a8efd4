"""Arithmetic with equal bits on every CPU, for strategies. ``ordered_sums`` has the sums over
slots.

It uses sums, products, and functions of ``math`` and numpy that are exact or have one
implementation. numpy's ``exp``, ``log`` and ``power`` choose an implementation by CPU and differ in
their last bits.
"""

from __future__ import annotations

import math

import numpy as np

from es_queue.config.schedules import power  # settings are checked without numpy
from es_queue.numerics.arrays import Doubles, Floats

__all__ = ["power", "recombination_weights", "squared_less_one", "steady_exp"]

#: Terms of the series in ``steady_exp``; the next one is below 2^-60 for |r| ≤ ½ ln 2.
TERMS = 14


def steady_exp(values: Doubles) -> Doubles:
    """exp of each element, float64 of the same shape.

    Within a few units in the last place if the result is a normal number; ∞ or 0 beyond.
    """
    bounded = np.clip(values, -1000.0, 1000.0)
    twos = np.rint(bounded / math.log(2))
    rest = bounded - twos * math.log(2)
    series = np.ones_like(rest)
    for term in range(TERMS, 0, -1):
        series = 1.0 + rest / term * series
    return np.asarray(np.ldexp(series, twos.astype(np.int32)))


def squared_less_one(noise: Floats, out: Floats) -> None:
    """ε² − 1 of each element, into ``out`` of the same shape (see ``weighted_rows``)."""
    np.square(noise, out)
    np.subtract(out, np.float32(1), out)


def recombination_weights(count: int) -> Doubles:
    """max(0, ln(m/2 + 1) − ln k)/Σ − 1/m for the k-th best of m, float64 [m], best first (Wierstra
    et al. 2014, NES, section 3.1).
    """
    logs = np.array([math.log(k) for k in range(1, count + 1)])
    raw = np.maximum(0.0, math.log(count / 2 + 1) - logs)
    return np.asarray(raw / raw.sum() - 1 / count)
