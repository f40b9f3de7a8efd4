"""Uncertainty handling comes nearer to an optimum that noise hides, within the same budget."""

from __future__ import annotations

from statistics import fmean
from typing import Any

import numpy as np
import pytest

from es_queue.strategies.wrappers import uncertainty
from tests.ring import quick_config, run_ring

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

NOISY: dict[str, Any] = {
    "env": "",
    "objective": "tests.objectives:noisy_sphere",
    "parameters": 10,
    "population": 20,
    "sigma": 0.3,
    "env_seeds": "slot",
    "max_steps": 20_000,
    "eval_every": 0,
    "final_episodes": 1,
    "target_reward": "none",
    "noise_size": 2**18,
}
#: Mean squared distance from the optimum over three seeds, in units of the noise's deviation.
NEAR, FAR = 0.1, 0.15
each_strategy = pytest.mark.parametrize("strategy", ["snes", "csa_es", "cma_es"])


def distance(**values: Any) -> float:
    def of_seed(seed: int) -> float:
        outcome, _ = run_ring(quick_config(**NOISY, **values, seed=seed), 2)
        parameters = outcome.state.strategy["parameters"].astype(np.float64)
        return float(np.square(parameters - 1).sum())

    return fmean(of_seed(seed) for seed in range(3))


@each_strategy
def test_more_episodes_per_individual_come_near_the_optimum(strategy: str) -> None:
    assert distance(strategy=strategy, episodes_max=30) < NEAR


@each_strategy
def test_one_episode_per_individual_stays_away_from_it(strategy: str) -> None:
    assert distance(strategy=strategy) > FAR


def test_a_number_of_episodes_that_never_grows_stays_away_from_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(uncertainty, "MORE", 1.0)
    assert distance(strategy="csa_es", episodes_max=30) > FAR
