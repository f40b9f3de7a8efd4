"""Strategies that move their mean by steps, and those that also learn their deviations: one per
parameter or one for all.
"""

from __future__ import annotations

import math
from functools import reduce
from typing import ClassVar

import numpy as np

from es_queue.numerics.arrays import Doubles, Floats, norm, weighted_rows
from es_queue.strategies.base import Batch, State, Strategy


class GradientStrategy(Strategy):
    """A strategy whose centre moves by a step, and then decays."""

    settings: ClassVar[tuple[str, ...]] = (
        "learning_rate",
        "learning_rate_schedule",
        "weight_decay",
    )

    def moved(self, parameters: Floats, step: Floats) -> Floats:
        """(1 − weight_decay)(θ + step), float32 [size]; the decay passes through no optimizer."""
        return np.float32(1 - self.config.weight_decay * self.pace.decay) * (parameters + step)


class LearntSigma(GradientStrategy):
    """A strategy whose state also has ``sigma``, float32 [n]: scheduled, and kept when settings
    change.
    """

    settings: ClassVar[tuple[str, ...]] = ("average_decay",)

    def spread(self, state: State) -> Floats:
        """The deviations, float32 [n]."""
        return state["sigma"]

    def migrate_state(self, state: State, before: Strategy) -> State:
        """The learnt σ, scaled to the root mean square that ``--set sigma`` names, else by the
        change of the schedule.
        """
        factor = self.pace.sigma / before.pace.sigma if before.pace.sigma > 0 else 1.0
        if self.config.sigma and self.config.sigma != before.config.sigma:
            now = self.sigma(state)
            factor = self.config.sigma * self.pace.sigma / now if now > 0 else 1.0
        if factor == 1.0:
            return state
        return {**state, "sigma": (state["sigma"] * factor).astype(np.float32)}


class AdaptiveSigma(LearntSigma):
    """A deviation for each parameter: ``sigma`` is float32 [size], and is published too."""

    def first_sigma(self, deviation: float) -> Floats:
        return np.full(self.size, deviation * self.pace.sigma, np.float32)

    def published(self, state: State) -> Floats:
        """The centre and the deviations, float32 [2 · size]."""
        return np.concatenate([state["parameters"], state["sigma"]])

    def fits(self, size: int, observations: int) -> bool:
        return size == 2 * self.size

    def sigma(self, state: State) -> float:
        """The root mean square of the deviations, ‖σ‖/√size; workers use the published vector, not
        this.
        """
        return norm(state["sigma"]) / math.sqrt(self.size)

    def weighted_steps(self, sigma: Floats, batch: Batch, weights: Doubles) -> Doubles:
        """Σ w σ⊙ε, float64 [size], each perturbation with its own σ."""
        noise, indices, size = batch.noise, batch.noise_indices, self.size
        parts = (
            spread * weighted_rows(noise, indices[rows], weights[rows], size)
            for rows, spread in batch.by_spread(sigma)
        )
        return reduce(np.add, parts)


class AdaptiveSharedSigma(LearntSigma):
    """One deviation for all parameters: ``sigma`` is float32 [1], and workers get it as the
    publication's sigma.
    """

    def first_sigma(self, deviation: float) -> Floats:
        return np.full(1, deviation * self.pace.sigma, np.float32)

    def sigma(self, state: State) -> float:
        return float(state["sigma"][0])
