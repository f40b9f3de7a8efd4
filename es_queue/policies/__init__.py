"""Policies by name: what stands between an observation and an action, numpy alone."""

from __future__ import annotations

from es_queue.config import POLICIES, VIRTUAL, RunConfig
from es_queue.errors import UsageError
from es_queue.policies.base import MOST_PARAMETERS, BoundPolicy, Floats, Policy
from es_queue.policies.cells import CELLS
from es_queue.policies.conv import ARCHITECTURES, ConvPolicy
from es_queue.policies.linear import LinearPolicy
from es_queue.policies.mlp import MlpPolicy
from es_queue.policies.normalised_mlp import NormalisedMlpPolicy
from es_queue.policies.numpy_policy import NumpyPolicy
from es_queue.policies.own import own_policy
from es_queue.policies.pictures import picture_of
from es_queue.policies.recurrent import RecurrentPolicy
from es_queue.policies.vector import VectorPolicy
from es_queue.spaces import ActionSpec

__all__ = ["BoundPolicy", "ConvPolicy", "LinearPolicy", "MlpPolicy", "NormalisedMlpPolicy", "NumpyPolicy", "Policy", "RecurrentPolicy", "VectorPolicy", "make_policy"]


def make_policy(
    config: RunConfig, observation_size: int, action: ActionSpec, shape: tuple[int, ...] = (), reference: Floats | None = None
) -> Policy:
    """The policy that ``config`` names, for float32[observation_size] and ``action``.

    shape: see ``EnvironmentSpec.observation_shape``; reference: float32[N, observation_size], what ``batch_norm virtual``
    normalises by, needed where the policy is to be bound

    Raises UsageError for an unknown policy or activation, for spaces without a number in them, where a policy on
    pictures would get none, and for more parameters than a run can have.
    """
    policy = _of_its_kind(config, observation_size, action, shape, reference)
    if policy.size > MOST_PARAMETERS:
        raise UsageError(f"the policy {config.policy_name} has {policy.size:,} parameters here, and at most {MOST_PARAMETERS:,} are possible: use narrower layers, or another policy")
    return policy


def _of_its_kind(config: RunConfig, observation_size: int, action: ActionSpec, shape: tuple[int, ...], reference: Floats | None) -> Policy:
    if observation_size < 1 or action.outputs < 1:
        raise UsageError(
            f"a policy needs an observation and an action, not {observation_size} → {action.outputs} numbers"
        )
    if action.kind == "vector":
        return VectorPolicy(action.outputs)
    if config.policy == "linear":
        return LinearPolicy(observation_size, action.outputs)
    if ":" in config.policy:
        return own_policy(config.policy, observation_size, action.outputs, shape)
    if config.policy == "mlp":
        if config.batch_norm == VIRTUAL:
            return NormalisedMlpPolicy(observation_size, action.outputs, tuple(config.hidden), config.activation, reference)
        return MlpPolicy(observation_size, action.outputs, tuple(config.hidden), config.activation)
    if config.policy in CELLS:
        return RecurrentPolicy(config.policy, observation_size, action.outputs, tuple(config.hidden))
    if config.policy in ARCHITECTURES:
        return ConvPolicy(config.policy, picture_of(shape, config.policy), action.outputs, normalised=config.batch_norm == VIRTUAL, reference=reference)
    raise UsageError(f"there is no policy {config.policy!r}; choose {', '.join(POLICIES)} or module:Class")
