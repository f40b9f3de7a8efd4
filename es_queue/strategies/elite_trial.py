"""Evaluating the best again while training goes on: whose episodes are wanted, which are there, who did best on them.

All contenders play the same fresh seeds, and so does the standing elite. Nobody waits for an episode: after the
generations that an answer may be late, those compare that all of them have played.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_queue.figures import sum_in_order

OWED, PLAYED, FAILED = range(3)


@dataclass(frozen=True)
class Trial:
    """One evaluation of several individuals; slot s of it is episode s mod E of contender s div E, the last is the standing elite.

    generation: of the publication whose slots they are, -1 when there is no trial; name: int64[c], the contenders
    fitness: float64[c + 1, E], 0 where ``seen`` is not PLAYED; seen: int64[c + 1, E]
    """

    generation: int
    name: NDArray[np.int64]
    fitness: NDArray[np.float64]
    seen: NDArray[np.int64]

    @classmethod
    def of(cls, generation: int, name: NDArray[np.int64], episodes: int) -> Trial:
        """A trial that begins."""
        shape = (len(name) + 1, episodes)
        return cls(generation, name, np.zeros(shape), np.zeros(shape, np.int64))

    @property
    def slots(self) -> int:
        return self.seen.size if self.generation >= 0 else 0

    def heard(self, tried: NDArray[np.int64], again: NDArray[np.float64]) -> Trial:
        """With the results ``again`` float64[k] of (generation, slot) ``tried`` int64[k, 2], each once; those of other trials do not count."""
        fitness, seen = self.fitness.copy(), self.seen.copy()
        for (generation, slot), value in zip(tried.tolist(), again.tolist(), strict=True):
            if generation == self.generation and slot < seen.size and seen.flat[slot] == OWED:
                seen.flat[slot] = PLAYED if np.isfinite(value) else FAILED
                fitness.flat[slot] = value if np.isfinite(value) else 0.0
        return replace(self, fitness=fitness, seen=seen)

    def over(self, generation: int, max_lag: int) -> bool:
        """Whether nothing more can come of it once ``generation`` has closed."""
        return self.generation >= 0 and (bool((self.seen != OWED).all()) or generation >= self.generation + max_lag)

    def means(self) -> NDArray[np.float64]:
        """float64[c + 1]: mean fitness in the episodes that all have played; NaN for who failed in one, or where there are none."""
        lost = (self.seen == FAILED).any(axis=1)
        common = (self.seen[~lost] == PLAYED).all(axis=0)
        means = np.full(len(self.seen), np.nan)
        if common.any():
            means[~lost] = [sum_in_order(row[common].tolist()) / int(common.sum()) for row in self.fitness[~lost]]
        return means

    # --- in a state

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        return {"trial_generation": np.array(self.generation), "trial_name": self.name, "trial_fitness": self.fitness, "trial_seen": self.seen}

    @classmethod
    def from_arrays(cls, arrays: dict[str, NDArray[Any]]) -> Trial:
        return cls(int(arrays["trial_generation"]), arrays["trial_name"], arrays["trial_fitness"], arrays["trial_seen"])


NO_TRIAL = Trial.of(-1, np.empty(0, np.int64), 1)
