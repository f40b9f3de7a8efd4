"""Loshchilov, Glasmachers, Beyer 2018, Large scale black-box optimization by limited-memory matrix
adaptation (LM-MA-ES).

https://doi.org/10.1109/TEVC.2018.2855049, algorithm 1: the matrix of MA-ES as a product of a few
factors 1 + c_d (m mᵀ − 1). Each factor has a path m with its own rate of decay.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar

import numpy as np

from es_queue.numerics.arrays import Floats
from es_queue.numerics.ordered_sums import dot
from es_queue.numerics.portable import power, steady_exp
from es_queue.strategies.base import State
from es_queue.strategies.covariance.csa_es import CSAES, accumulate
from es_queue.strategies.covariance.recombination import Constants, RankedSample, constants_for

#: Largest c_σ and c_c. The paper's λ/n passes it where a generation is about as large as a policy.
HIGHEST_RATE = 0.5


class LMMAES(CSAES):
    """Individuals are m + σ P z: for j = 1, 2, …, d ← (1 − c_d,j) d + c_d,j m_j (m_jᵀ d)."""

    name = "lm_ma_es"
    settings: ClassVar[tuple[str, ...]] = ("directions",)

    @property
    def directions(self) -> int:
        return self.config.directions or 4 + int(3 * math.log(self.size))

    def start(self, parameters: Floats) -> State:
        """In addition to those of csa_es: ``directions`` (m_1, m_2, …), float32 [k, size], and the
        number of updates, ``step``.
        """
        return {
            **super().start(parameters),
            "directions": np.zeros((self.directions, self.size), np.float32),
            "step": np.array(0, np.int64),
        }

    def fits(self, size: int, observations: int) -> bool:
        """The policy's size, and that of up to all m_j."""
        return size % self.size == 0 and self.size <= size <= self.size * (1 + self.directions)

    def shape(self, state: State) -> Floats:
        """The m_j of as many factors as there were updates, float32 [j · size]."""
        return state["directions"][: int(state["step"])].ravel()

    def apply(self, shape: Floats, vectors: Floats) -> Floats:
        """P z, factor by factor."""
        applied = np.array(vectors, np.float32)
        for row in applied:
            for place, direction in enumerate(shape.reshape(-1, self.size)):
                rate = 1 / (power(1.5, place) * self.size)
                projected = np.float32(rate * dot(direction, row)) * direction
                np.add(np.float32(1 - rate) * row, projected, out=row)
        return applied

    def constants(self, count: int) -> Constants:
        """Those of the paper's section III, positive weights only."""
        c_sigma = min(2 * count / self.size, HIGHEST_RATE)
        return replace(constants_for(count, self.size), c_sigma=c_sigma, damping=2.0)

    def sigma_factor(self, path: Floats, constants: Constants) -> np.float32:
        """exp(c_σ/d_σ (‖s‖²/n − 1))."""
        excess = dot(path, path) / self.size - 1
        return np.float32(steady_exp(np.array(constants.c_sigma / constants.damping * excess)))

    def next_shape(
        self, state: State, sample: RankedSample, constants: Constants, direction: Floats
    ) -> State:
        """Each m_j follows ⟨z⟩_w at its own rate."""
        mean, count = sample.mean(), len(sample.weights)
        rates = [
            min(count / (power(4.0, place) * self.size), HIGHEST_RATE)
            for place in range(self.directions)
        ]
        paths = zip(state["directions"], rates, strict=True)
        return {
            "directions": np.stack(
                [accumulate(path, rate, constants.mu_eff, mean) for path, rate in paths]
            ),
            "step": np.array(int(state["step"]) + 1, np.int64),
        }
