"""Random search, the baseline: Such et al. 2017, Deep neuroevolution (random search is the control
in its section 3.3).

https://arxiv.org/abs/1712.06567. Each generation tries policies around the first one, independent
of former generations. The best few are played again on fresh episodes, as in that paper's genetic
algorithm.
"""

from __future__ import annotations

import numpy as np

from es_queue.numerics.arrays import Floats, norm
from es_queue.strategies.base import (
    Batch,
    Info,
    ReevaluationSettings,
    State,
    Strategy,
    best_reevaluated,
)


class RandomSearch(Strategy):
    """Individuals are first + σ ε. The elite is the best on fresh episodes, among itself and the
    individuals with the best first results.

    The best first result is usually a lucky one, so it makes no elite by itself, and the elite
    keeps no score.
    """

    Settings = ReevaluationSettings
    name = "random_search"
    per_slot = 1
    reevaluates = True
    #: Some tens of normalised inputs of a unit then add up to about 1.
    SIGMA = 0.2

    # --- what is published: the elite, then the first parameters

    def start(self, parameters: Floats) -> State:
        """``parameters``, the elite, and ``first``, the first parameters."""
        return {**super().start(parameters), "first": np.array(parameters, np.float32)}

    def published(self, state: State) -> Floats:
        return np.concatenate([state["parameters"], state["first"]])

    def digest_input(self, state: State, published: Floats) -> Floats:
        return self.centre(published)

    def ask(self, published: Floats, sigma: float, noise: Floats) -> Floats:
        """first + σε."""
        return self.around(published[self.size :], np.float32(sigma) * noise)

    # --- what the master learns

    def tell(self, state: State, batch: Batch) -> tuple[State, Info]:
        """The best on the fresh episodes becomes the elite; the current one wins ties."""
        place, elite = best_reevaluated(batch.elite_fitness), state["parameters"]
        slot = int(self.candidates(state, batch)[place])
        is_unchanged = slot == self.centre_slot
        if not is_unchanged:
            noise = batch.noise.rows(batch.noise_indices[[slot]], 0, self.size)
            elite = self.ask(self.published(state), self.sigma(state), noise)[0, 0]
        after, moved = {**state, "parameters": elite}, norm(elite - state["parameters"])
        figures = self.figures(after, 0.0, moved, no_step=is_unchanged)
        if np.isfinite(batch.elite_fitness[place]):
            figures["elite_fitness"] = float(batch.elite_fitness[place])
        return after, figures
