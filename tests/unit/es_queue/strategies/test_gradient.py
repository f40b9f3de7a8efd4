"""A learnt deviation may be one number as well as one per parameter."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest

from es_queue import testing
from es_queue.numerics.arrays import norm, steady_exp, weighted_rows
from es_queue.strategies.base import Batch, Info, State
from es_queue.strategies.gradient import AdaptiveSharedSigma
from es_queue.strategies.shaping import utilities
from tests.cases import each_case
from tests.ring import quick_config, run_ring
from tests.tiny import QUAD

HERE = "tests.unit.es_queue.strategies.test_gradient"


class SharedSigma(AdaptiveSharedSigma):
    """Its deviation falls by a tenth per generation."""

    asynchronous: ClassVar[bool] = True

    def start(self, parameters: Any) -> State:
        return {**super().start(parameters), "sigma": self.first_sigma(self.config.sigma or 0.3)}

    def tell(self, state: State, batch: Batch) -> tuple[State, Info]:
        shaped = utilities("centered-rank", batch.fitness)
        if not shaped.any():
            return self.stay(state)
        parts = [
            spread
            * weighted_rows(
                batch.noise,
                batch.noise_indices[rows],
                shaped[rows, 0] - shaped[rows, 1],
                self.size,
            )
            for rows, spread in batch.by_spread(state["sigma"])
        ]
        gradient = np.sum(parts, axis=0)
        step = (0.1 * gradient).astype(np.float32)
        after = {
            "parameters": self.moved(state["parameters"], step),
            "sigma": (state["sigma"] * steady_exp(np.array([-0.1]))).astype(np.float32),
        }
        return after, self.figures(after, norm(gradient), norm(step))


def test_a_strategy_with_one_learnt_sigma_passes_the_shared_suite() -> None:
    testing.check_strategy(SharedSigma)


@each_case("schedule", ["sync", "async"])
def test_one_learnt_sigma_runs_in_both_schedules(schedule: str) -> None:
    config = quick_config(
        env=QUAD,
        strategy=f"{HERE}:SharedSigma",
        schedule=schedule,
        population=8,
        obs_norm=False,
        generations=3,
        target_reward="none",
        eval_every=0,
        final_episodes=0,
    )
    ended, _ = run_ring(config)
    assert ended.state.strategy["sigma"] == pytest.approx([0.3 * np.exp(-0.3)], rel=1e-5)
