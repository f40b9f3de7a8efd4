"""Tasks on which the strategy or policy that is made for them succeeds, and simpler ones of the
same budget do not. The store is in memory, with the bits of real workers.
"""

from __future__ import annotations

from typing import Any

import pytest

from es_queue.strategies.map_elites import Archive
from master.loop.listeners import Outcome
from tests.deceptive import MAZE
from tests.memory import quick_config, run_ring
from tests.recall import RECALL

#: Together they take minutes.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SEARCH: dict[str, Any] = {"env": "", "eval_every": 0, "target_reward": "none", "noise_size": 2**18}


def ended(**values: Any) -> tuple[Outcome, float]:
    """A run, and the mean of its final evaluation."""
    outcome, _ = run_ring(quick_config(**values), 2)
    assert outcome.evaluation is not None
    return outcome, outcome.evaluation.mean


# --- novelty search out of a trap, into which the reward pulls

TRAP: dict[str, Any] = {
    "env": MAZE,
    "policy": "mlp",
    "hidden": (8,),
    "population": 40,
    "sigma": 0.2,
    "obs_norm": False,
    "generations": 80,
    "eval_every": 1,
    "eval_episodes": 3,
    "final_episodes": 20,
    "target_reward": "-0.4",
    "noise_size": 2**18,
}
#: The return at the dead end is -1; the goal counts as reached from -0.3 on.
DEAD_END = -0.9
REWARD: dict[str, dict[str, Any]] = {
    "openai_es": {"learning_rate": 0.2},
    "random_search": {"candidates": 3, "elite_episodes": 3},
}


def test_novelty_and_reward_together_find_the_way_around_the_trap() -> None:
    seeking = {"strategy": "novelty", "novelty": "nsr", "members": 2, "behaviour_episodes": 1}
    outcome, mean = ended(**TRAP, **seeking, learning_rate=0.2, seed=1)
    assert outcome.state.reason == "target" and mean > -0.4


@pytest.mark.parametrize("strategy", REWARD)
def test_only_the_reward_leads_into_the_trap(strategy: str) -> None:
    assert ended(**TRAP, **REWARD[strategy], strategy=strategy, seed=0)[1] < DEAD_END


# --- down a valley a thousand times steeper across than along

VALLEY = {**SEARCH, "objective": "tests.objectives:ellipsoid", "parameters": 30, "population": 40}
START, NEAR = -3.0, 0.0
#: Strategies that learn how steep the valley is in each direction, and how many generations that
#: takes.
SHAPED = {"snes": 100, "sep_cma_es": 100, "cma_es": 250, "lm_ma_es": 400}


@pytest.mark.parametrize("strategy", SHAPED)
def test_a_strategy_with_a_shape_learns_that_of_a_valley(strategy: str) -> None:
    values = {"strategy": strategy, "generations": SHAPED[strategy], "final_episodes": 1}
    assert ended(**VALLEY, **values, seed=0)[1] > NEAR


def test_random_search_does_not_come_down_the_valley() -> None:
    values = {"strategy": "random_search", "sigma": 1.0, "candidates": 3, "elite_episodes": 1}
    assert ended(**VALLEY, **values, seed=0, generations=100, final_episodes=1)[1] < START


# --- an archive of arms that end everywhere


def test_map_elites_fills_its_archive_with_good_arms() -> None:
    arm = {"objective": "tests.objectives:arm", "parameters": 12, "population": 64}
    grid = {"strategy": "map_elites", "cells": (20, 20), "behaviour_bounds": "-1:1", "sigma": 0.1}
    config = quick_config(**SEARCH, **arm, **grid, qd_offset=-1.0, generations=60, seed=0)
    archive = Archive.of(config, run_ring(config, 2)[0].state.strategy)
    # Of at most 400; random search has 245.
    assert archive.qd_score(config.qd_offset) > 260.0 and archive.coverage > 0.7


# --- mutations that add up, to what is many steps away

#: Twenty coordinates, each a distance of 1 from the start, so -20 there; mutations are of 0.1.
FAR: dict[str, Any] = {
    **SEARCH,
    "objective": "tests.objectives:far",
    "parameters": 20,
    "population": 50,
    "candidates": 3,
    "elite_episodes": 5,
    "final_episodes": 20,
    "max_steps": 4000,
    "seed": 1,
}
REACHED = -3.0


@pytest.mark.parametrize("schedule", ["sync", "async"])
def test_mutations_that_add_up_reach_what_is_many_steps_away(schedule: str) -> None:
    values = {"strategy": "ga", "truncation": 10, "sigma": 0.1, "schedule": schedule}
    assert ended(**FAR, **values)[1] > REACHED


def test_random_search_of_the_same_budget_does_not() -> None:
    assert ended(**FAR, strategy="random_search", sigma=1.0)[1] < 3 * REACHED


# --- a task that needs memory


RECALLING: dict[str, Any] = {
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


@pytest.mark.parametrize("policy", ["rnn", "lstm", "gru"])
def test_a_policy_with_memory_learns_to_recall(policy: str) -> None:
    assert ended(**RECALLING, policy=policy, target_reward="0.97", max_steps=400_000)[1] >= 0.9


def test_one_without_memory_stays_at_chance() -> None:
    mean = ended(**RECALLING, policy="mlp", target_reward="none", max_steps=100_000)[1]
    assert abs(mean) < 0.35  # of 100 fair cues
