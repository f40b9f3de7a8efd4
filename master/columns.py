"""Results of slots as arrays, and what can be had of a generation's first slots while its last ones are awaited.

All sums run in slot order, so nothing here depends on how many slots were gathered when.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_queue.figures import Figures
from es_queue.normalization import RunningMoments
from es_queue.protocol.messages import SlotResult

Slots = Sequence[SlotResult | None]

#: Fewer slots are not worth the arrays that are made of them.
WORTH = 64
#: Bytes of the means that are copied into one array at once.
PIECE_BYTES = 2**20


@dataclass(frozen=True)
class Columns:
    """Slots [S] of ``individuals`` each, in slot order. One that failed everywhere is not ``there``: NaN for its scores, else 0.

    noise_indices: int64 [S]; fitness, returns: float64 [S, individuals]; steps, cut: int64 [S, individuals]
    """

    there: NDArray[np.bool_]
    noise_indices: NDArray[np.int64]
    fitness: NDArray[np.float64]
    returns: NDArray[np.float64]
    steps: NDArray[np.int64]
    cut: NDArray[np.int64]

    @classmethod
    def of(cls, slots: Slots) -> Columns:
        """All of them have as many individuals as the first; where all failed, one."""
        found = [one for one in slots if one is not None]
        there = np.array([one is not None for one in slots], np.bool_) if len(found) < len(slots) else np.ones(len(slots), np.bool_)

        def column(name: str, nothing: float, dtype: type) -> NDArray[Any]:
            each = len(found[0].fitness) if found else 1
            values: NDArray[Any] = np.fromiter(chain.from_iterable(map(attrgetter(name), found)), dtype, each * len(found)).reshape(-1, each)
            return spread(values, there, nothing)

        indices = spread(np.fromiter(map(attrgetter("noise_index"), found), np.int64, len(found)), there, 0)
        nan = float("nan")
        return cls(there, indices, column("fitness", nan, float), column("returns", nan, float), column("steps", 0, np.int64), column("cut", 0, np.int64))

    @classmethod
    def joined(cls, parts: Sequence[Columns]) -> Columns:
        """The slots of all parts, one after the other; each part has slots that did not fail, or there is one alone."""
        names = ("there", "noise_indices", "fitness", "returns", "steps", "cut")
        return cls(*(np.concatenate([getattr(one, name) for one in parts]) for name in names))

    def __len__(self) -> int:
        return len(self.there)

    @property
    def individuals(self) -> int:
        """How many have played: failed slots have none."""
        each: int = self.fitness.shape[1]
        return int(self.there.sum()) * each

    @property
    def total_steps(self) -> int:
        return int(self.steps.sum())

    def scores(self, name: str) -> NDArray[np.float64]:
        """``fitness`` or ``returns`` of all who have played, in slot order, float64 [individuals]."""
        found: NDArray[np.float64] = getattr(self, name)[self.there].ravel()
        return found


def spread(values: NDArray[Any], there: NDArray[np.bool_], nothing: float) -> NDArray[Any]:
    """``values`` in the places that are ``there``, ``nothing`` in the others."""
    if len(values) == len(there):
        return values
    whole = np.full((len(there), *values.shape[1:]), nothing, values.dtype)
    whole[there] = values
    return whole


def figures_in_order(values: NDArray[np.float64]) -> Figures | None:
    """``figures_of`` for float64 [k], to the bit: sums run left to right, squares are the mathematical library's."""
    if not len(values):
        return None
    with np.errstate(all="ignore"):
        mean = sum_of(values) / len(values)
        deviations = (values - mean).tolist()
    try:
        std = math.sqrt(sum_of(np.array([one**2 for one in deviations])) / len(values))
    except OverflowError:
        std = math.inf
    listed = values.tolist()
    return Figures(mean, std, min(listed), max(listed), len(listed))


def sum_of(values: NDArray[np.float64]) -> float:
    """Left to right from 0, in float64."""
    with np.errstate(all="ignore"):  # as Python's own, which says nothing
        return float(np.add.accumulate(np.concatenate([np.zeros(1), values]))[-1])


def merged(moments: RunningMoments, slots: Slots) -> RunningMoments:
    """``moments`` with those of all episodes of the slots, one by one in slot order: another grouping would give other bits."""
    episodes = [episode for one in slots if one is not None for episode in one.moments]
    piece = max(1, PIECE_BYTES // max(1, len(episodes[0].mean))) if episodes else 1
    for start in range(0, len(episodes), piece):
        some = episodes[start : start + piece]
        means, m2s = (np.frombuffer(b"".join(map(attrgetter(name), some)), "<f8").reshape(len(some), -1) for name in ("mean", "m2"))
        moments = moments.merged([one.count for one in some], means, m2s)
    return moments


class Gathered:
    """The first slots of a generation, up to the first that has no result yet; closing has only the rest to do.

    base: the statistics at the generation's beginning; moments: with the slots so far; slots: those, in order; most: the
    slots that are learnt from whatever comes, beyond which nothing is gathered
    """

    def __init__(self, base: RunningMoments, most: int) -> None:
        self.base, self.most = base, most
        self.moments, self.slots = self.base, list[SlotResult]()
        self._parts: list[Columns] = []

    def gather(self, results: Mapping[int, SlotResult], stop: int) -> None:
        """Take the slots up to ``stop`` or to the first without a result, where they are worth it."""
        start, stop = len(self.slots), min(stop, self.most)
        if stop - start < WORTH:
            return
        fresh: list[SlotResult] = []
        for slot in range(start, stop):
            one = results.get(slot)
            if one is None:  # it counts as failed, but somebody may answer it yet
                break
            fresh.append(one)
        if len(fresh) >= WORTH:
            self.moments = merged(self.moments, fresh)
            self._parts.append(Columns.of(fresh))
            self.slots += fresh

    def columns(self, counted: Slots) -> Columns:
        """Of all counted slots, whose first ones were gathered."""
        rest = counted[len(self.slots) :]
        parts = [*self._parts, Columns.of(rest)] if rest else self._parts
        return joined(parts, counted)

    def all_moments(self, counted: Slots) -> RunningMoments:
        """Of all counted slots."""
        return merged(self.moments, counted[len(self.slots) :])


def joined(parts: Sequence[Columns], counted: Slots) -> Columns:
    """The parts as one; of slots in which nobody played a part does not know how many individuals they have."""
    if len(parts) == 1:
        return parts[0]
    if not parts or any(not one.there.any() for one in parts):
        return Columns.of(counted)
    return Columns.joined(parts)


