"""Recurrent policies on vectors: layers of cells with memory within an episode, then a linear
layer.
"""

from __future__ import annotations

import numpy as np

from es_queue.config.run_config import RunConfig
from es_queue.errors import UsageError
from es_queue.numerics.arrays import Floats
from es_queue.policies.base import (
    BoundPolicy,
    HiddenSettings,
    Policy,
    PolicyInputs,
    stacked_product,
)
from es_queue.policies.layers.cells import CELLS
from es_queue.policies.layers.initial_weights import draw_initial_weights
from es_queue.policies.mlp import Layer, layer_views


class RecurrentPolicy(Policy):
    """h <- cell(x @ W_in + b_in, h @ W_state + b_state) for each layer of cells, then h @ W + b.

    The flat vector is W_in, b_in, W_state, b_state of each layer, then W, b. Each matrix is [rows,
    columns] in C order: W_in [inputs, gates · units], W_state [units, gates · units]. The gates are
    in PyTorch's order (see :mod:`es_queue.policies.layers.cells`). The memory is that of each layer
    in turn.

    kind: rnn, lstm or gru; cell: its equations; hidden: units of each layer; shapes: rows and
    columns of all matrices
    """

    Settings = HiddenSettings
    kinds = tuple(CELLS)

    @classmethod
    def make(cls, config: RunConfig, inputs: PolicyInputs) -> Policy:
        return cls(config.policy, inputs.observation_size, inputs.outputs, tuple(config.hidden))

    def __init__(
        self, kind: str, observation_size: int, outputs: int, hidden: tuple[int, ...]
    ) -> None:
        if not hidden or min(hidden) < 1:
            raise UsageError(
                f"policy is {kind}, which needs a layer of at least one cell: give --hidden "
                "a width above zero"
            )
        self.kind = kind
        self.cell = CELLS[kind]
        self.observation_size = observation_size
        self.outputs = outputs
        self.hidden = hidden
        self.shapes: list[tuple[int, int]] = []
        for inputs, units in zip((observation_size, *hidden), hidden, strict=False):
            self.shapes += [(inputs, self.cell.gates * units), (units, self.cell.gates * units)]
        self.shapes.append((hidden[-1], outputs))
        self.row_length = self.shapes[0][1]
        self.size = sum((rows + 1) * columns for rows, columns in self.shapes)
        self.memory_size = self.cell.states * sum(hidden)

    @property
    def description(self) -> tuple[object, ...]:
        return self.kind, self.observation_size, self.hidden, self.outputs

    def initial(self, seed: int, init: str) -> Floats:
        """float32[size]; auto is orthogonal. Biases are zero, and the last layer is small.

        A forget gate's b_in is one, so that it keeps its memory at first (Gers et al. 2000,
        Jozefowicz et al. 2015).
        """
        init = "orthogonal" if init == "auto" else init
        vector = np.zeros((1, self.size), np.float32)
        layers = self.layers(vector)
        for (weights, _), drawn in zip(
            layers, draw_initial_weights(self.shapes, 1.0, seed, init), strict=True
        ):
            weights[...] = drawn
        if self.cell.forget is not None and init != "zero":
            for (_, bias), units in zip(layers[::2], self.hidden, strict=False):
                bias.reshape(-1, units)[self.cell.forget] = 1
        first: Floats = vector[0]
        return first

    def layers(self, parameters: Floats) -> list[Layer]:
        """Views of each matrix and its bias in float32[B, size], in the flat vector's order."""
        return layer_views(self.shapes, parameters)

    def bind(self, parameters: Floats) -> BoundPolicy:
        layers = self.layers(self.checked(parameters))
        memory = np.zeros((len(parameters), self.memory_size), np.float32)
        cells = list(zip(layers[:-1:2], layers[1::2], self._memories(memory), strict=True))
        last, step = layers[-1], self.cell.step

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

    def _memories(self, memory: Floats) -> list[Floats]:
        """Views of each layer's memory, float32[B, states · units]."""
        stops = np.cumsum([self.cell.states * units for units in self.hidden])
        return np.split(memory, stops[:-1], axis=1)


def affine(x: Floats, layer: Layer) -> Floats:
    """x[b] @ W[b] + b[b] for every individual b."""
    y = stacked_product(x, layer[0])
    y += layer[1]
    return y
