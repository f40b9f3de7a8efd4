"""Observations of a few random steps that the master plays itself, to check workers' observation
statistics.
"""

from __future__ import annotations

import os
import warnings
from contextlib import suppress
from dataclasses import replace

import numpy as np

from es_queue.environments.factory import open_environment, portable_request
from es_queue.environments.interface import Environment, EnvironmentRequest
from es_queue.environments.spaces import EnvironmentSpec
from es_queue.errors import EnvironmentFailure
from es_queue.numerics.arrays import Doubles
from es_queue.policies.actions import ActionMap

STEPS, EPISODES = 100, 3
LARGEST = float(np.finfo(np.float32).max)
UNBOUNDED = 1e30  # some environments declare the largest float in place of infinity


def with_observed(spec: EnvironmentSpec, request: EnvironmentRequest) -> EnvironmentSpec:
    """The spec with ``observation_scale``, and without the bounds that its environment ignores.
    Raises EnvironmentFailure if the user's own environment ends its process.
    """
    if ":" in request.id and hasattr(os, "fork"):
        rows = observations_apart(request, spec)
    else:
        rows = played_observations(request, spec)
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


def played_observations(request: EnvironmentRequest, spec: EnvironmentSpec) -> Doubles:
    """float64[n, d] of ``random_observations``, from an environment of its own."""
    world = open_environment(portable_request(request))
    try:
        return random_observations(world, spec)
    finally:
        world.close()


def observations_apart(request: EnvironmentRequest, spec: EnvironmentSpec) -> Doubles:
    """``played_observations`` in a child process: a user's environment may end its process."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # Python 3.12 warns of forks beside threads; the child runs nothing of theirs.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reading)
            rows = played_observations(request, spec)
            with os.fdopen(writing, "wb") as stream:
                stream.write(rows.tobytes())
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        data = stream.read()
    ended_by = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if ended_by < 0:
        raise EnvironmentFailure(
            f"{request.id} ended its process by signal {-ended_by} in its first steps: it cannot "
            "be played"
        )
    if ended_by:  # it raises: what it says is said here
        return played_observations(request, spec)
    return np.frombuffer(data, np.float64).reshape(-1, spec.observation_size)


def random_observations(world: Environment, spec: EnvironmentSpec) -> Doubles:
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
