"""A task that needs memory is learnt by whoever remembers, and by nobody else."""

from __future__ import annotations

import pytest

from tests.recall import RECALL
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
