"""Strategies whose individuals are m + σ A z: each learns σ, and another shape A.

Hansen 2016, The CMA evolution strategy: a tutorial, https://arxiv.org/abs/1604.00772, and four
strategies with its constants. These adapt σ by the length of a path, and their rates follow from
the number of individuals λ and of parameters n. Another one, xNES, follows the natural gradient.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from es_queue.config.run_config import RunConfig
from es_queue.config.scaling import ScaleRule
from es_queue.config.schedules import RateFactors
from es_queue.config.settings import setting
from es_queue.errors import UsageError
from es_queue.numerics.arrays import (
    Doubles,
    Floats,
    add_outer_products,
    combine_rows,
    dot,
    norm,
    power,
    steady_exp,
    weighted_rows,
)
from es_queue.strategies.base import Batch, Info, State
from es_queue.strategies.gradient import AdaptiveSharedSigma, AveragedSettings
from es_queue.strategies.shaping import all_equal, log_rank, share_by_rank, with_failures_last

#: A matrix for so many parameters is 16 MB, which every host fetches in every generation.
MOST_PARAMETERS = 2000
#: Largest c_σ and c_c of lm_ma_es. The paper's λ/n passes it where a generation is about as large
#: as a policy.
HIGHEST_RATE = 0.5
#: Terms of xNES's exponential: at most so many, and none below this share of the matrix.
MOST_TERMS, LEAST_SHARE = 40, 2.0**-30


class ShapedSigma(AdaptiveSharedSigma):
    """Individuals m + σ A z, with A = 1. Strategies that learn A define ``shape`` and ``apply``.

    ``parameters`` are the papers' m or μ.
    """

    per_slot = 1
    #: η, the tutorial's c_m (table 1), and η_μ of xNES.
    LEARNING_RATE = 1.0

    def published(self, state: State) -> Floats:
        """m and the numbers of A, float32 [size + …]."""
        return np.concatenate([state["parameters"], self.shape(state)])

    def ask(self, published: Floats, sigma: float, noise: Floats) -> Floats:
        """m + σ A z for each row of ``noise`` [S, size], float32 [S, 1, size]."""
        steps = np.float32(sigma) * self.apply(published[self.size :], noise)
        return self.around(published, steps)

    def shape(self, state: State) -> Floats:
        """The numbers of A, float32 [n]."""
        return np.empty(0, np.float32)

    def apply(self, shape: Floats, vectors: Floats) -> Floats:
        """A z for each row of ``vectors`` [k, size], in float32."""
        return vectors


class MatrixShape(ShapedSigma):
    """A is a full matrix: ``columns`` float32 [size, size], whose row j is its column j."""

    def __init__(self, config: RunConfig, size: int, pace: RateFactors = RateFactors()) -> None:
        """Raises UsageError for more than ``MOST_PARAMETERS``."""
        super().__init__(config, size, pace)
        if size > MOST_PARAMETERS:
            raise UsageError(
                f"{config.strategy} learns a matrix and takes policies of at most "
                f"{MOST_PARAMETERS:,} parameters, but this one has {size:,}: use snes, sep_cma_es "
                "or lm_ma_es"
            )

    def start(self, parameters: Floats) -> State:
        return {**super().start(parameters), "columns": np.eye(self.size, dtype=np.float32)}

    def shape(self, state: State) -> Floats:
        return state["columns"].ravel()

    def apply(self, shape: Floats, vectors: Floats) -> Floats:
        return combine_rows(shape.reshape(self.size, self.size), vectors)


# --- the tutorial's strategies


class CSAES(ShapedSigma):
    """Hansen, Ostermeier 2001, Completely derandomized self-adaptation in evolution strategies
    (cumulative step-size adaptation), https://doi.org/10.1162/106365601750190398, section 3.

    A = 1. m ← m + η σ A⟨z⟩_w, s ← (1 − c_σ) s + √(c_σ (2 − c_σ) μ_eff) ⟨z⟩_w and
    σ ← σ exp(c_σ/d_σ (‖s‖/E‖N(0, 1)‖ − 1)) over the weighted mean ⟨z⟩_w of the better half: σ grows
    while consecutive steps point the same way. Strategies that learn A extend this class.
    """

    name = "csa_es"
    #: The learning rate stays: all rates are formulas of the population.
    scale_rules: ClassVar[Mapping[str, ScaleRule]] = {"": ScaleRule(noise=4.0)}

    def start(self, parameters: Floats) -> State:
        """Also ``path``, s."""
        return {**super().start(parameters), "path": np.zeros(self.size, np.float32)}

    def tell(self, state: State, batch: Batch) -> tuple[State, Info]:
        """A step of m, of s, of σ and of A; none if no two individuals differ."""
        fitness = batch.fitness[:, 0]
        if all_equal(with_failures_last(fitness)):
            return self.stay(state)
        constants = self.constants(len(fitness))
        weights = share_by_rank(fitness, constants.weights[::-1])  # by slot
        better = weights > 0
        mean = weighted_rows(batch.noise, batch.noise_indices[better], weights[better], self.size)
        direction = self.apply(self.shape(state), mean.astype(np.float32)[np.newaxis])[0]
        step = np.float32(self.step_rate * self.sigma(state)) * direction
        path = accumulate(state["path"], constants.c_sigma, constants.mu_eff, mean)
        exponent = constants.c_sigma / constants.damping * self.excess(path)
        after = {
            **state,
            "parameters": self.moved(state["parameters"], step),
            "sigma": state["sigma"] * np.float32(steady_exp(np.array(exponent))),
            "path": path,
        }
        after |= self.next_shape(after, batch, weights, mean)
        return after, self.figures(after, norm(direction), norm(step))

    # --- what a strategy with another shape defines as well

    def next_shape(self, state: State, batch: Batch, weights: Doubles, mean: Doubles) -> State:
        """The changed parts of A, from the weight of each slot float64 [S] and ⟨z⟩_w float64
        [size]; the other parts of ``state`` are the next ones.
        """
        return {}

    def constants(self, count: int) -> Constants:
        return constants_for(count, self.size)

    def excess(self, path: Floats) -> float:
        """How much longer s is than a path of random steps."""
        return norm(path) / expected_norm(self.size) - 1

    def bounded(self, batch: Batch, weights: Doubles) -> Doubles:
        """w°: negative weights times n/‖z‖², so that no long z makes a variance negative (equation
        46).
        """
        bounded = weights.copy()
        for slot in np.flatnonzero(bounded < 0).tolist():
            (row,) = batch.noise.views(batch.noise_indices[slot : slot + 1], 0, self.size)
            bounded[slot] *= self.size / dot(row, row)
        return bounded


class ActiveSettings(AveragedSettings):
    active = setting(
        True,
        "the covariance also learns from the worse half of a generation, by negative weights",
    )


class SepCMAES(CSAES):
    """Ros, Hansen 2008, A simple modification in CMA-ES achieving linear time and space complexity
    (sep-CMA-ES), https://doi.org/10.1007/978-3-540-87700-4_30.

    A is a diagonal D, with D² ← (1 − c_1 − c_μ) D² + c_1 p² + c_μ Σ w (D⊙z)².
    """

    Settings = ActiveSettings
    name = "sep_cma_es"

    def start(self, parameters: Floats) -> State:
        """Also ``deviations`` (D), ``covariance_path`` (p), and ``step``, the number of updates."""
        return {
            **super().start(parameters),
            "deviations": np.ones(self.size, np.float32),
            "covariance_path": np.zeros(self.size, np.float32),
            "step": np.array(0, np.int64),
        }

    def shape(self, state: State) -> Floats:
        return state["deviations"]

    def apply(self, shape: Floats, vectors: Floats) -> Floats:
        return shape * vectors

    def constants(self, count: int) -> Constants:
        """A diagonal learns (n + 2)/3 times faster (section 3)."""
        return constants_for(count, self.size, self.config.active, (self.size + 2) / 3)

    def next_shape(self, state: State, batch: Batch, weights: Doubles, mean: Doubles) -> State:
        constants, step = self.constants(len(weights)), int(state["step"]) + 1
        c_c, c_1, c_mu = constants.c_c, constants.c_1, constants.c_mu
        direction = self.apply(self.shape(state), mean.astype(np.float32))
        # h_σ = 0: s is so long that σ is far too small, and D would grow in its place.
        length = norm(state["path"]) / math.sqrt(1 - power(1 - constants.c_sigma, 2 * step))
        stalled = length >= (1.4 + 2 / (self.size + 1)) * expected_norm(self.size)
        mu_eff = 0.0 if stalled else constants.mu_eff
        path = accumulate(state["covariance_path"], c_c, mu_eff, direction)  # equation 45
        kept = 1 - c_1 - c_mu * float(weights.sum())  # equation 47
        kept += c_1 * c_c * (2 - c_c) if stalled else 0.0
        squares = weighted_rows(
            batch.noise, batch.noise_indices, self.bounded(batch, weights), self.size, np.square
        )
        grown = np.square(state["deviations"], dtype=np.float64) * (kept + c_mu * squares)
        grown += c_1 * np.square(path, dtype=np.float64)
        return {
            "deviations": np.sqrt(grown).astype(np.float32),
            "covariance_path": path,
            "step": np.array(step, np.int64),
        }


class LMMAES(CSAES):
    """Loshchilov, Glasmachers, Beyer 2018, Large scale black-box optimization by limited-memory
    matrix adaptation (LM-MA-ES), https://doi.org/10.1109/TEVC.2018.2855049, algorithm 1.

    A is a product of few factors: for j = 1, 2, …, d ← (1 − c_d,j) d + c_d,j m_j (m_jᵀ d). Each
    path m_j has its own rate of decay.
    """

    class Settings(AveragedSettings):
        directions = setting(
            0,
            "number of evolution paths that form the matrix; auto is 4 + 3 ln n for n parameters",
            low=0,
            high=1000,
            word="auto",
        )

    name = "lm_ma_es"

    @property
    def directions(self) -> int:
        return self.config.directions or 4 + int(3 * math.log(self.size))

    def start(self, parameters: Floats) -> State:
        """Also ``directions`` (m_1, m_2, …), float32 [k, size], and ``step``, the number of
        updates.
        """
        return {
            **super().start(parameters),
            "directions": np.zeros((self.directions, self.size), np.float32),
            "step": np.array(0, np.int64),
        }

    def fits(self, size: int, observations: int) -> bool:
        """A publication has up to all m_j, the first none."""
        more = size - self.first_size
        return more % self.size == 0 and 0 <= more <= self.size * self.directions

    def shape(self, state: State) -> Floats:
        """The m_j of as many factors as there were updates."""
        return state["directions"][: int(state["step"])].ravel()

    def apply(self, shape: Floats, vectors: Floats) -> Floats:
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
        return constants_for(count, self.size)._replace(c_sigma=c_sigma, damping=2.0)

    def excess(self, path: Floats) -> float:
        """σ ← σ exp(c_σ/d_σ (‖s‖²/n − 1))."""
        return dot(path, path) / self.size - 1

    def next_shape(self, state: State, batch: Batch, weights: Doubles, mean: Doubles) -> State:
        """Each m_j follows ⟨z⟩_w at its own rate."""
        mu_eff, paths = self.constants(len(weights)).mu_eff, []
        for place, path in enumerate(state["directions"]):
            rate = min(len(weights) / (power(4.0, place) * self.size), HIGHEST_RATE)
            paths.append(accumulate(path, rate, mu_eff, mean))
        return {"directions": np.stack(paths), "step": np.array(int(state["step"]) + 1, np.int64)}


class CMAES(MatrixShape, CSAES):
    """Beyer, Sendhoff 2017, Simplify your covariance matrix adaptation evolution strategy (MA-ES),
    https://doi.org/10.1109/TEVC.2017.2680320, figure 2.

    A is a full matrix M, in place of the covariance M Mᵀ and its root:
    M ← M (1 + ½c_1 (s sᵀ − 1) + ½c_μ Σ w (z zᵀ − 1)), a sum of outer products of M s and M z.
    """

    Settings = ActiveSettings
    name = "cma_es"

    def constants(self, count: int) -> Constants:
        return constants_for(count, self.size, self.config.active)

    def next_shape(self, state: State, batch: Batch, weights: Doubles, mean: Doubles) -> State:
        constants, rows = self.constants(len(weights)), batch.noise_indices
        c_1, c_mu = constants.c_1, constants.c_mu
        factors = np.concatenate([[c_1], c_mu * self.bounded(batch, weights)])
        used = np.flatnonzero(factors)
        samples = batch.noise.rows(rows, 0, self.size)
        vectors = np.concatenate([state["path"][np.newaxis], samples])[used]
        keep = 1 - (c_1 + c_mu * float(weights.sum())) / 2
        images = self.apply(self.shape(state), vectors).astype(np.float64)
        weighted = factors[used, np.newaxis] / 2 * vectors
        return {"columns": add_outer_products(state["columns"], keep, weighted, images)}


# --- the natural gradient


class XNES(MatrixShape):
    """Glasmachers, Schaul, Sun, Wierstra, Schmidhuber 2010, Exponential natural evolution
    strategies (xNES), https://doi.org/10.1145/1830483.1830557, algorithm 1.

    μ ← μ + η_μ σ B Σ u z, σ ← σ exp(½ η_σ tr(G)/n) and B ← B exp(½ η_B (G − 1 tr(G)/n)) with
    G = Σ u (z zᵀ − 1), over individuals μ + σ B z with the paper's log ranks u. The exponential of
    a matrix keeps the covariance positive definite whatever the step, so no rate has to be small
    for that.
    """

    class Settings(AveragedSettings):
        covariance_learning_rate = setting(
            -1.0,
            "step size of sigma and of the matrix; 0 keeps both fixed, auto is the paper's",
            low=-1.0,
            word="auto",
        )

    name = "xnes"

    def tell(self, state: State, batch: Batch) -> tuple[State, Info]:
        """One step of μ, of σ and of B; none if no two individuals differ."""
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


# --- the tutorial's constants


class Constants(NamedTuple):
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
    """The constants for λ = ``count`` and n = ``size``, with negative weights if ``active``;
    ``speed`` is a factor of c_1 and c_μ.
    """
    raw = np.array([math.log((count + 1) / 2) - math.log(rank) for rank in range(1, count + 1)])
    better = np.maximum(raw, 0.0)  # equation 49
    better = better / better.sum()  # equation 53
    mu_eff = 1 / float(np.square(better).sum())
    c_sigma = (mu_eff + 2) / (size + mu_eff + 5)  # equation 55
    damping = 1 + 2 * max(0.0, math.sqrt((mu_eff - 1) / (size + 1)) - 1) + c_sigma
    c_c = (4 + mu_eff / size) / (size + 4 + 2 * mu_eff / size)  # equation 56
    c_1 = min(1.0, speed * 2 / ((size + 1.3) ** 2 + mu_eff))  # equation 57
    c_mu = min(1 - c_1, speed * 2 * (mu_eff - 2 + 1 / mu_eff) / ((size + 2) ** 2 + mu_eff))  # 58
    weights = better
    if active and c_mu > 0:
        worse = np.minimum(raw, 0.0)
        total = -float(worse.sum())
        mass = total**2 / float(np.square(worse).sum())
        largest = min(  # so that the covariance stays positive definite
            1 + c_1 / c_mu,  # equation 50
            1 + 2 * mass / (mu_eff + 2),  # equation 51
            (1 - c_1 - c_mu) / (size * c_mu),  # equation 52
        )
        weights = better + worse * (largest / total)
    return Constants(weights, mu_eff, c_sigma, damping, c_c, c_1, c_mu)


def accumulate(path: Floats, rate: float, mu_eff: float, mean: NDArray[np.floating]) -> Floats:
    """(1 − c) p + √(c (2 − c) μ_eff) ⟨·⟩_w, which keeps the variance of a path of random steps
    (equations 24 and 31).
    """
    gain = math.sqrt(rate * (2 - rate) * mu_eff)
    return ((1 - rate) * path.astype(np.float64) + gain * mean).astype(np.float32)


def expected_norm(size: int) -> float:
    """E‖N(0, 1)‖ in ``size`` dimensions, as the papers approximate it."""
    return math.sqrt(size) * (1 - 1 / (4 * size) + 1 / (21 * size**2))
