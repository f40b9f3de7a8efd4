"""Glasmachers, Schaul, Sun, Wierstra, Schmidhuber 2010, Exponential natural evolution strategies
(xNES).

https://doi.org/10.1145/1830483.1830557, algorithm 1: the natural gradient of a Gaussian with a full
covariance. Individuals are μ + σ B z. The exponential of a matrix keeps the covariance positive
definite whatever the step, so no rate has to be small for that.
"""

from __future__ import annotations

import math

import numpy as np

from es_queue.config.run_config import RunConfig
from es_queue.config.schedules import RateFactors
from es_queue.config.settings import setting
from es_queue.errors import UsageError
from es_queue.numerics.arrays import (
    Doubles,
    Floats,
    add_outer_products,
    combine_rows,
    norm,
    steady_exp,
    weighted_rows,
)
from es_queue.strategies.base import Batch, Info, State
from es_queue.strategies.covariance import MOST_PARAMETERS
from es_queue.strategies.gradient import AdaptiveSharedSigma, AveragedSettings
from es_queue.strategies.shaping import all_equal, log_rank, with_failures_last

#: Terms of the exponential's series: at most so many, and none below this share of the matrix.
MOST_TERMS, LEAST_SHARE = 40, 2.0**-30


class XNES(AdaptiveSharedSigma):
    """μ ← μ + η_μ σ B Σ u z, σ ← σ exp(½ η_σ tr(G)/n) and B ← B exp(½ η_B (G − 1 tr(G)/n)) with
    G = Σ u (z zᵀ − 1), over individuals μ + σ B z with the paper's log ranks u.
    """

    class Settings(AveragedSettings):
        covariance_learning_rate = setting(
            -1.0,
            "step size of sigma and of the matrix; 0 keeps both fixed, auto is the paper's",
            low=-1.0,
            word="auto",
        )

    name = "xnes"
    per_slot = 1
    #: η_μ (table 1).
    LEARNING_RATE = 1.0
    #: Length of the first perturbations, as in snes, in policies of any size.
    RADIUS = 1.8

    def __init__(self, config: RunConfig, size: int, pace: RateFactors = RateFactors()) -> None:
        """Raises UsageError for more than ``MOST_PARAMETERS``."""
        super().__init__(config, size, pace)
        if size > MOST_PARAMETERS:
            raise UsageError(
                f"xnes learns a matrix and takes policies of at most {MOST_PARAMETERS:,} "
                f"parameters, but this one has {size:,}: use snes, sep_cma_es or lm_ma_es"
            )

    def start(self, parameters: Floats) -> State:
        """``parameters`` (μ), ``sigma`` float32 [1], and ``columns`` float32 [size, size], whose
        row j is column j of B.
        """
        deviation = self.config.sigma or self.RADIUS / math.sqrt(self.size)
        return {
            **super().start(parameters),
            "sigma": self.first_sigma(deviation),
            "columns": np.eye(self.size, dtype=np.float32),
        }

    def published(self, state: State) -> Floats:
        """μ and B by columns, float32 [size + size²]."""
        return np.concatenate([state["parameters"], state["columns"].ravel()])

    def fits(self, size: int, observations: int) -> bool:
        return size == self.size * (1 + self.size)

    def ask(self, published: Floats, sigma: float, noise: Floats) -> Floats:
        """μ + σ B z for each row of ``noise`` [S, size], float32 [S, 1, size]."""
        columns = published[self.size :].reshape(self.size, self.size)
        return self.around(published, np.float32(sigma) * combine_rows(columns, noise))

    @property
    def step_rate(self) -> float:
        return (self.config.learning_rate or self.LEARNING_RATE) * self.pace.learning_rate

    def tell(self, state: State, batch: Batch) -> tuple[State, Info]:
        """One step of μ, of σ and of B; none when all individuals are alike."""
        fitness = batch.fitness[:, 0]
        if all_equal(with_failures_last(fitness)):
            return self.stay(state)
        utilities, columns = log_rank(fitness), state["columns"]
        mean = weighted_rows(batch.noise, batch.noise_indices, utilities, self.size)
        direction = combine_rows(columns, mean.astype(np.float32)[np.newaxis])[0]
        step = np.float32(self.step_rate * self.sigma(state)) * direction
        samples = batch.noise.rows(batch.noise_indices, 0, self.size)
        squares = np.array([norm(row) ** 2 for row in samples])
        trace = float(np.add.accumulate(utilities * (squares - self.size))[-1]) / self.size
        given, size = self.config.covariance_learning_rate, self.size
        rate = (9 + 3 * math.log(size)) / (5 * size * math.sqrt(size)) if given < 0 else given
        growth = float(steady_exp(np.array(rate / 2 * trace)))
        after = {
            "parameters": self.moved(state["parameters"], step),
            "sigma": state["sigma"] * np.float32(growth),
            "columns": times_exponential(columns, samples, rate / 2 * utilities, -rate / 2 * trace),
        }
        return after, self.figures(after, norm(direction), norm(step))


def times_exponential(columns: Floats, samples: Floats, weights: Doubles, shift: float) -> Floats:
    """B exp(Σ_k w_k (z_k z_kᵀ − 1) + shift 1) by columns, for ``samples`` z [k, n], from the
    exponential's series: float32 [n, n]. Each product with the exponent is a sum of outer products,
    in order, so every CPU computes the same bits.
    """
    shift -= float(np.add.accumulate(weights)[-1])
    total, term = columns.astype(np.float64), columns
    weighted = weights[:, np.newaxis] * samples
    for number in range(1, MOST_TERMS + 1):
        images = combine_rows(term, samples).astype(np.float64)
        term = add_outer_products(term, shift / number, weighted / number, images)
        total += term
        if np.abs(term).max() <= LEAST_SHARE * np.abs(total).max():
            break
    return total.astype(np.float32)
