"""The linear policy (Mania, Guy and Recht 2018, arXiv:1803.07055) and the multilayer perceptron,
their activations, and how a larger one continues a smaller one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np

from es_queue.config.run_config import RunConfig
from es_queue.config.settings import setting
from es_queue.errors import UsageError
from es_queue.numerics.arrays import Floats
from es_queue.policies.base import (
    BiasSettings,
    BoundPolicy,
    HiddenSettings,
    Layer,
    LayeredPolicy,
    NormSettings,
    Policy,
    SelectedInputsPolicy,
    affine,
    fold_normalisation,
    make_dense,
)

# --- activations, computed in place by the same numpy loops for one row and for many

Activation = Callable[[Floats, Floats], object]

ZERO = np.zeros((), np.float32)
#: That of evolution-strategies-starter.
LRELU_SLOPE = np.array(0.2, np.float32)
# Klambauer et al. 2017, "Self-normalizing neural networks": the fixed point of mean 0, variance 1.
SELU_ALPHA = np.array(1.6732632423543772, np.float32)
SELU_SCALE = np.array(1.0507009873554805, np.float32)


def relu(x: Floats, out: Floats) -> None:
    np.maximum(x, ZERO, out=out)


def lrelu(x: Floats, out: Floats) -> None:
    """x above zero, SLOPE · x below."""
    below = np.minimum(x, ZERO)
    np.multiply(below, LRELU_SLOPE, below)
    np.maximum(x, ZERO, out=out)
    np.add(out, below, out)


def elu(x: Floats, out: Floats, alpha: Floats | None = None) -> None:
    """x above zero, exp(x) - 1 below (Clevert et al. 2016), times ``alpha`` if there is one."""
    below = np.minimum(x, ZERO)
    np.expm1(below, below)
    if alpha is not None:
        np.multiply(below, alpha, below)
    np.maximum(x, ZERO, out=out)
    np.add(out, below, out)


def selu(x: Floats, out: Floats) -> None:
    """SCALE · (x above zero, ALPHA · (exp(x) - 1) below)."""
    elu(x, out, SELU_ALPHA)
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


# --- policies


class MlpPolicy(LayeredPolicy):
    """x -> activation(x @ W + b) for each hidden layer, then x @ W + b. With virtual batch
    normalisation, the hidden layers are normalised.
    """

    kinds = ("mlp",)

    class Settings(HiddenSettings, NormSettings):
        activation = setting(
            "tanh",
            "activation function between the layers",
            choices=tuple(ACTIVATIONS),
        )

    def build(self, config: RunConfig, shape: tuple[int, ...]) -> None:
        own = dict(config.own)  # a linear policy has neither layers nor an activation
        self.hidden: tuple[int, ...] = tuple(own.get("hidden", ()))
        self.activation: str = own.get("activation", "tanh")
        self.gain = GAINS[self.activation]
        shapes = list(pairwise((self.observation_size, *self.hidden, self.outputs)))
        self.set_layers(shapes, config.biases, list(self.hidden) if config.has_virtual_norm else [])
        self.row_length = 0 if self.norms else shapes[0][1]

    @property
    def description(self) -> tuple[object, ...]:
        kind = "normalised mlp" if self.norms else self.kind
        return kind, self.activation, tuple(self.shapes), self.biases

    def bind(self, parameters: Floats) -> BoundPolicy:
        """A normalised one has copies of the weights instead of views."""
        rows, activate = self.checked(parameters), ACTIVATIONS[self.activation]
        layers = self.layers(rows)
        if self.norms:
            each = zip(*map(self.acting_layers, rows), strict=True)
            layers = [
                (np.stack([weights for weights, _ in layer]), np.stack([bias for _, bias in layer]))
                for layer in each
            ]
        *hidden, last = layers
        *dense_hidden, dense_last = [make_dense((weights[0], bias[0])) for weights, bias in layers]

        def act_many(x: Floats) -> Floats:
            for layer in hidden:
                x = affine(x, layer)
                activate(x, x)
            return affine(x, last)

        def act_one(x: Floats) -> Floats:
            for dense in dense_hidden:
                x = dense(x)
                activate(x, x)
            return dense_last(x)

        return BoundPolicy(len(rows), act_one if hidden else dense_last, act_many)

    def acting_layers(self, vector: Floats) -> list[Layer]:
        layers, x = self.layers(vector), self.reference
        if not self.norms:
            return layers
        assert x is not None
        with np.errstate(all="ignore"):  # a policy that breaks down is noticed by its outputs
            for number, scale in enumerate(self.scales(vector)):
                weights = layers[number][0]
                layers[number] = fold_normalisation(weights, x @ weights, *scale)
                x = x @ layers[number][0] + layers[number][1]
                ACTIVATIONS[self.activation](x, x)
        return layers


class LinearPolicy(MlpPolicy):
    """outputs = x @ W + b: an mlp without hidden layers, which begins with zeros."""

    Settings = BiasSettings  # type: ignore[assignment]
    kinds = ("linear",)
    auto = "zero"


# --- growth (net2wider, Chen, Goodfellow, Shlens 2016)


def widen(small: Policy, parameters: Floats, large: Policy, first: Floats) -> Floats:
    """float32[large.size]: parameters with which ``large``, of more observations or wider layers,
    acts as ``small`` with ``parameters``, up to rounding.

    New inputs have no weight in old units, so no output changes. New units have their weights of
    ``first``, float32[large.size], so that training can use them. Raises UsageError if ``small``
    does not fit.
    """
    if isinstance(small, SelectedInputsPolicy) and isinstance(large, SelectedInputsPolicy):
        if not np.array_equal(small.numbers, large.numbers):
            raise UsageError(
                "its policy observes different numbers: use the same --observe, or all"
            )
        _validate_observations(small, large)
        return widen(small.policy, parameters, large.policy, first)
    if isinstance(small, SelectedInputsPolicy):
        parameters, small = small.for_whole(parameters), small.whole
    if isinstance(large, SelectedInputsPolicy):
        raise UsageError("its policy observes different numbers from this run: use --observe all")
    if small.description and small.description == large.description:
        return parameters
    kinds = [
        str(next(iter(policy.description), type(policy).__name__)) for policy in (small, large)
    ]
    if type(small) is not type(large) or kinds[0] != kinds[1]:
        raise UsageError(
            f"a {kinds[0]} policy cannot become a {kinds[1]} one: use --policy {kinds[0]}"
        )
    if not isinstance(small, MlpPolicy) or not isinstance(large, MlpPolicy) or small.norms:
        raise UsageError(
            f"a {kinds[0]} policy cannot grow: observations, layers and actions must be equal"
        )
    if small.activation != large.activation:
        raise UsageError(
            f"its activation is {small.activation}, not {large.activation}: use --activation "
            f"{small.activation}"
        )
    if small.biases and not large.biases:
        raise UsageError("its layers have biases: use --biases")
    if len(small.hidden) != len(large.hidden) or any(
        before > after for before, after in zip(small.hidden, large.hidden, strict=True)
    ):
        old, new = (",".join(map(str, policy.hidden)) for policy in (small, large))
        raise UsageError(
            f"its hidden layers have {old} units, which do not fit into {new}: use as many layers, "
            "each as wide or wider"
        )
    if small.outputs != large.outputs:
        raise UsageError(
            f"its policy returns {small.outputs} numbers for an action, but this environment "
            f"takes {large.outputs}"
        )
    _validate_observations(small, large)
    grown = np.array(first, np.float32)
    for (weights, bias), (new_weights, new_bias) in zip(
        small.layers(parameters), large.layers(grown), strict=True
    ):
        rows, columns = weights.shape
        new_weights[rows:, :columns] = 0
        new_weights[:rows, :columns] = weights
        new_bias[: len(bias)] = bias
    return grown


def _validate_observations(small: Policy, large: Policy) -> None:
    if small.observation_size > large.observation_size:
        raise UsageError(
            f"its policy takes {small.observation_size} observations, but this environment has "
            f"only {large.observation_size}: warm start can add observations, not remove them"
        )
