"""Recurrent policies on vectors: layers of cells with memory within an episode, then a linear
layer.

A cell takes ``input_gates`` = x @ W_in + b_in, ``state_gates`` = h @ W_state + b_state,
float32[..., gates · units], and its memory float32[..., states · units]. The first ``units`` of the
memory are h; the cell updates the memory in place. The gates are in PyTorch's order, so W_in.T is
its weight_ih, and W_state.T its weight_hh.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from es_queue.config.run_config import RunConfig
from es_queue.numerics.arrays import Floats
from es_queue.policies.base import BoundPolicy, HiddenSettings, LayeredPolicy, affine

HALF, ONE = np.float32(0.5), np.float32(1)


@dataclass(frozen=True)
class Cell:
    """gates: their number; states: remembered vectors of ``units``; forget: the gate that begins
    with bias 1, if any.
    """

    name: str
    gates: int
    states: int
    step: Callable[[Floats, Floats, Floats], None]
    forget: int | None = None

    def forget_bias(self, units: int) -> slice:
        """The forget gate's part of a bias."""
        gate = self.forget or 0
        return slice(gate * units, (gate + 1) * units if self.forget is not None else 0)


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


class RecurrentPolicy(LayeredPolicy):
    """h <- cell(x @ W_in + b_in, h @ W_state + b_state) for each layer of cells, then h @ W + b.

    The flat vector is W_in, b_in, W_state, b_state of each layer, then W, b: W_in [inputs, gates ·
    units], W_state [units, gates · units]. The memory is that of each layer in turn.
    """

    Settings = HiddenSettings
    kinds = tuple(CELLS)

    def build(self, config: RunConfig, shape: tuple[int, ...]) -> None:
        self.cell = CELLS[self.kind]
        self.hidden = hidden = tuple(config.hidden)
        shapes: list[tuple[int, int]] = []
        for inputs, units in zip((self.observation_size, *hidden), hidden, strict=False):
            shapes += [(inputs, self.cell.gates * units), (units, self.cell.gates * units)]
        forget = {2 * layer: self.cell.forget_bias(units) for layer, units in enumerate(hidden)}
        self.set_layers([*shapes, (hidden[-1], self.outputs)], config.biases, [], forget=forget)
        self.row_length = self.shapes[0][1]
        self.memory_size = self.cell.states * sum(hidden)

    @property
    def description(self) -> tuple[object, ...]:
        return self.kind, self.observation_size, self.hidden, self.outputs, self.biases

    def bind(self, parameters: Floats) -> BoundPolicy:
        *gates, last = self.layers(self.checked(parameters))
        memory = np.zeros((len(parameters), self.memory_size), np.float32)
        stops = np.cumsum([self.cell.states * units for units in self.hidden])
        parts = np.split(memory, stops[:-1], axis=1)
        cells = list(zip(gates[::2], gates[1::2], parts, strict=True))
        step = self.cell.step

        def act_many(x: Floats) -> Floats:
            for input_layer, state_layer, layer_memory in cells:
                h = layer_memory[:, : state_layer[0].shape[1]]
                step(affine(x, input_layer), affine(h, state_layer), layer_memory)
                x = h
            return affine(x, last)

        def act_one(x: Floats) -> Floats:
            outputs: Floats = act_many(x[None])[0]
            return outputs

        return BoundPolicy(len(parameters), act_one, act_many, memory)
