"""Makes a larger policy that acts like a smaller one: more observations, wider layers (net2wider,
Chen, Goodfellow, Shlens 2016).

New connections change no output: new inputs have no weight in old units. New units have first
weights of their own, so that training can use them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from es_queue.errors import UsageError
from es_queue.numerics.arrays import Floats
from es_queue.policies.base import Policy
from es_queue.policies.constant import ConstantPolicy
from es_queue.policies.linear import LinearPolicy
from es_queue.policies.mlp import MlpPolicy
from es_queue.policies.selected_inputs import SelectedInputsPolicy

LayerArrays = tuple[
    Floats, Floats
]  # weights float32[rows, columns], bias float32[columns] or float32[0]


def widen(small: Policy, parameters: Floats, large: Policy, first: Floats) -> Floats:
    """float32[large.size]: parameters with which ``large`` acts as ``small`` with ``parameters``,
    up to rounding.

    ``large`` begins with the observations of ``small``; ``first``: initial values of new units,
    float32[large.size]. Raises UsageError if ``small`` does not fit.
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
    if type(small) is not type(large) or policy_kind(small) != policy_kind(large):
        raise UsageError(
            f"a {policy_kind(small)} policy cannot become a {policy_kind(large)} one: use "
            f"--policy {policy_kind(small)}"
        )
    if isinstance(small, MlpPolicy) and isinstance(large, MlpPolicy):
        _validate_mlp(small, large)
    if type(small) not in (LinearPolicy, ConstantPolicy, MlpPolicy):
        raise UsageError(
            f"a {policy_kind(small)} policy cannot grow: observations, layers and actions must "
            f"be equal"
        )
    if small.outputs != large.outputs:
        raise UsageError(
            f"its policy returns {small.outputs} numbers for an action, but this environment "
            f"takes {large.outputs}"
        )
    _validate_observations(small, large)
    pairs = zip(layer_arrays(small, parameters), layer_arrays(large, first), strict=True)
    return np.concatenate(
        [array.ravel() for old, new in pairs for array in _embed(old, new)]
    ).astype(np.float32)


def _validate_observations(small: Policy, large: Policy) -> None:
    if small.observation_size > large.observation_size:
        raise UsageError(
            f"its policy takes {small.observation_size} observations, but this environment has "
            f"only {large.observation_size}: warm start can add observations, not remove them"
        )


def layer_arrays(policy: Policy, vector: Floats) -> list[LayerArrays]:
    """Weights and bias of each layer, as views of the flat vector."""
    if isinstance(policy, LinearPolicy | ConstantPolicy):
        return [(vector.reshape(policy.observation_size, policy.outputs), np.zeros(0, np.float32))]
    if isinstance(policy, MlpPolicy):
        length = None if policy.biases else 0
        return [(weights[0], bias[0, :length]) for weights, bias in policy.layers(vector[None])]
    raise UsageError(f"a {policy_kind(policy)} policy cannot grow")


def _embed(old: LayerArrays, new: LayerArrays) -> tuple[Floats, Floats]:
    """The old layer in a corner of the new one, with zeros for new inputs."""
    (rows, columns), weights, bias = old[0].shape, new[0].copy(), new[1].copy()
    weights[rows:, :columns] = 0
    weights[:rows, :columns] = old[0]
    bias[: len(old[1])] = old[1]
    return weights, bias


def _validate_mlp(small: MlpPolicy, large: MlpPolicy) -> None:
    if small.activation != large.activation:
        raise UsageError(
            f"its activation is {small.activation}, not {large.activation}: use --activation "
            f"{small.activation}"
        )
    if small.biases and not large.biases:
        raise UsageError("its layers have biases: use --biases")
    old, new = widths(small), widths(large)
    if len(old) != len(new) or any(before > after for before, after in zip(old, new, strict=True)):
        raise UsageError(
            f"its hidden layers have {format_widths(old)} units, which do not fit into "
            f"{format_widths(new)}: use as many layers, each as wide or wider"
        )


def widths(policy: MlpPolicy) -> Sequence[int]:
    return [columns for _, columns in policy.shapes[:-1]]


def format_widths(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


def policy_kind(policy: Policy) -> str:
    return str(next(iter(policy.description), type(policy).__name__))
