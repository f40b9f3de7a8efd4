"""Beyer, Sendhoff 2017, Simplify your covariance matrix adaptation evolution strategy (MA-ES).

https://doi.org/10.1109/TEVC.2017.2680320, figure 2: CMA-ES with a full matrix M in place of the
covariance M Mᵀ and its root, so it needs only products. The weights are those of Hansen 2016,
including negative ones.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from es_queue.config.run_config import RunConfig
from es_queue.config.schedules import RateFactors
from es_queue.errors import UsageError
from es_queue.numerics.arrays import Floats
from es_queue.numerics.ordered_sums import add_outer_products, combine_rows, norm
from es_queue.strategies.base import State
from es_queue.strategies.covariance.csa_es import CSAES
from es_queue.strategies.covariance.recombination import Constants, RankedSample, constants_for

#: A matrix for so many parameters is 16 MB, which every host fetches in every generation.
MOST_PARAMETERS = 2000


class CMAES(CSAES):
    """Individuals are m + σ M z, and M ← M (1 + ½c_1 (s sᵀ − 1) + ½c_μ Σ w (z zᵀ − 1)).

    With d = M z, that is a sum of outer products of M s and M z.
    """

    name = "cma_es"
    settings: ClassVar[tuple[str, ...]] = ("active",)

    def __init__(self, config: RunConfig, size: int, pace: RateFactors = RateFactors()) -> None:
        """Raises UsageError for more than ``MOST_PARAMETERS``."""
        super().__init__(config, size, pace)
        if size > MOST_PARAMETERS:
            raise UsageError(
                f"cma_es learns a matrix and takes policies of at most {MOST_PARAMETERS:,} "
                f"parameters, but this one has {size:,}: use sep_cma_es or lm_ma_es"
            )

    def start(self, parameters: Floats) -> State:
        """In addition to those of csa_es: ``columns``, float32 [size, size], whose row j is column
        j of M.
        """
        return {**super().start(parameters), "columns": np.eye(self.size, dtype=np.float32)}

    def fits(self, size: int, observations: int) -> bool:
        return size == self.size * (1 + self.size)

    def shape(self, state: State) -> Floats:
        """M by columns, float32 [size²]."""
        return state["columns"].ravel()

    def apply(self, shape: Floats, vectors: Floats) -> Floats:
        return combine_rows(shape.reshape(self.size, self.size), vectors)

    def deviation(self, state: State) -> float:
        """σ times the root mean square length of M's rows."""
        return self.sigma(state) * norm(self.shape(state)) / math.sqrt(self.size)

    def constants(self, count: int) -> Constants:
        """Negative weights if they are active."""
        return constants_for(count, self.size, self.config.active)

    def next_shape(
        self, state: State, sample: RankedSample, constants: Constants, direction: Floats
    ) -> State:
        weights = np.concatenate([[constants.c_1], constants.c_mu * sample.bounded_weights()])
        used = np.flatnonzero(weights)
        vectors = np.concatenate([state["path"][np.newaxis], sample.rows()])[used]
        keep = 1 - (constants.c_1 + constants.c_mu * float(sample.weights.sum())) / 2
        images = self.apply(self.shape(state), vectors).astype(np.float64)
        weighted = weights[used, np.newaxis] / 2 * vectors
        return {"columns": add_outer_products(state["columns"], keep, weighted, images)}
