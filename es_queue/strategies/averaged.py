"""Polyak, Juditsky 1992, Acceleration of stochastic approximation by averaging.

https://doi.org/10.1137/0330046. The centre of the search is carried about by the noise of each
generation; a decaying mean of it is not. What is evaluated, and saved, is the mean.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from es_queue.numerics.arrays import Floats
from es_queue.strategies.base import Batch, Info, State, Strategy
from es_queue.strategies.capabilities.hooks import require_plain


class AveragedCentre(Strategy):
    """What ``averaged`` puts before a strategy. The state has ``average``, float32 [size], and so
    has a publication, behind what the strategy publishes.
    """

    def start(self, parameters: Floats) -> State:
        """The average begins at the first parameters."""
        state = super().start(parameters)
        return {**state, "average": state["parameters"].copy()}

    def published(self, state: State) -> Floats:
        """float32 [n + size] for a strategy that publishes n floats."""
        return np.concatenate([super().published(state), state["average"]])

    def fits(self, size: int, observations: int) -> bool:
        return super().fits(size - self.size, observations)

    def centre(self, published: Floats) -> Floats:
        """The average."""
        return published[-self.size :]

    def ask(self, published: Floats, sigma: float, noise: Floats) -> Floats:
        """The strategy's own individuals, around the centre of its search."""
        return super().ask(published[: -self.size], sigma, noise)

    def tell(self, state: State, batch: Batch) -> tuple[State, Info]:
        """The strategy's step; then the average keeps ``average_decay`` of itself."""
        after, info = super().tell(state, batch)  # type: ignore[safe-super] # of ``kind``
        kept = np.float32(self.config.average_decay)
        average = kept * state["average"] + (np.float32(1) - kept) * after["parameters"]
        return {**after, "average": average}, info


@cache
def averaged(kind: type[Strategy]) -> type[Strategy]:
    """``kind`` with an averaged centre. Raises UsageError for a strategy that cannot have one."""
    require_plain(kind, "average_decay")
    return type(f"Averaged{kind.__name__}", (AveragedCentre, kind), {"name": ""})
