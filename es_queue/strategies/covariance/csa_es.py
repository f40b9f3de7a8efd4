"""Hansen, Ostermeier 2001, Completely derandomized self-adaptation in evolution strategies
(cumulative step-size adaptation, CSA).

https://doi.org/10.1162/106365601750190398, sections 3 and 5.1, with the constants of Hansen 2016.
One deviation σ for all parameters: it grows while consecutive steps point the same way, and
shrinks while they cancel out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from es_queue.config.declarations import ScaleRule
from es_queue.numerics.arrays import Floats
from es_queue.numerics.ordered_sums import norm
from es_queue.numerics.portable import steady_exp
from es_queue.strategies.base import Batch, Info, State
from es_queue.strategies.covariance.recombination import (
    Constants,
    RankedSample,
    constants_for,
    rank,
)
from es_queue.strategies.gradient import AdaptiveSharedSigma


class CSAES(AdaptiveSharedSigma):
    """Individuals are m + σ A z with A = 1; strategies that learn A extend this class.

    m ← m + η σ A⟨z⟩_w, s ← (1 − c_σ) s + √(c_σ (2 − c_σ) μ_eff) ⟨z⟩_w and
    σ ← σ exp(c_σ/d_σ (‖s‖/E‖N(0, 1)‖ − 1)) over the weighted mean ⟨z⟩_w of the better half.
    """

    name = "csa_es"
    per_slot = 1
    #: The learning rate stays: all rates are formulas of the population.
    scale_rules: ClassVar[Mapping[str, ScaleRule]] = {"": ScaleRule(noise=4.0)}
    #: η, the tutorial's c_m.
    LEARNING_RATE = 1.0
    #: Length of the first perturbations, as in snes, in policies of any size.
    RADIUS = 1.8

    # --- what is published: m, then the shape A

    def start(self, parameters: Floats) -> State:
        """``parameters`` (the paper's m), ``sigma`` float32 [1] and ``path`` (s) float32 [size]."""
        deviation = self.config.sigma or self.RADIUS / math.sqrt(self.size)
        return {
            **super().start(parameters),
            "sigma": self.first_sigma(deviation),
            "path": np.zeros(self.size, np.float32),
        }

    def published(self, state: State) -> Floats:
        """m and the numbers of A, float32 [size + …]."""
        return np.concatenate([state["parameters"], self.shape(state)])

    def shape(self, state: State) -> Floats:
        """The numbers of A, float32 [n]."""
        return np.empty(0, np.float32)

    def apply(self, shape: Floats, vectors: Floats) -> Floats:
        """A z for each row of ``vectors`` [k, size], in float32."""
        return vectors

    def ask(self, published: Floats, sigma: float, noise: Floats) -> Floats:
        """m + σ A z for each row of ``noise`` [S, size], float32 [S, 1, size]."""
        steps = np.float32(sigma) * self.apply(published[self.size :], noise)
        individuals: Floats = self.centre(published) + steps
        return individuals[:, np.newaxis]

    # --- what the master learns

    def constants(self, count: int) -> Constants:
        return constants_for(count, self.size)

    def tell(self, state: State, batch: Batch) -> tuple[State, Info]:
        """A step of m, of s, of σ and of A; none when all individuals are alike."""
        constants = self.constants(len(batch.fitness))
        sample = rank(batch.noise, batch.noise_indices, batch.fitness[:, 0], self.size, constants)
        if sample is None:
            return self.stay(state)
        mean = sample.mean()
        direction = self.apply(self.shape(state), mean.astype(np.float32)[np.newaxis])[0]
        rate = (self.config.learning_rate or self.LEARNING_RATE) * self.pace.learning_rate
        step = np.float32(rate * self.sigma(state)) * direction
        path = accumulate(state["path"], constants.c_sigma, constants.mu_eff, mean)
        after = {
            **state,
            "parameters": self.moved(state["parameters"], step),
            "sigma": state["sigma"] * self.sigma_factor(path, constants),
            "path": path,
        }
        after |= self.next_shape(after, sample, constants, direction)
        return after, self.figures(after, norm(direction), norm(step))

    def sigma_factor(self, path: Floats, constants: Constants) -> np.float32:
        """exp(c_σ/d_σ (‖s‖/E‖N(0, 1)‖ − 1))."""
        excess = norm(path) / expected_norm(self.size) - 1
        return np.float32(steady_exp(np.array(constants.c_sigma / constants.damping * excess)))

    def next_shape(
        self, state: State, sample: RankedSample, constants: Constants, direction: Floats
    ) -> State:
        """The changed parts of A, given A⟨z⟩_w and the state whose other parts are the next
        ones.
        """
        return {}


def accumulate(path: Floats, rate: float, mu_eff: float, mean: NDArray[np.floating]) -> Floats:
    """(1 − c) p + √(c (2 − c) μ_eff) ⟨·⟩_w, which keeps the variance of a path of random steps."""
    gain = math.sqrt(rate * (2 - rate) * mu_eff)
    return ((1 - rate) * path.astype(np.float64) + gain * mean).astype(np.float32)


def expected_norm(size: int) -> float:
    """E‖N(0, 1)‖ in ``size`` dimensions, as the papers approximate it."""
    return math.sqrt(size) * (1 - 1 / (4 * size) + 1 / (21 * size**2))
