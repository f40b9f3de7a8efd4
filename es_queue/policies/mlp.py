"""The multilayer perceptron: any widths, biases, one activation between the layers."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from es_queue.errors import UsageError
from es_queue.policies.base import (
    BoundPolicy,
    Floats,
    Forward,
    Policy,
    row_product,
    single_only,
    stacked_product,
)
from es_queue.policies.layers.activations import ACTIVATIONS, GAINS, Activation
from es_queue.policies.layers.initial_weights import draw_initial_weights

Layer = tuple[Floats, Floats]  # weights float32[B, rows, columns], bias float32[B, columns]


class MlpPolicy(Policy):
    """x -> activation(x @ W + b) for each hidden layer, then x @ W + b.

    The flat vector is W, b of the first layer, W, b of the second …; each W is [rows, columns] in C
    order.
    """

    def __init__(
        self, observation_size: int, outputs: int, hidden: tuple[int, ...], activation: str
    ) -> None:
        if activation not in ACTIVATIONS:
            raise UsageError(
                f"there is no activation {activation!r}; choose one of {', '.join(ACTIVATIONS)}"
            )
        if any(width < 1 for width in hidden):
            raise UsageError(f"a hidden layer needs at least one unit, not {min(hidden)}")
        self.observation_size = observation_size
        self.outputs = outputs
        self.activation = activation
        self.shapes = list(pairwise((observation_size, *hidden, outputs)))
        self.size = sum((rows + 1) * columns for rows, columns in self.shapes)

    def initial(self, seed: int, init: str) -> Floats:
        """float32[size]; auto is orthogonal. Biases are zero, the last layer is small."""
        init = "orthogonal" if init == "auto" else init
        parts = []
        for weights in draw_initial_weights(self.shapes, GAINS[self.activation], seed, init):
            parts += [weights.ravel(), np.zeros(weights.shape[1], np.float32)]
        return np.concatenate(parts)

    def bind(self, parameters: Floats) -> BoundPolicy:
        """See :meth:`Policy.bind`."""
        layers = self.layers(self.checked(parameters))
        activate = ACTIVATIONS[self.activation]
        count = len(parameters)
        single = forward_one(layers, activate) if count == 1 else single_only(count)
        return BoundPolicy(count, single, forward_many(layers, activate))

    def layers(self, parameters: Floats) -> list[Layer]:
        """Views of each layer's weights and biases in float32[B, size]."""
        layers, start = [], 0
        for rows, columns in self.shapes:
            middle, stop = start + rows * columns, start + (rows + 1) * columns
            weights = parameters[:, start:middle].reshape(-1, rows, columns)
            layers.append((weights, parameters[:, middle:stop]))
            start = stop
        return layers


def forward_many(layers: list[Layer], activate: Activation) -> Forward:
    """float32[B, d] -> float32[B, outputs]: row b by individual b's layers."""
    *hidden, (last, last_bias) = layers

    def act_many(x: Floats) -> Floats:
        for weights, bias in hidden:
            x = stacked_product(x, weights)
            np.add(x, bias, x)
            activate(x, x)
        x = stacked_product(x, last)
        x += last_bias
        return x

    return act_many


def forward_one(layers: list[Layer], activate: Activation) -> Forward:
    """float32[d] -> float32[outputs] for the only individual of ``layers``."""
    *hidden, (last, last_bias) = [(row_product(weights[0]), bias[0]) for weights, bias in layers]
    add = np.add

    def act_one(x: Floats) -> Floats:
        for product, bias in hidden:
            x = product(x)
            add(x, bias, x)
            activate(x, x)
        x = last(x)
        add(x, last_bias, x)
        return x

    return act_one
