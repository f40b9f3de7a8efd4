"""The reference batch of virtual batch normalisation: observations under random actions.

It depends only on the run's seed and environment, so every process makes it for itself, and it is
not published.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from es_queue.config.run_config import VIRTUAL, RunConfig
from es_queue.environments.factory import describe, open_environment, portable_request
from es_queue.environments.interface import EnvironmentRequest
from es_queue.environments.spaces import ActionSpec, EnvironmentSpec
from es_queue.errors import EnvironmentFailure
from es_queue.numerics.arrays import Doubles, Floats
from es_queue.policies.actions import ActionMap
from es_queue.slot_plan import REFERENCE, evaluation_seeds, uniforms
from es_queue.user_code import describe_error

#: Observations of the batch, and how many steps lie between two of them: neighbours are nearly the
#: same.
BATCH_SIZE, STEPS_BETWEEN = 128, 8


def make_reference_batch(config: RunConfig) -> Floats | None:
    """float32[BATCH_SIZE, observation_size] for a resolved config, read-only; None without virtual
    batch normalisation.

    Raises EnvironmentFailure if the environment cannot be created, raises, or returns observations
    that cannot be normalised.
    """
    if config.batch_norm != VIRTUAL:
        return None
    return _collect_batch(
        portable_request(replace(EnvironmentRequest.of(config), behaviour="")), config.seed
    )


@lru_cache(maxsize=2)
def _collect_batch(request: EnvironmentRequest, seed: int) -> Floats:
    spec = describe(request)
    try:
        batch = np.stack(_sample_observations(request, spec, seed))
    except Exception as error:  # whatever a user's environment raises
        raise EnvironmentFailure(
            f"{spec.id} fails under the random actions that batch_norm {VIRTUAL} needs: "
            f"{describe_error(error)}"
        ) from error
    if not np.isfinite(batch).all():
        raise EnvironmentFailure(
            f"{spec.id} has observations that are not finite, so batch_norm "
            f"{VIRTUAL} cannot normalise them: leave it out"
        )
    batch.flags.writeable = False
    return batch


def _sample_observations(
    request: EnvironmentRequest, spec: EnvironmentSpec, seed: int
) -> list[Floats]:
    """BATCH_SIZE observations, STEPS_BETWEEN steps apart."""
    most = BATCH_SIZE * STEPS_BETWEEN
    seeds = iter(evaluation_seeds(RunConfig(seed=seed), REFERENCE, 0, most).tolist())
    draws = uniforms(seed, REFERENCE, 1, most * spec.action.outputs).reshape(most, -1)
    actions, env = ActionMap(spec.action, "clip"), open_environment(request)
    observations: list[Floats] = []
    try:
        over, steps = True, 0
        for number, draw in enumerate(draws):
            if over or steps == spec.step_limit:
                observation, steps = env.reset(next(seeds)), 0
            if number % STEPS_BETWEEN == 0:
                observations.append(observation)
            observation, _, over = env.step(actions.act_one(uniform_outputs(spec.action, draw)))
            steps += 1
    finally:
        env.close()
    return observations


def uniform_outputs(action: ActionSpec, draw: Doubles) -> Floats:
    """Outputs of a policy for an action that is uniform in its space (between -1 and 1 if
    unbounded).

    draw: float64[outputs], uniform in [0, 1)
    """
    if action.kind != "box" or action.bins:
        return (draw - 0.5).astype(np.float32)
    bounds = np.array([action.low, action.high])
    low, high = np.where(np.isfinite(bounds).all(0), bounds, [[-1.0], [1.0]])
    drawn: Floats = (low + draw * (high - low)).astype(np.float32)
    return drawn
