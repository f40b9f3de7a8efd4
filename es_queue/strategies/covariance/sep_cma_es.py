"""Ros, Hansen 2008, A simple modification in CMA-ES achieving linear time and space complexity
(sep-CMA-ES).

https://doi.org/10.1007/978-3-540-87700-4_30: CMA-ES whose covariance matrix is diagonal, so that it
learns (n + 2)/3 times faster. The weights are those of Hansen 2016.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from es_queue.numerics.arrays import Floats
from es_queue.numerics.ordered_sums import norm
from es_queue.numerics.portable import power
from es_queue.strategies.base import State
from es_queue.strategies.covariance.csa_es import CSAES, accumulate, expected_norm
from es_queue.strategies.covariance.recombination import Constants, RankedSample, constants_for


class SepCMAES(CSAES):
    """Individuals are m + σ D⊙z, and D² ← (1 − c_1 − c_μ) D² + c_1 p² + c_μ Σ w (D⊙z)²."""

    name = "sep_cma_es"
    settings: ClassVar[tuple[str, ...]] = ("active",)

    def start(self, parameters: Floats) -> State:
        """In addition to those of csa_es: ``deviations`` (D), ``covariance_path`` (p), float32
        [size], and the number of updates, ``step``.
        """
        return {
            **super().start(parameters),
            "deviations": np.ones(self.size, np.float32),
            "covariance_path": np.zeros(self.size, np.float32),
            "step": np.array(0, np.int64),
        }

    def fits(self, size: int, observations: int) -> bool:
        return size == 2 * self.size

    def shape(self, state: State) -> Floats:
        return state["deviations"]

    def apply(self, shape: Floats, vectors: Floats) -> Floats:
        return shape * vectors

    def deviation(self, state: State) -> float:
        """σ times the root mean square of D."""
        return self.sigma(state) * norm(state["deviations"]) / math.sqrt(self.size)

    def constants(self, count: int) -> Constants:
        """With the learning rates of a diagonal (section 3)."""
        return constants_for(count, self.size, self.config.active, (self.size + 2) / 3)

    def next_shape(
        self, state: State, sample: RankedSample, constants: Constants, direction: Floats
    ) -> State:
        step = int(state["step"]) + 1
        stalled = self.is_path_long(state["path"], step, constants.c_sigma)
        c_c, c_1, c_mu = constants.c_c, constants.c_1, constants.c_mu
        path = accumulate(
            state["covariance_path"], c_c, 0.0 if stalled else constants.mu_eff, direction
        )
        variances = np.square(state["deviations"], dtype=np.float64)
        kept = 1 - c_1 - c_mu * float(sample.weights.sum())
        kept += c_1 * c_c * (2 - c_c) if stalled else 0.0
        grown = variances * (kept + c_mu * sample.second_moments())
        grown += c_1 * np.square(path, dtype=np.float64)
        return {
            "deviations": np.sqrt(grown).astype(np.float32),
            "covariance_path": path,
            "step": np.array(step, np.int64),
        }

    def is_path_long(self, path: Floats, step: int, c_sigma: float) -> bool:
        """Whether s is too long for p to move (h_σ = 0): σ is far too small, and D would grow in
        its place.
        """
        length = norm(path) / math.sqrt(1 - power(1 - c_sigma, 2 * step))
        return length >= (1.4 + 2 / (self.size + 1)) * expected_norm(self.size)
