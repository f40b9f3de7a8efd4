"""Recurrent cells, with weights in PyTorch's layout, transposed.

Each takes ``input_gates`` = x @ W_in + b_in, ``state_gates`` = h @ W_state + b_state, float32[...,
gates · units], and its memory float32[..., states · units]. The first ``units`` of the memory are
h; the cell updates the memory in place. The gates are in PyTorch's order, so W_in.T is its
weight_ih, and W_state.T its weight_hh.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from es_queue.numerics.arrays import Floats

Step = Callable[[Floats, Floats, Floats], None]

HALF, ONE = np.float32(0.5), np.float32(1)


@dataclass(frozen=True)
class Cell:
    """gates: their number; states: remembered vectors of ``units``; forget: the gate that begins
    with bias 1, if any.
    """

    name: str
    gates: int
    states: int
    step: Step
    forget: int | None = None


def sigmoid(x: Floats) -> None:
    """1 / (1 + exp(-x)), in place, as (1 + tanh(x/2)) / 2, which does not overflow."""
    x *= HALF
    np.tanh(x, x)
    x += ONE
    x *= HALF


def rnn(input_gates: Floats, state_gates: Floats, memory: Floats) -> None:
    """h <- tanh(seen + kept) (Elman 1990, "Finding structure in time")."""
    np.add(input_gates, state_gates, input_gates)
    np.tanh(input_gates, memory)


def lstm(input_gates: Floats, state_gates: Floats, memory: Floats) -> None:
    """c <- f · c + i · g, h <- o · tanh(c); gates i, f, g, o (Hochreiter and Schmidhuber 1997; f:
    Gers et al. 2000).

    The memory is h, then c.
    """
    units = memory.shape[-1] // 2
    np.add(input_gates, state_gates, input_gates)
    candidate = np.tanh(input_gates[..., 2 * units : 3 * units])
    sigmoid(input_gates)
    h, c = memory[..., :units], memory[..., units:]
    c *= input_gates[..., units : 2 * units]
    candidate *= input_gates[..., :units]
    c += candidate
    np.multiply(np.tanh(c), input_gates[..., 3 * units :], h)


def gru(input_gates: Floats, state_gates: Floats, memory: Floats) -> None:
    """n = tanh(seen_n + r · kept_n), h <- (1 - z) · n + z · h; gates r, z, n (Cho et al. 2014, in
    PyTorch's form).

    The reset gate r weighs the state's contribution, after its bias.
    """
    units = memory.shape[-1]
    gates = input_gates[..., : 2 * units] + state_gates[..., : 2 * units]
    sigmoid(gates)
    r, z = gates[..., :units], gates[..., units:]
    n = state_gates[..., 2 * units :] * r
    n += input_gates[..., 2 * units :]
    np.tanh(n, n)
    memory -= n
    memory *= z
    memory += n


CELLS = {
    cell.name: cell
    for cell in (Cell("rnn", 1, 1, rnn), Cell("lstm", 4, 2, lstm, forget=1), Cell("gru", 3, 1, gru))
}
