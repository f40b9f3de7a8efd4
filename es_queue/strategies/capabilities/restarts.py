"""Auger, Hansen 2005, A restart CMA evolution strategy with increasing population size (IPOP), and
Hansen 2009, Benchmarking a BI-population CMA-ES on the BBOB-2009 function testbed (BIPOP).

https://doi.org/10.1109/CEC.2005.1554902, https://doi.org/10.1145/1570256.1570333. A descent that
has ended is followed by another from the first parameters. The population of a generation is
fixed, so a larger one is several generations: they are collected, and learnt from together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from es_queue.numerics.arrays import Doubles, Floats
from es_queue.numerics.ordered_sums import norm
from es_queue.numerics.portable import steady_exp
from es_queue.numerics.slot_plan import RESTARTS, uniform
from es_queue.strategies.base import NOT_FINITE, Batch, Info, State
from es_queue.strategies.capabilities.adaptive_sigma import LearntSigma
from es_queue.strategies.shaping import with_failures_lowest

NONE, IPOP, BIPOP = "none", "ipop", "bipop"

#: Updates in a row in which half of the individuals are as good as the best one.
FLAT_UPDATES = 3
#: Relative change of the best fitness that is none.
TOLERANCE = 1e-11
#: σ has exploded when it is so many times the first one, and vanished when it is below so much of
#: the first one and of the parameters: about what float32 resolves.
EXPLODED, VANISHED = 1e4, 1e-7
#: Newest and oldest values whose medians are compared.
COMPARED = 20
LONGEST_HISTORY = 20_000


@dataclass(frozen=True)
class Descent:
    """The state of a run's descents.

    number: of the current one, from 0; doublings: of the large population so far
    generations: learnt from together; updates: of this descent
    collected: generations that wait to be learnt from
    large, small: generations that large and small descents have taken; is_small: of this one
    """

    number: int = 0
    doublings: int = 0
    generations: int = 1
    updates: int = 0
    collected: int = 0
    large: int = 0
    small: int = 0
    is_small: int = 1

    def counted(self) -> Descent:
        name = "small" if self.is_small else "large"
        return replace(self, collected=self.collected + 1, **{name: getattr(self, name) + 1})

    def updated(self) -> Descent:
        return replace(self, updates=self.updates + 1, collected=0)

    def following(self, rule: str, seed: int) -> tuple[Descent, float]:
        """The next descent, and the factor of its first σ: twice the population; or, under BIPOP if
        small descents have taken less so far, a random population and σ between 1 and half of it.
        """
        after = replace(self, number=self.number + 1, updates=0, collected=0)
        if rule == BIPOP and self.number and self.small < self.large:
            size, deviation = (uniform(seed, RESTARTS, 2 * after.number + k) for k in range(2))
            generations = power_of(2 ** (self.doublings - 1), size * size)
            factor = power_of(100, -deviation)
            return replace(after, generations=int(max(generations, 1)), is_small=1), factor
        doublings = self.doublings + 1
        return replace(after, doublings=doublings, generations=2**doublings, is_small=0), 1.0


def power_of(base: float, exponent: float) -> float:
    """base^exponent, with the same bits on every CPU."""
    return float(steady_exp(np.array(exponent * math.log(base))))


class Restarts(LearntSigma):
    """A strategy with ``--restarts``."""

    settings: ClassVar[tuple[str, ...]] = ("restarts",)

    def start(self, parameters: Floats) -> State:
        """With restarts, also ``first``, float32 [size], the start of every descent; ``descent``;
        ``history``, float64 [2, k], best and median fitness of each update; and the collected
        generations.
        """
        state = super().start(parameters)
        if self.config.restarts == NONE:
            return state
        return {**state, "first": np.array(parameters, np.float32), **self.record(Descent())}

    def record(self, descent: Descent) -> State:
        return {
            "descent": np.array(astuple(descent), np.int64),
            "history": np.empty((2, 0)),
            **self.collected((), ()),
        }

    def collected(self, indices: Sequence[NDArray[Any]], fitness: Sequence[NDArray[Any]]) -> State:
        """The arrays of the generations that wait to be learnt from."""
        return {
            "waiting_indices": np.concatenate([np.empty(0, np.int64), *indices]),
            "waiting_fitness": np.concatenate([np.empty((0, self.per_slot)), *fitness]),
        }

    def deviation(self, state: State) -> float:
        """Root mean square distance of an individual from the centre."""
        return self.sigma(state)

    def learn(self, state: State, batch: Batch) -> tuple[State, Info]:
        """``Strategy.learn`` from all generations of an update; ends a descent."""
        if self.config.restarts == NONE or not np.isfinite(batch.fitness).any():
            return super().learn(state, batch)
        descent = Descent(*state["descent"].tolist()).counted()
        waiting = self.collected(
            (state["waiting_indices"], batch.noise_indices),
            (state["waiting_fitness"], batch.fitness),
        )
        state = {**state, "descent": np.array(astuple(descent), np.int64)}
        if descent.collected < descent.generations:
            state = {**state, **waiting}
            return state, self.figures(state, 0.0, 0.0)
        whole = replace(
            batch, noise_indices=waiting["waiting_indices"], fitness=waiting["waiting_fitness"]
        )
        return self.update(state, whole, descent.updated())

    def update(self, state: State, batch: Batch, descent: Descent) -> tuple[State, Info]:
        """An update from the whole batch; the next descent begins if this one has ended."""
        after, info = super().learn(state, batch)
        history = self.extended(state["history"], batch.fitness.ravel(), descent.updates)
        ended = info.get(NOT_FINITE) or self.is_over(after, history, batch.fitness.size)
        if not ended:
            after |= {
                "descent": np.array(astuple(descent), np.int64),
                "history": history,
                **self.collected((), ()),
            }
            return after, {**info, "descent": float(descent.number)}
        following, factor = descent.following(self.config.restarts, self.config.seed)
        begun = {**self.start(state["first"]), **self.record(following)}
        begun["sigma"] = begun["sigma"] * np.float32(factor)
        moved = norm(begun["parameters"] - state["parameters"])
        figures = self.figures(begun, info["gradient_norm"], moved)
        return begun, {**figures, "descent": float(following.number)}

    # --- when a descent is over

    def extended(self, history: Doubles, fitness: Doubles, updates: int) -> Doubles:
        """The history with an update's best and median appended; keeps a fifth of the updates, and
        at least those that ``is_over`` compares.
        """
        ordered = np.sort(with_failures_lowest(fitness))
        newest = np.array([[ordered[-1]], [ordered[len(ordered) // 2]]])
        least = 120 + 30 * self.size // len(fitness)
        kept = min(max(least, updates // 5), LONGEST_HISTORY)
        return np.concatenate([history, newest], axis=1)[:, -kept:]

    def is_over(self, state: State, history: Doubles, count: int) -> bool:
        """Whether fitness is flat or stagnates, or σ has exploded or vanished, after updates from
        ``count`` individuals.
        """
        first = self.deviation(self.start(state["first"]))
        resolved = VANISHED * max(first, norm(state["parameters"]) / math.sqrt(self.size))
        return (
            not resolved < self.deviation(state) < EXPLODED * first
            or is_flat(history)
            or is_constant(history[0], 10 + 30 * self.size // count)
            or is_stagnant(history, 120 + 30 * self.size // count)
        )


def is_flat(history: Doubles) -> bool:
    """Whether half of the individuals equalled the best, several updates in a row."""
    newest = history[:, -FLAT_UPDATES:]
    return newest.shape[1] == FLAT_UPDATES and bool((newest[0] == newest[1]).all())


def is_constant(best: Doubles, updates: int) -> bool:
    """Whether the best fitness is unchanged over that many updates."""
    newest = best[-updates:]
    change = float(newest.max() / 2 - newest.min() / 2)  # a half, so that it does not overflow
    return len(newest) == updates and 2 * change <= TOLERANCE * float(np.abs(newest).max())


def is_stagnant(history: Doubles, least: int) -> bool:
    """Whether neither the newest best nor median values beat the oldest ones, in a history of at
    least that many updates.
    """
    if history.shape[1] < least:
        return False
    middle = COMPARED // 2
    newest = np.sort(history[:, -COMPARED:], axis=1)[:, middle]
    oldest = np.sort(history[:, :COMPARED], axis=1)[:, middle]
    return bool((newest <= oldest).all())
