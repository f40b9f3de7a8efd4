"""The multilayer perceptron: any widths, with or without biases, one activation between layers,
optional virtual batch normalisation.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from es_queue.config.run_config import RunConfig
from es_queue.config.settings import setting
from es_queue.errors import UsageError
from es_queue.numerics.arrays import Floats
from es_queue.policies.base import (
    BoundPolicy,
    Forward,
    HiddenSettings,
    NormSettings,
    Policy,
    PolicyInputs,
    row_product,
    stacked_product,
)
from es_queue.policies.layers.activations import ACTIVATIONS, GAINS, Activation
from es_queue.policies.layers.initial_weights import draw_initial_weights
from es_queue.policies.layers.virtual_norm import (
    fold_normalisation,
    require_reference,
)

Layer = tuple[Floats, Floats]  # weights float32[B, rows, columns], bias float32[B, columns]


class MlpPolicy(Policy):
    """x -> activation(x @ W + b) for each hidden layer, then x @ W + b.

    The flat vector is W, b of the first layer, W, b of the second …; each W is [rows, columns] in C
    order. Without biases there is no b.
    """

    kinds = ("mlp",)

    class Settings(HiddenSettings, NormSettings):
        activation = setting(
            "tanh",
            "activation function between the layers",
            choices=("tanh", "relu", "selu", "elu", "lrelu"),
        )
        biases = setting(True, "each layer adds a bias to its outputs")

    @classmethod
    def make(cls, config: RunConfig, inputs: PolicyInputs) -> Policy:
        shape = inputs.observation_size, inputs.outputs, tuple(config.hidden), config.activation
        if config.has_virtual_norm:
            return NormalisedMlpPolicy(*shape, inputs.reference, biases=config.biases)
        return MlpPolicy(*shape, biases=config.biases)

    def __init__(
        self,
        observation_size: int,
        outputs: int,
        hidden: tuple[int, ...],
        activation: str,
        *,
        biases: bool = True,
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
        self.biases = biases
        self.shapes = list(pairwise((observation_size, *hidden, outputs)))
        self.size = sum((rows + biases) * columns for rows, columns in self.shapes)
        self.row_length = self.shapes[0][1]

    @property
    def description(self) -> tuple[object, ...]:
        return "mlp", self.activation, tuple(self.shapes), self.biases

    def initial(self, seed: int, init: str) -> Floats:
        """float32[size]; auto is orthogonal. Biases are zero, the last layer is small."""
        init = "orthogonal" if init == "auto" else init
        parts = []
        for weights in draw_initial_weights(self.shapes, GAINS[self.activation], seed, init):
            parts += [weights.ravel(), np.zeros(weights.shape[1] * self.biases, np.float32)]
        return np.concatenate(parts)

    def bind(self, parameters: Floats) -> BoundPolicy:
        layers = self.layers(self.checked(parameters))
        return bind_layers(layers, ACTIVATIONS[self.activation])

    def layers(self, parameters: Floats) -> list[Layer]:
        """Views of each layer's weights and biases in float32[B, size]; zeros without biases."""
        return layer_views(self.shapes, parameters, biases=self.biases)


class NormalisedMlpPolicy(MlpPolicy):
    """An mlp whose flat vector continues with scale, shift [columns each] of each hidden layer.

    reference: float32[N, observation_size], see :mod:`es_queue.policies.layers.virtual_norm`; None
    if nothing is bound
    """

    def __init__(
        self,
        observation_size: int,
        outputs: int,
        hidden: tuple[int, ...],
        activation: str,
        reference: Floats | None,
        *,
        biases: bool = True,
    ) -> None:
        super().__init__(observation_size, outputs, hidden, activation, biases=biases)
        self.reference = reference
        self._plain = self.size
        self.size += 2 * sum(hidden)
        self.row_length = 0

    @property
    def description(self) -> tuple[object, ...]:
        _, *shape = super().description
        return "normalised mlp", *shape

    def initial(self, seed: int, init: str) -> Floats:
        """float32[size]: an mlp's, then scales of one and shifts of zero."""
        norms = [
            np.repeat(np.array([1, 0], np.float32), columns) for _, columns in self.shapes[:-1]
        ]
        return np.concatenate([super().initial(seed, init), *norms])

    def bind(self, parameters: Floats) -> BoundPolicy:
        """See :meth:`Policy.bind`; it has copies of the weights instead of views."""
        each = [self.acting_layers(row) for row in self.checked(parameters)]
        layers = [
            (
                np.stack([weights for weights, _ in layer_copies]),
                np.stack([bias for _, bias in layer_copies]),
            )
            for layer_copies in zip(*each, strict=True)
        ]
        return bind_layers(layers, ACTIVATIONS[self.activation])

    def acting_layers(self, vector: Floats) -> list[Layer]:
        """Weights [rows, columns] and bias [columns] of the plain mlp that is equal to
        float32[size].
        """
        with np.errstate(all="ignore"):  # a policy that breaks down is noticed by its outputs
            return self._normalised_layers(vector)

    def _normalised_layers(self, vector: Floats) -> list[Layer]:
        x, settled, at = require_reference(self.reference, self.observation_size), [], self._plain
        layers = [(weights[0], bias[0]) for weights, bias in self.layers(vector[None])]
        for weights, _ in layers[:-1]:
            columns = weights.shape[1]
            layer = fold_normalisation(
                weights,
                x @ weights,
                vector[at : at + columns],
                vector[at + columns : at + 2 * columns],
            )
            at += 2 * columns
            settled.append(layer)
            x = x @ layer[0] + layer[1]
            ACTIVATIONS[self.activation](x, x)
        return [*settled, layers[-1]]


def layer_views(
    shapes: list[tuple[int, int]], parameters: Floats, *, biases: bool = True
) -> list[Layer]:
    """Views of each layer's weights and biases (zeros without biases) in float32[B, size]."""
    layers, start = [], 0
    for rows, columns in shapes:
        middle = start + rows * columns
        weights = parameters[:, start:middle].reshape(-1, rows, columns)
        stop = middle + columns * biases
        bias = parameters[:, middle:stop] if biases else np.zeros_like(weights[:, 0])
        layers.append((weights, bias))
        start = stop
    return layers


def bind_layers(layers: list[Layer], activate: Activation) -> BoundPolicy:
    count = len(layers[0][0])
    return BoundPolicy(count, forward_one(layers, activate), forward_many(layers, activate))


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
    """float32[d] -> float32[outputs] for the first individual of ``layers``."""
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
