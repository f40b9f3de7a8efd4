"""Rubinstein 1999, The cross-entropy method for combinatorial and continuous optimization.

https://doi.org/10.1023/A:1010091220143, with the normal distributions and the smoothing of de Boer,
Kroese, Mannor, Rubinstein 2005, A tutorial on the cross-entropy method,
https://doi.org/10.1007/s10479-005-5724-z, section 5: mean and deviations move towards those of the
best individuals.
"""

from __future__ import annotations

import numpy as np

from es_queue.config.settings import setting
from es_queue.numerics.arrays import norm, squared_less_one, weighted_rows
from es_queue.strategies.base import Batch, Info, State, rank_finite
from es_queue.strategies.gradient import AdaptiveSigma
from es_queue.strategies.shaping import all_equal, with_failures_last


class CEM(AdaptiveSigma):
    """μ ← μ + α (μ_best − μ) and σ ← σ + α_σ (σ_best − σ) over individuals μ + σ⊙ε, where μ_best
    and σ_best are of the best share of a generation.
    """

    class Settings(AdaptiveSigma.Settings):
        elite_share = setting(
            0.25,
            "share of the individuals, the best ones, that the mean and sigma move towards",
            low=0.001,
            high=1.0,
        )
        least_sigma = setting(
            0.01,
            "no deviation becomes smaller than this share of the first",
            low=0.0,
            high=1.0,
        )

    name = "cem"
    per_slot = 1
    SIGMA = 0.3
    #: α and α_σ, the tutorial's smoothing (equation 39).
    LEARNING_RATE = 0.7

    def tell(self, state: State, batch: Batch) -> tuple[State, Info]:
        """One step of μ (``parameters``) and of σ; none if no two individuals differ."""
        fitness = batch.fitness[:, 0]
        if all_equal(with_failures_last(fitness)):
            return self.stay(state)
        count = max(2, int(self.config.elite_share * len(fitness)))
        best = np.sort(rank_finite(fitness)[:count])  # sums run in the order of slots
        rows = batch.noise, batch.noise_indices[best], np.full(len(best), 1 / len(best)), self.size
        mean = weighted_rows(*rows)
        variance = 1 + weighted_rows(*rows, squared_less_one) - np.square(mean)
        step = (self.step_rate * state["sigma"] * mean).astype(np.float32)
        given = self.config.sigma_learning_rate
        rate = (self.LEARNING_RATE if given < 0 else given) * self.pace.learning_rate
        deviation = np.sqrt(np.maximum(variance, 0.0))
        least = self.config.least_sigma * self.first_sigma * self.pace.sigma
        sigma = np.maximum(state["sigma"] * (1 + rate * (deviation - 1)), least)
        after = {
            "parameters": self.moved(state["parameters"], step),
            "sigma": sigma.astype(np.float32),
        }
        return after, self.figures(after, norm(mean), norm(step))
