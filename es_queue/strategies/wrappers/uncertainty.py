"""Hansen, Niederberger, Guzzella, Koumoutsakos 2009, A method for handling uncertainty in
evolutionary optimization with an application to feedback control of combustion.

https://doi.org/10.1109/TEVC.2008.924423, section III. A few individuals of each generation are
evaluated again, on other environment seeds. If their ranks change much, the next generation plays
more episodes per individual, else fewer.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from es_queue.errors import UsageError
from es_queue.numerics.arrays import Doubles, Floats, Integers
from es_queue.strategies.base import Batch, Info, State, Strategy
from es_queue.strategies.capabilities.hooks import Reevaluates, VariesEpisodes, require_plain
from es_queue.strategies.shaping import with_failures_last

#: Names in the state: the smoothed ``rank_change``, and the episodes per individual, with a
#: fraction.
RANK_CHANGE, EPISODES = "rank_change", "episodes"
#: θ: changes up to its half quantile among those of random ranks are tolerated. The paper has 0.2;
#: pycma has 0.5.
TOLERANCE = 0.5
#: c_s, as in pycma: weight of a generation in the smoothed change.
SMOOTHING = 0.3
#: α_t: factors of the number of episodes if ranks change too much, and if they do not. The second
#: one is near 1, as in pycma, so that one generation does not undo an increase.
MORE, FEWER = 1.5, 0.9


class UncertaintyHandling(Reevaluates, VariesEpisodes, Strategy):
    """A strategy that adapts the number of episodes per individual, up to ``episodes_max``.

    A publication ends with this number, and the state has it and the smoothed change of ranks.
    """

    def start(self, parameters: Floats) -> State:
        """The first generation plays ``episodes`` per individual."""
        first = {RANK_CHANGE: np.array(0.0), EPISODES: np.array(float(self.config.episodes))}
        return {**super().start(parameters), **first}

    # --- what is published

    def published(self, state: State) -> Floats:
        """float32 [n + 1] for a strategy that publishes n floats."""
        return np.append(super().published(state), np.float32(self.episodes(state)))

    def fits(self, size: int, observations: int) -> bool:
        return super().fits(size - 1, observations)

    def ask(self, published: Floats, sigma: float, noise: Floats) -> Floats:
        return super().ask(published[:-1], sigma, noise)

    def episodes(self, state: State) -> int:
        return self._within_limits(float(state[EPISODES]))

    def published_episodes(self, published: Floats) -> int:
        return self._within_limits(float(published[-1]))

    def _within_limits(self, episodes: float) -> int:
        """A whole number from ``episodes`` to ``episodes_max``; the least for NaN."""
        return int(min(max(self.config.episodes, episodes), self.config.episodes_max))

    # --- what the master learns

    def candidates(self, state: State, batch: Batch) -> Integers:
        """The first slots, 2 and a tenth of the population. Their noise is as random as that of any
        others.
        """
        slots = len(batch.noise_indices)
        return np.arange(min(slots, 2 + slots // 10), dtype=np.int64)

    def tell(self, state: State, batch: Batch) -> tuple[State, Info]:
        """The strategy's step from the first results; then the number of episodes changes."""
        after, info = super().tell(state, batch)  # type: ignore[safe-super] # of the strategy
        measured = rank_change(batch.fitness[:, 0], batch.elite_fitness)
        smoothed, episodes = state[RANK_CHANGE], state[EPISODES]
        if measured is not None:
            smoothed = smoothed + SMOOTHING * (measured - smoothed)
            changed = episodes * (MORE if smoothed > 0 else FEWER)
            episodes = np.clip(changed, self.config.episodes, self.config.episodes_max)
        after = {**after, RANK_CHANGE: np.array(smoothed), EPISODES: np.array(episodes)}
        figures = {
            RANK_CHANGE: float(smoothed),
            "episodes_per_individual": float(self.episodes(state)),
        }
        return after, {**info, **figures}


def rank_change(first: Doubles, second: Doubles) -> float | None:
    """The paper's s: by how much ranks change when individuals are evaluated again, less what is
    tolerated. Above 0 there is too much uncertainty; None if no individual has two results.

    first: float64[λ], the fitness of all; second: float64[k], that of the first k again

    The second evaluations share their environment seeds, and the first ones may do so. Whatever
    these add to each individual is no uncertainty: the median difference is taken off.
    """
    differences = second - first[: len(second)]
    both = np.flatnonzero(np.isfinite(differences))
    if not len(both):
        return None
    old = with_failures_last(first)
    new = old.copy()
    new[both] = second[both] - np.median(differences[both])
    old_ranks, new_ranks = (ranks[both] for ranks in joint_ranks(old, new))
    changes = np.abs(new_ranks - old_ranks) - 1
    higher = (new_ranks > old_ranks).astype(np.int64)
    total = 0.0
    for change, from_rank, to_rank in zip(
        changes.tolist(),
        (old_ranks - (1 - higher)).tolist(),
        (new_ranks - higher).tolist(),
        strict=True,
    ):
        tolerated = tolerated_change(from_rank, len(old)) + tolerated_change(to_rank, len(old))
        total += 2 * change - tolerated
    return total / len(both)


def joint_ranks(old: Doubles, new: Doubles) -> tuple[Integers, Integers]:
    """The ranks from 1 of both results of each individual among all of them. Of equal results, both
    of one individual are next to each other, so that flat fitness is no uncertainty.
    """
    individuals = np.tile(np.arange(len(old)), 2)
    order = np.lexsort((individuals, np.concatenate([old, new])))
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(1, len(order) + 1)
    return ranks[: len(old)], ranks[len(old) :]


def tolerated_change(rank: int, count: int) -> float:
    """The paper's Δ^lim_θ: the θ/2 quantile of the changes of an individual of this rank to all
    ranks from 1 to 2λ − 1.
    """
    both_sides = min(rank - 1, 2 * count - 1 - rank)  # 1, 1, 2, 2, …, and then each change once

    def change(place: int) -> int:
        return (place + 1) // 2 if place <= 2 * both_sides else place - both_sides

    place = TOLERANCE / 2 * (2 * count - 2)
    below = int(place)
    return change(below) + (place - below) * (change(below + 1) - change(below))


@cache
def with_uncertainty_handling(kind: type[Strategy]) -> type[Strategy]:
    """``kind`` with uncertainty handling. Raises UsageError for a strategy that cannot have it."""
    require_plain(kind, "episodes_max")
    if kind.per_slot != 1:
        raise UsageError(
            f"episodes_max needs a strategy without pairs, and {kind.__name__} samples pairs: "
            "leave episodes_max out, or use another strategy"
        )
    facts = {"name": "", "__module__": kind.__module__}
    return type(f"Uncertain{kind.__name__}", (UncertaintyHandling, kind), facts)
