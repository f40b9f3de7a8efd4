"""What observations of an environment look like: a few random steps, played by the master itself.

Workers say how observations are distributed. This is what their word is compared with.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from es_queue.environments.factory import open_environment, portable_request
from es_queue.environments.interface import Environment, EnvironmentRequest
from es_queue.environments.spaces import EnvironmentSpec
from es_queue.policies.actions import ActionMap

STEPS, EPISODES = 100, 3
LARGEST = float(np.finfo(np.float32).max)
UNBOUNDED = 1e30  # some environments declare the largest float in place of infinity


def with_observed(spec: EnvironmentSpec, request: EnvironmentRequest) -> EnvironmentSpec:
    """The spec with ``observation_scale``, and without the bounds that its environment ignores."""
    world = open_environment(portable_request(request))
    try:
        rows = random_observations(world, spec)
    finally:
        world.close()
    scale = float(np.abs(rows[np.isfinite(rows)]).max(initial=0.0))
    if not spec.observation_low:
        return replace(spec, observation_scale=scale)
    low, high = np.array(spec.observation_low), np.array(spec.observation_high)
    with np.errstate(invalid="ignore"):
        kept = (rows.min(axis=0) >= low) & (rows.max(axis=0) <= high)
    kept &= (low > -UNBOUNDED) & (high < UNBOUNDED)
    return replace(
        spec,
        observation_scale=scale,
        observation_low=tuple(np.where(kept, low, -np.inf).tolist()),
        observation_high=tuple(np.where(kept, high, np.inf).tolist()),
    )


def random_observations(world: Environment, spec: EnvironmentSpec) -> NDArray[np.float64]:
    """float64[n, d], n >= 1: observations of the first steps of a few episodes."""
    random = np.random.default_rng(0)
    actions = ActionMap(spec.action, "clip")
    rows = [world.reset(0)]
    with suppress(Exception):  # a random action may be one that the environment cannot take
        for episode in range(EPISODES):
            if episode:
                rows.append(world.reset(episode))
            over = False
            while not over and len(rows) <= STEPS:
                outputs = random.standard_normal(spec.action.outputs).astype(np.float32)
                observation, _, over = world.step(actions.act_one(outputs))
                rows.append(observation)
    return np.array(rows, np.float64)
