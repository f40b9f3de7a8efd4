"""Policies by name: what stands between an observation and an action, numpy alone."""

from __future__ import annotations

from es_queue.config import POLICIES, RunConfig
from es_queue.errors import UsageError
from es_queue.policies.base import BoundPolicy, Policy
from es_queue.policies.cells import CELLS
from es_queue.policies.conv import ARCHITECTURES, ConvPolicy
from es_queue.policies.linear import LinearPolicy
from es_queue.policies.mlp import MlpPolicy
from es_queue.policies.pictures import picture_of
from es_queue.policies.recurrent import RecurrentPolicy
from es_queue.policies.vector import VectorPolicy
from es_queue.spaces import ActionSpec

__all__ = ["BoundPolicy", "ConvPolicy", "LinearPolicy", "MlpPolicy", "Policy", "RecurrentPolicy", "VectorPolicy", "make_policy"]


def make_policy(config: RunConfig, observation_size: int, action: ActionSpec, shape: tuple[int, ...] = ()) -> Policy:
    """The policy that ``config`` names, for float32[observation_size] and ``action``.

    shape: see ``EnvironmentSpec.observation_shape``

    Raises UsageError for an unknown policy or activation, for spaces without a number in them, and where a policy on
    pictures would get none.
    """
    if observation_size < 1 or action.outputs < 1:
        raise UsageError(
            f"a policy needs an observation and an action, not {observation_size} → {action.outputs} numbers"
        )
    if action.kind == "vector":
        return VectorPolicy(action.outputs)
    if config.policy == "linear":
        return LinearPolicy(observation_size, action.outputs)
    if config.policy == "mlp":
        return MlpPolicy(observation_size, action.outputs, tuple(config.hidden), config.activation)
    if config.policy in CELLS:
        return RecurrentPolicy(config.policy, observation_size, action.outputs, tuple(config.hidden))
    if config.policy in ARCHITECTURES:
        return ConvPolicy(config.policy, picture_of(shape, config.policy), action.outputs)
    raise UsageError(f"there is no policy {config.policy!r}; choose {', '.join(POLICIES)}")
