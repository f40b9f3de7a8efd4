"""Evaluates the best individuals again while training continues.

All candidates and the current elite play the same fresh seeds. No worker waits for an episode:
after at most ``max_lag`` generations, they are compared by the episodes that all of them have
played.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_queue.numerics.arrays import Doubles, Integers
from es_queue.numerics.return_statistics import sum_in_order

PENDING, PLAYED, FAILED = range(3)


@dataclass(frozen=True)
class EliteEvaluation:
    """One evaluation of several individuals. Slot s is episode s mod E of contender s div E; the
    last contender is the current elite.

    generation: of the publication with the slots, -1 without a trial; names: int64[c], the
    contenders
    fitness:    float64[c + 1, E], 0 if ``status`` is not PLAYED; status: int64[c + 1, E]
    """

    generation: int
    names: Integers
    fitness: Doubles
    status: Integers

    @classmethod
    def of(cls, generation: int, names: Integers, episodes: int) -> EliteEvaluation:
        shape = (len(names) + 1, episodes)
        return cls(generation, names, np.zeros(shape), np.zeros(shape, np.int64))

    @property
    def slots(self) -> int:
        return self.status.size if self.generation >= 0 else 0

    def with_results(self, slots: Integers, values: Doubles) -> EliteEvaluation:
        """With the results ``values`` float64[k] of (generation, slot) ``slots`` int64[k, 2]; those
        of other trials do not count.
        """
        fitness, status = self.fitness.copy(), self.status.copy()
        for (generation, slot), value in zip(slots.tolist(), values.tolist(), strict=True):
            if (
                generation == self.generation
                and slot < status.size
                and status.flat[slot] == PENDING
            ):
                status.flat[slot] = PLAYED if np.isfinite(value) else FAILED
                fitness.flat[slot] = value if np.isfinite(value) else 0.0
        return replace(self, fitness=fitness, status=status)

    def is_over(self, generation: int, max_lag: int) -> bool:
        """Whether no result can arrive any more once ``generation`` has closed."""
        return self.generation >= 0 and (
            bool((self.status != PENDING).all()) or generation >= self.generation + max_lag
        )

    def means(self) -> Doubles:
        """float64[c + 1]: mean fitness over the episodes that all contenders played; NaN for one
        that failed in such an episode, or if there is none.
        """
        lost = (self.status == FAILED).any(axis=1)
        common = (self.status[~lost] == PLAYED).all(axis=0)
        means = np.full(len(self.status), np.nan)
        if common.any():
            means[~lost] = [
                sum_in_order(row[common].tolist()) / int(common.sum())
                for row in self.fitness[~lost]
            ]
        return means

    # --- in a state

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        return {
            "trial_generation": np.array(self.generation),
            "trial_name": self.names,
            "trial_fitness": self.fitness,
            "trial_seen": self.status,
        }

    @classmethod
    def from_arrays(cls, arrays: dict[str, NDArray[Any]]) -> EliteEvaluation:
        return cls(
            int(arrays["trial_generation"]),
            arrays["trial_name"],
            arrays["trial_fitness"],
            arrays["trial_seen"],
        )


NO_EVALUATION = EliteEvaluation.of(-1, np.empty(0, np.int64), 1)


def rank_finite(fitness: Doubles) -> Integers:
    """Indices of the finite values of ``fitness`` [S], largest first, ties to the earlier one."""
    order = np.argsort(-fitness, kind="stable")
    return order[np.isfinite(fitness[order])]


def elite_figure(fitness: float) -> dict[str, float]:
    """The figure of the elite's fitness on fresh episodes; none if there were no such episodes."""
    return {"elite_fitness": fitness} if np.isfinite(fitness) else {}


def best_and_centre(fitness: Doubles, count: int, centre_slot: int) -> Integers:
    """Slots of the ``count`` largest finite values of ``fitness`` [S], ties to the lower slot,
    ascending; then ``centre_slot``.
    """
    return np.append(np.sort(rank_finite(fitness)[:count]), centre_slot).astype(np.int64)


def best_reevaluated(fitness: Doubles) -> int:
    """Index of the best second result. The last one, the current elite, wins ties, then the lower
    slot; failures lose.
    """
    values = np.where(np.isfinite(fitness), fitness, -np.inf)
    last = len(values) - 1
    place = int(np.argmax(values))
    return last if values[last] == values[place] else place
