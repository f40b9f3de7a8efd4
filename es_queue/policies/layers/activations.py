"""Activations, computed in place by the same numpy loops for one row and for many."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from es_queue.numerics.arrays import Floats

Activation = Callable[[Floats, Floats], object]

ZERO = np.zeros((), np.float32)
#: That of evolution-strategies-starter.
LRELU_SLOPE = np.array(0.2, np.float32)
# Klambauer et al. 2017, "Self-normalizing neural networks": the fixed point of mean 0, variance 1.
SELU_ALPHA = np.array(1.6732632423543772, np.float32)
SELU_SCALE = np.array(1.0507009873554805, np.float32)


def relu(x: Floats, out: Floats) -> None:
    """max(x, 0); NaN stays NaN."""
    np.maximum(x, ZERO, out=out)


def lrelu(x: Floats, out: Floats) -> None:
    """x above zero, SLOPE · x below."""
    below = np.minimum(x, ZERO)
    np.multiply(below, LRELU_SLOPE, below)
    np.maximum(x, ZERO, out=out)
    np.add(out, below, out)


def elu(x: Floats, out: Floats) -> None:
    """x above zero, exp(x) - 1 below (Clevert et al. 2016)."""
    below = np.minimum(x, ZERO)
    np.expm1(below, below)
    np.maximum(x, ZERO, out=out)
    np.add(out, below, out)


def selu(x: Floats, out: Floats) -> None:
    """SCALE · (x above zero, ALPHA · (exp(x) - 1) below)."""
    below = np.minimum(x, ZERO)
    np.expm1(below, below)
    np.multiply(below, SELU_ALPHA, below)
    np.maximum(x, ZERO, out=out)
    np.add(out, below, out)
    np.multiply(out, SELU_SCALE, out)


ACTIVATIONS: dict[str, Activation] = {
    "tanh": np.tanh,
    "relu": relu,
    "selu": selu,
    "elu": elu,
    "lrelu": lrelu,
}
# Half of a relu's inputs are lost, sqrt(2) keeps the variance (He et al. 2015); selu keeps it by
# itself.
GAINS = {
    "tanh": 1.0,
    "relu": math.sqrt(2.0),
    "selu": 1.0,
    "elu": math.sqrt(2.0),
    "lrelu": math.sqrt(2.0 / (1.0 + 0.2**2)),
}
