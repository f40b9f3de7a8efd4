"""Hansen 2016, The CMA evolution strategy: a tutorial (weights and learning rates, table 1).

https://arxiv.org/abs/1604.00772. All follow from the number of individuals λ and of parameters n.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from es_queue.numerics.arrays import Doubles, Floats, Integers
from es_queue.numerics.ordered_sums import NoiseRows, dot, weighted_rows
from es_queue.strategies.shaping import all_equal, share_by_rank, with_failures_last


@dataclass(frozen=True)
class Constants:
    """Weights and rates of an update with λ individuals.

    weights: float64 [λ], best first; the better half sums to 1, the others are negative, or 0 if
    not active
    mu_eff: μ_eff, the variance effective selection mass
    c_sigma, damping: c_σ and d_σ of the step size; c_c: of the covariance's path
    c_1, c_mu: of the covariance's rank-one and rank-μ updates
    """

    weights: Doubles
    mu_eff: float
    c_sigma: float
    damping: float
    c_c: float
    c_1: float
    c_mu: float


@lru_cache(maxsize=8)
def constants_for(count: int, size: int, active: bool = False, speed: float = 1.0) -> Constants:
    """The constants for λ = ``count`` and n = ``size``.

    active: with negative weights; speed: factor of c_1 and c_μ (see ``sep_cma_es``)
    """
    raw = np.array([math.log((count + 1) / 2) - math.log(rank) for rank in range(1, count + 1)])
    better = np.maximum(raw, 0.0)
    better = better / better.sum()
    mu_eff = 1 / float(np.square(better).sum())
    c_sigma = (mu_eff + 2) / (size + mu_eff + 5)
    c_1 = min(1.0, speed * 2 / ((size + 1.3) ** 2 + mu_eff))
    c_mu = min(1 - c_1, speed * 2 * (mu_eff - 2 + 1 / mu_eff) / ((size + 2) ** 2 + mu_eff))
    positive = Constants(
        weights=better,
        mu_eff=mu_eff,
        c_sigma=c_sigma,
        damping=1 + 2 * max(0.0, math.sqrt((mu_eff - 1) / (size + 1)) - 1) + c_sigma,
        c_c=(4 + mu_eff / size) / (size + 4 + 2 * mu_eff / size),
        c_1=c_1,
        c_mu=c_mu,
    )
    if not active or c_mu <= 0:
        return positive
    return replace(
        positive, weights=better + negative_weights(np.minimum(raw, 0.0), size, positive)
    )


def negative_weights(raw: Doubles, size: int, positive: Constants) -> Doubles:
    """``raw`` scaled so that the covariance stays positive definite (equations 50 to 53)."""
    total = -float(raw.sum())
    mass = total**2 / float(np.square(raw).sum())
    largest = min(
        1 + positive.c_1 / positive.c_mu,
        1 + 2 * mass / (positive.mu_eff + 2),
        (1 - positive.c_1 - positive.c_mu) / (size * positive.c_mu),
    )
    return raw * (largest / total)


@dataclass(frozen=True)
class RankedSample:
    """The individuals of an update, in slot order: z_k is the noise at ``indices[k]``.

    weights: float64 [λ], by rank; equal individuals share their mean
    """

    noise: NoiseRows
    indices: Integers
    weights: Doubles
    size: int

    def mean(self) -> Doubles:
        """⟨z⟩_w = Σ w z over the better half, float64 [size]."""
        better = self.weights > 0
        return weighted_rows(self.noise, self.indices[better], self.weights[better], self.size)

    def second_moments(self) -> Doubles:
        """Σ w° z² of each parameter, float64 [size]."""
        weights = self.bounded_weights()
        return weighted_rows(self.noise, self.indices, weights, self.size, np.square)

    def rows(self) -> Floats:
        """z of each individual, float32 [λ, size]."""
        return self.noise.rows(self.indices, 0, self.size)

    def bounded_weights(self) -> Doubles:
        """w°: negative weights times n/‖z‖², so that no long z makes a variance negative (equation
        46).
        """
        bounded = self.weights.copy()
        for place in np.flatnonzero(bounded < 0).tolist():
            (row,) = self.noise.views(self.indices[place : place + 1], 0, self.size)
            bounded[place] *= self.size / dot(row, row)
        return bounded


def rank(
    noise: NoiseRows, indices: Integers, fitness: Doubles, size: int, constants: Constants
) -> RankedSample | None:
    """The individuals with their weights; None when all are alike."""
    if all_equal(with_failures_last(fitness)):
        return None
    weights = share_by_rank(fitness, constants.weights[::-1])
    return RankedSample(noise, indices, weights, size)
