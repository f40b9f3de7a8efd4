"""Policies by name: what stands between an observation and an action, numpy alone."""

from __future__ import annotations

from es_queue.config.run_config import POLICIES, VIRTUAL, RunConfig
from es_queue.environments.spaces import ActionSpec
from es_queue.errors import UsageError
from es_queue.policies.base import MAX_PARAMETERS, BoundPolicy, Floats, Policy
from es_queue.policies.constant import ConstantPolicy
from es_queue.policies.conv import ARCHITECTURES, ConvPolicy
from es_queue.policies.custom import load_custom_policy
from es_queue.policies.layers.cells import CELLS
from es_queue.policies.layers.image_shape import image_shape_of
from es_queue.policies.linear import LinearPolicy
from es_queue.policies.mlp import MlpPolicy
from es_queue.policies.normalised_mlp import NormalisedMlpPolicy
from es_queue.policies.numpy_policy import NumpyPolicy
from es_queue.policies.recurrent import RecurrentPolicy

__all__ = [
    "BoundPolicy",
    "ConstantPolicy",
    "ConvPolicy",
    "LinearPolicy",
    "MlpPolicy",
    "NormalisedMlpPolicy",
    "NumpyPolicy",
    "Policy",
    "RecurrentPolicy",
    "make_policy",
]


def make_policy(
    config: RunConfig,
    observation_size: int,
    action: ActionSpec,
    shape: tuple[int, ...] = (),
    reference: Floats | None = None,
) -> Policy:
    """The policy that ``config`` names, for float32[observation_size] and ``action``.

    shape: see ``EnvironmentSpec.observation_shape``; reference: float32[N, observation_size], what
    ``batch_norm virtual`` normalises by, needed where the policy is to be bound

    Raises UsageError for an unknown policy or activation, for spaces without a number in them,
    where a policy on pictures would get none, and for more parameters than a run can have.
    """
    policy = _make_by_kind(config, observation_size, action, shape, reference)
    if policy.size > MAX_PARAMETERS:
        raise UsageError(
            f"the policy {config.policy_name} has {policy.size:,} parameters here, and at "
            f"most {MAX_PARAMETERS:,} are possible: use narrower layers, or another policy"
        )
    return policy


def _make_by_kind(
    config: RunConfig,
    observation_size: int,
    action: ActionSpec,
    shape: tuple[int, ...],
    reference: Floats | None,
) -> Policy:
    if observation_size < 1 or action.outputs < 1:
        raise UsageError(
            f"a policy needs an observation and an action, not {observation_size} → "
            f"{action.outputs} numbers"
        )
    if action.kind == "vector":
        return ConstantPolicy(action.outputs)
    if config.policy == "linear":
        return LinearPolicy(observation_size, action.outputs)
    if ":" in config.policy:
        return load_custom_policy(config.policy, observation_size, action.outputs, shape)
    if config.policy == "mlp":
        if config.batch_norm == VIRTUAL:
            return NormalisedMlpPolicy(
                observation_size, action.outputs, tuple(config.hidden), config.activation, reference
            )
        return MlpPolicy(observation_size, action.outputs, tuple(config.hidden), config.activation)
    if config.policy in CELLS:
        return RecurrentPolicy(
            config.policy, observation_size, action.outputs, tuple(config.hidden)
        )
    if config.policy in ARCHITECTURES:
        return ConvPolicy(
            config.policy,
            image_shape_of(shape, config.policy),
            action.outputs,
            normalised=config.batch_norm == VIRTUAL,
            reference=reference,
        )
    raise UsageError(
        f"there is no policy {config.policy!r}; choose {', '.join(POLICIES)} or module:Class"
    )
