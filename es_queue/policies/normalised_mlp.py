"""The multilayer perceptron with virtual batch normalisation of its hidden layers."""

from __future__ import annotations

import numpy as np

from es_queue.policies.base import BoundPolicy, Floats, single_only
from es_queue.policies.layers.activations import ACTIVATIONS
from es_queue.policies.layers.virtual_norm import fold_normalisation, require_reference
from es_queue.policies.mlp import Layer, MlpPolicy, forward_many, forward_one


class NormalisedMlpPolicy(MlpPolicy):
    """An mlp whose flat vector goes on with scale, shift [columns each] of the first hidden layer,
    of the second …

    reference: float32[N, observation_size], see :mod:`es_queue.policies.layers.virtual_norm`; None
    where nothing is bound
    """

    def __init__(
        self,
        observation_size: int,
        outputs: int,
        hidden: tuple[int, ...],
        activation: str,
        reference: Floats | None,
    ) -> None:
        super().__init__(observation_size, outputs, hidden, activation)
        self.reference = reference
        self._plain = self.size
        self.size += 2 * sum(hidden)

    @property
    def description(self) -> tuple[object, ...]:
        """See :attr:`Policy.description`."""
        return "normalised mlp", self.activation, tuple(self.shapes)

    def initial(self, seed: int, init: str) -> Floats:
        """float32[size]: an mlp's, then scales of one and shifts of zero."""
        norms = [
            np.repeat(np.array([1, 0], np.float32), columns) for _, columns in self.shapes[:-1]
        ]
        return np.concatenate([super().initial(seed, init), *norms])

    def bind(self, parameters: Floats) -> BoundPolicy:
        """See :meth:`Policy.bind`; it holds weights of its own, no views."""
        rows = self.checked(parameters)
        count, activate = len(rows), ACTIVATIONS[self.activation]
        each = [self.acting_layers(row) for row in rows]
        layers = [
            (
                np.stack([weights for weights, _ in layer_copies]),
                np.stack([bias for _, bias in layer_copies]),
            )
            for layer_copies in zip(*each, strict=True)
        ]
        single = forward_one(layers, activate) if count == 1 else single_only(count)
        return BoundPolicy(count, single, forward_many(layers, activate))

    def acting_layers(self, vector: Floats) -> list[Layer]:
        """Weights [rows, columns] and bias [columns] of the plain mlp that float32[size]
        acts as.
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
