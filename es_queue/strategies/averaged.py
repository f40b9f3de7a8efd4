"""Polyak, Juditsky 1992, Acceleration of stochastic approximation by averaging.

https://doi.org/10.1137/0330046. Each generation moves the centre of a search at random too; its
decaying mean moves less. The mean is evaluated and saved.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from es_queue.errors import UsageError
from es_queue.numerics.arrays import Floats
from es_queue.strategies.base import Batch, Info, State, Strategy

#: Methods of strategies whose slots or centres have a meaning of their own.
NOT_PLAIN = ("builder", "batch_slots", "centre_of", "candidates")
#: The mean's name in the state.
AVERAGE = "averaged_parameters"


class AveragedCentre(Strategy):
    """A strategy with an averaged centre. The state has the mean, float32 [size], and a publication
    begins with it: it is the publication's centre.
    """

    def start(self, parameters: Floats) -> State:
        state = super().start(parameters)
        return {**state, AVERAGE: state["parameters"].copy()}

    def published(self, state: State) -> Floats:
        return np.concatenate([state[AVERAGE], super().published(state)])

    def ask(self, published: Floats, sigma: float, noise: Floats) -> Floats:
        return super().ask(published[self.size :], sigma, noise)

    def tell(self, state: State, batch: Batch) -> tuple[State, Info]:
        """The strategy's step; then the mean keeps ``average_decay`` of itself."""
        after, info = super().tell(state, batch)  # type: ignore[safe-super] # of the strategy
        kept = np.float32(1.0 if info["no_step"] else self.config.average_decay)
        moved = kept * state[AVERAGE] + (np.float32(1) - kept) * after["parameters"]
        return {**after, AVERAGE: moved}, info


@cache
def averaged(kind: type[Strategy]) -> type[Strategy]:
    """``kind`` with an averaged centre. Raises UsageError for a strategy that cannot have one."""
    own = any(getattr(kind, name) is not getattr(Strategy, name) for name in NOT_PLAIN)
    if own or kind.reevaluates or kind.wants_behaviour:
        raise UsageError(
            f"average_decay needs a strategy whose slots are all alike, and {kind.__name__} has "
            "parents, elites or several centres: leave average_decay out, or use another strategy"
        )
    facts = {"name": "", "__module__": kind.__module__}
    return type(f"Averaged{kind.__name__}", (AveragedCentre, kind), facts)
