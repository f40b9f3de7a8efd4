"""Colas, Madhavan, Huizinga, Clune 2020, Scaling MAP-Elites to deep neuroevolution (ME-ES), and
Flageat, Lim, Cully 2023, Multiple emitters evolution strategies (MEMES).

https://arxiv.org/abs/2003.01825, https://arxiv.org/abs/2303.06137. Several searches begin at elites
and take a few steps of evolution strategies, half of them towards fitness and half towards novelty.
Two things differ: a step has a fixed length in place of Adam's, and all individuals may enter the
archive, the centres by one evaluation like the others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from es_queue.numerics.arrays import Doubles, Floats, Integers
from es_queue.numerics.ordered_sums import norm, weighted_rows
from es_queue.strategies.base import Batch, State
from es_queue.strategies.map_elites.archive import Archive
from es_queue.strategies.map_elites.emitters import draw_parents
from es_queue.strategies.novelty import novelty_of
from es_queue.strategies.shaping import utilities

#: Elites whose mean distance is the novelty of a behaviour.
NEIGHBOURS = 10
#: Draws of elites have numbers beyond those of other emitters.
DRAWS = 2**40


@dataclass(frozen=True)
class Searches:
    """The searches of a generation. Slot s belongs to search s mod E of E; the first slot of each
    plays its centre, the others are perturbed.

    centres: float32 [E, size]; steps: int64 [E], steps since each began at an elite
    """

    centres: Floats
    steps: Integers

    @classmethod
    def of(cls, state: State) -> Searches:
        return cls(state["search_centres"], state["search_steps"])

    @classmethod
    def begin(cls, parameters: Floats, count: int) -> Searches:
        """All at the first parameters."""
        return cls(np.repeat(parameters[np.newaxis], count, axis=0), np.zeros(count, np.int64))

    def to_arrays(self) -> State:
        return {"search_centres": self.centres, "search_steps": self.steps}

    def after_steps(
        self, batch: Batch, archive: Archive, sigma: float, length: float
    ) -> tuple[Searches, float]:
        """With a step of each search by ``length`` · σ · √size, and the mean length of their
        gradients. Those with an even number follow fitness, the others novelty.
        """
        centres, count = self.centres.copy(), len(self.centres)
        slots, gradients = batch.plans()[:, 1], []
        for search in range(count):
            rows = np.flatnonzero((slots % count == search) & (slots >= count))
            values = batch.fitness[rows, 0]
            if search % 2:
                values = novelty_of(batch.behaviour[rows, 0], archive.behaviour, NEIGHBOURS)
            gradient = gradient_of(batch, rows, values, centres.shape[1])
            gradients.append(norm(gradient))
            if gradients[-1] > 0:
                size = length * sigma * math.sqrt(centres.shape[1]) / gradients[-1]
                centres[search] += (size * gradient).astype(np.float32)
        return Searches(centres, self.steps + 1), sum(gradients) / count

    def begun_again(self, archive: Archive, most: int, seed: int, number: int) -> Searches:
        """Searches that have taken ``most`` steps, or that have begun without an archive, begin at
        random elites, in the number-th update of a run.
        """
        over = (self.steps >= most) | (number == 0)
        if not len(archive):
            return self
        rows = draw_parents(seed, DRAWS + number, len(over), len(archive))
        elites = archive.parameters[rows]
        return Searches(
            np.where(over[:, np.newaxis], elites, self.centres), np.where(over, 0, self.steps)
        )


def searched(centres: Floats, slots: Integers, noise: Floats, sigma: float) -> Floats:
    """Individuals of ``slots`` int64 [S] with their ``noise`` float32 [S, size]: float32 [S,
    size].
    """
    count = len(centres)
    steps = np.float32(sigma) * noise
    steps[slots < count] = 0
    individuals: Floats = centres[slots % count] + steps
    return individuals


def gradient_of(batch: Batch, rows: Integers, values: Doubles, size: int) -> Doubles:
    """(1/n) Σ u ε over ``rows``, float64 [size], with u the centred ranks of ``values``."""
    if not np.isfinite(values).any():
        return np.zeros(size)
    weights = utilities("centered-rank", values) / len(rows)
    return weighted_rows(batch.noise, batch.noise_indices[rows], weights, size)
