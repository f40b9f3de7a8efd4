"""Policies by name: from an observation to an action, with only numpy."""

from __future__ import annotations

import numpy as np

from es_queue.config.run_config import POLICIES, RunConfig
from es_queue.config.settings import AUTO
from es_queue.environments.episode_rules import parse_observe
from es_queue.environments.interface import ActionSpec, EnvironmentRequest
from es_queue.errors import UsageError
from es_queue.numerics.arrays import Floats
from es_queue.policies.base import (
    MAX_PARAMETERS,
    BoundPolicy,
    ConstantPolicy,
    Policy,
    SelectedInputsPolicy,
)
from es_queue.policies.custom import NumpyPolicy, initial_vector, load_custom_policy

__all__ = ["POLICIES", "BoundPolicy", "NumpyPolicy", "Policy", "initial_parameters", "make_policy"]


def make_policy(
    config: RunConfig,
    observation_size: int,
    action: ActionSpec,
    shape: tuple[int, ...] = (),
    reference: Floats | None = None,
) -> Policy:
    """The policy that ``config`` names, for float32[observation_size] and ``action``; shape,
    reference: see ``Policy.kinds``. Raises UsageError for what does not fit, and for more
    parameters than a run can have.
    """
    if observation_size < 1 or action.outputs < 1:
        raise UsageError(
            f"a policy needs an observation and an action, not {observation_size} → "
            f"{action.outputs} numbers"
        )
    if action.kind == "vector":
        box = (action.low, action.high, action.start, action.scale) if action.scale else ()
        policy: Policy = ConstantPolicy(action.outputs, box)
    elif ":" in config.policy:
        policy = load_custom_policy(config.policy, observation_size, action.outputs, shape)
    else:
        kind = POLICIES[config.policy]
        policy = kind(config, observation_size, action.outputs, shape, reference)
    if policy.size > MAX_PARAMETERS:
        raise UsageError(
            f"the policy {config.policy_name} has {policy.size:,} parameters, but at "
            f"most {MAX_PARAMETERS:,} are allowed: use narrower layers, or another policy"
        )
    numbers = parse_observe(config.observe)
    if numbers is None:
        return policy
    if max(numbers) >= observation_size:
        raise UsageError(
            f"observe is {config.observe[:60]}, but the observation has the numbers 0 to "
            f"{observation_size - 1}"
        )
    if not policy.row_length or ":" in config.policy:
        raise UsageError(
            f"observe is {config.observe[:60]}, but policies on images, your own policies and "
            "batch_norm virtual need the whole observation: set observe to all"
        )
    return SelectedInputsPolicy(kind(config, len(numbers), action.outputs), policy, numbers)


def initial_parameters(config: RunConfig, policy: Policy, member: int = 0) -> Floats:
    """float32 [size] by seed, member and --init, or an objective's own first vector."""
    if config.model:  # the workers load its weights
        return np.zeros(policy.size, np.float32)
    if config.objective and config.init == AUTO:
        return initial_vector(EnvironmentRequest.of(config))
    # start-up: of runs; acting needs only numpy
    from es_queue.slot_plan import initial_parameters_seed

    seed = initial_parameters_seed(config.seed, member)
    return np.asarray(policy.initial(seed, config.init), np.float32)
