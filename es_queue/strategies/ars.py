"""Mania, Guy, Recht 2018, Simple random search provides a competitive approach to reinforcement
learning (ARS).

https://arxiv.org/abs/1803.07055, algorithm 2. V1 and V2 differ only in the observation statistics,
which are not the strategy's; V1-t and V2-t keep only the ``top`` directions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from es_queue.config.run_config import RunConfig
from es_queue.config.scaling import ScaleRule
from es_queue.config.settings import setting
from es_queue.numerics.arrays import Doubles, Integers, norm, unit_scaled, weighted_rows
from es_queue.strategies.base import Batch, Info, State
from es_queue.strategies.gradient import AveragedSettings, GradientStrategy
from es_queue.strategies.shaping import all_equal, with_failures_lowest


class ARS(GradientStrategy):
    """θ ← θ + α/(b σ_R) Σ (r⁺ − r⁻) ε over the b best directions; not divided by σ."""

    class Settings(AveragedSettings):
        top = setting(
            0,
            "number of directions that are used, best first",
            unit="pairs",
            low=0,
            word="all",
            grows=1.0,
        )

    name = "ars"
    asynchronous = True
    scale_rules: ClassVar[Mapping[str, ScaleRule]] = {"": ScaleRule(noise=8.0, rate=1.0)}
    #: Deviation of the perturbations (the paper's ν), tuned with LEARNING_RATE on BipedalWalker.
    SIGMA = 0.03
    #: The paper's α. A step moves a parameter by about α/√b times the normalised difference of a
    #: pair.
    LEARNING_RATE = 0.02

    @classmethod
    def check_own(cls, config: RunConfig) -> None:
        super().check_own(config)
        most = config.population // 2
        if config.top > most:
            has = f"a population of {config.population} has {most} pairs"
            raise config.refused("top", f"{has}: use at most {most}")

    def tell(self, state: State, batch: Batch) -> tuple[State, Info]:
        best = self.best_slots(batch.fitness)
        # Scaling all fitness does not change the step, and keeps its squares from overflowing.
        fitness, _ = unit_scaled(with_failures_lowest(batch.fitness)[best])
        if all_equal(fitness.ravel()):  # σ_R = 0, which std() of rounded equals may not be
            return self.stay(state)
        weights = (fitness[:, 0] - fitness[:, 1]) / (len(best) * float(fitness.std()))
        gradient = weighted_rows(batch.noise, batch.noise_indices[best], weights, self.size)
        step = (self.step_rate * gradient).astype(np.float32)
        after: State = {"parameters": self.moved(state["parameters"], step)}
        return after, self.figures(after, norm(gradient), norm(step))

    def best_slots(self, fitness: Doubles) -> Integers:
        """The slots of the ``top`` pairs with the largest max(r⁺, r⁻), ties to the lower slot, in
        slot order.
        """
        best = with_failures_lowest(fitness).max(axis=1)
        order = np.argsort(-best, kind="stable")
        return np.sort(order[: self.config.top or len(order)])
