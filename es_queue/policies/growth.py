"""A larger policy that acts as a smaller one does: more observations, wider layers (net2wider, Chen, Goodfellow, Shlens 2016).

What is new is connected so that it changes no output: the old units take nothing from new observations and units,
while new units have first weights of their own, so that training has something to use.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from es_queue.errors import UsageError
from es_queue.policies.base import Floats, Policy
from es_queue.policies.linear import LinearPolicy
from es_queue.policies.mlp import MlpPolicy
from es_queue.policies.vector import VectorPolicy

Part = tuple[Floats, Floats]  # weights float32[rows, columns], bias float32[columns] or float32[0]


def grown(small: Policy, parameters: Floats, large: Policy, first: Floats) -> Floats:
    """float32[large.size]: ``large`` with these parameters acts as ``small`` with ``parameters`` does, up to rounding.

    The first observations of ``large`` are those of ``small``; ``first``: what new units begin with, float32[large.size].
    Raises UsageError where the one cannot hold the other.
    """
    if small.description and small.description == large.description:
        return parameters
    if type(small) is not type(large) or name_of(small) != name_of(large):
        raise UsageError(f"a {name_of(small)} policy does not become a {name_of(large)} one: use --policy {name_of(small)}")
    if isinstance(small, MlpPolicy) and isinstance(large, MlpPolicy):
        _refuse_mlp(small, large)
    if type(small) not in (LinearPolicy, VectorPolicy, MlpPolicy):
        raise UsageError(f"a {name_of(small)} policy does not grow: only one of the same observations, layers and actions can take its parameters")
    if small.outputs != large.outputs:
        raise UsageError(f"its policy puts out {small.outputs} numbers for an action, this environment takes {large.outputs}")
    if small.observation_size > large.observation_size:
        raise UsageError(f"its policy takes {small.observation_size} observations, this environment has {large.observation_size}: fewer cannot be made of more")
    pairs = zip(parts(small, parameters), parts(large, first), strict=True)
    return np.concatenate([array.ravel() for old, new in pairs for array in _embedded(old, new)]).astype(np.float32)


def parts(policy: Policy, vector: Floats) -> list[Part]:
    """Weights and bias of each layer, as views of the flat vector."""
    if isinstance(policy, LinearPolicy | VectorPolicy):
        return [(vector.reshape(policy.observation_size, policy.outputs), np.zeros(0, np.float32))]
    if isinstance(policy, MlpPolicy):
        return [(weights[0], bias[0]) for weights, bias in policy.layers(vector[None])]
    raise UsageError(f"a {name_of(policy)} policy does not grow")


def _embedded(old: Part, new: Part) -> tuple[Floats, Floats]:
    """The old layer in the corner of the new one, taking nothing from rows that it does not know."""
    (rows, columns), weights, bias = old[0].shape, new[0].copy(), new[1].copy()
    weights[rows:, :columns] = 0
    weights[:rows, :columns] = old[0]
    bias[: len(old[1])] = old[1]
    return weights, bias


def _refuse_mlp(small: MlpPolicy, large: MlpPolicy) -> None:
    if small.activation != large.activation:
        raise UsageError(f"its activation is {small.activation}, not {large.activation}: use --activation {small.activation}")
    old, new = widths(small), widths(large)
    if len(old) != len(new) or any(before > after for before, after in zip(old, new, strict=True)):
        raise UsageError(f"its hidden layers have {shown(old)} units, which do not fit into {shown(new)}: use as many layers, each as wide or wider")


def widths(policy: MlpPolicy) -> Sequence[int]:
    return [columns for _, columns in policy.shapes[:-1]]


def shown(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


def name_of(policy: Policy) -> str:
    return {LinearPolicy: "linear", VectorPolicy: "vector", MlpPolicy: "mlp"}.get(type(policy)) or str(next(iter(policy.description), type(policy).__name__))
