"""A task that needs memory is learnt by whoever remembers, and by nobody else."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from es_queue.policies.mlp import MlpPolicy
from tests.recall import DELAY, RECALL, Recall
from tests.ring import quick_config, run_ring

#: Together they take minutes.
pytestmark = pytest.mark.slow

VALUES = {
    "env": RECALL,
    "seed": 1,
    "obs_norm": False,
    "hidden": (8,),
    "population": 64,
    "episodes": 4,
    "env_seeds": "pair",
    "eval_every": 10,
    "final_episodes": 100,
}


def learnt(**values: object) -> float:
    outcome, _ = run_ring(quick_config(**{**VALUES, **values}), 2)
    assert outcome.evaluation is not None and outcome.evaluation.count == 100
    return outcome.evaluation.mean


@pytest.mark.parametrize("policy", ["rnn", "lstm", "gru"])
def test_a_policy_with_memory_learns_to_recall(policy: str) -> None:
    assert learnt(policy=policy, target_reward="0.97", max_steps=400_000) >= 0.9


def test_one_without_memory_stays_at_chance() -> None:
    assert (
        abs(learnt(policy="mlp", target_reward="none", max_steps=100_000)) < 0.35
    )  # of 100 fair cues


def earned(policy: MlpPolicy, parameters: np.ndarray, cue: float) -> float:
    world, act, total = Recall(), policy.bind(parameters[None]).act_one, 0.0
    observation, _ = next(
        found for found in (world.reset(seed=seed) for seed in range(100)) if found[0][0] == cue
    )
    for _ in range(DELAY + 1):
        observation, reward, _, _, _ = world.step(act(observation))
        total += reward
    return total


def test_without_memory_what_one_cue_earns_the_other_costs() -> None:
    policy = MlpPolicy(2, 1, (8,), "tanh")
    draws = np.random.default_rng(1).normal(0, 1, (20, policy.size)).astype(np.float32)
    outcomes = [earned(policy, parameters, 1.0) for parameters in draws]
    assert [-earned(policy, parameters, -1.0) for parameters in draws] == outcomes
    assert all(abs(one - other) > 0 for one, other in pairwise(outcomes))
