"""Emitters: how children are made of elites.

``iso_line`` is Vassiliades, Mouret 2018, Discovering the elite hypervolume by leveraging
interspecies correlation, https://arxiv.org/abs/1804.03906: x₁ + σ ε + σ_line n (x₂ − x₁), with ε
from N(0, I) and n from N(0, 1). ``gaussian`` is x₁ + σ ε, as in Mouret and Clune.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from es_queue.numerics.arrays import Floats, Integers
from es_queue.numerics.normals import directions, radii
from es_queue.numerics.slot_plan import MEMBER, PARENTS, multiply_shift, raw_words

ISO_LINE = "iso_line"
#: Bytes of the elites that are published for one generation.
MAX_PARENT_BYTES = 2**26
HEADER_FLOATS = 2
#: Numbers up to here are exact in float32.
MAX_DRAWS = 2**24


@dataclass(frozen=True)
class Parents:
    """The elites that a generation's children are made of.

    elites: float32 [k, size], distinct; draws: int64 [d], a row for each parent. The parents of
    slot s are draws 2s and 2s + 1 modulo d.
    """

    elites: Floats
    draws: Integers

    def pairs(self, slots: Integers) -> tuple[Integers, Integers]:
        """Rows of both parents of each of ``slots`` int64 [S]."""
        count = len(self.draws)
        return self.draws[2 * slots % count], self.draws[(2 * slots + 1) % count]

    def children(
        self, slots: Integers, noise: Floats, normals: Floats, sigmas: tuple[float, float]
    ) -> Floats:
        """float32 [S, size] of ``slots`` int64 [S], their ``noise`` float32 [S, size], ``normals``
        float32 [S], and σ and σ_line. A row depends only on its own slot.
        """
        first, second = self.pairs(slots)
        start, (sigma, line) = self.elites[first], np.array(sigmas, np.float32)
        children: Floats = start + sigma * noise
        if line:
            children += (line * normals)[:, np.newaxis] * (self.elites[second] - start)
        return children

    # --- on the wire, in float32

    def encode(self) -> Floats:
        """Counts of elites and draws, then the elites and the draws."""
        header = np.array([len(self.elites), len(self.draws)], np.float32)
        return np.concatenate([header, self.elites.ravel(), self.draws.astype(np.float32)])

    @classmethod
    def decode(cls, values: Floats, size: int) -> Parents:
        """The parents in ``values``, for policies of ``size`` parameters. Raises ValueError if
        invalid.
        """
        header = values[:HEADER_FLOATS]
        if len(header) < HEADER_FLOATS or not is_whole(header, 1, MAX_DRAWS):
            raise ValueError("a publication does not begin with the number of its parents")
        count, draws = header.astype(np.int64).tolist()
        rows = values[HEADER_FLOATS + count * size :]
        if len(rows) != draws or not is_whole(rows, 0, count - 1):
            raise ValueError("a publication's parents do not have their stated number")
        elites = values[HEADER_FLOATS : HEADER_FLOATS + count * size].reshape(count, size)
        return cls(elites, rows.astype(np.int64))


def is_whole(values: Floats, low: int, high: int) -> bool:
    return bool(
        ((values >= low) & (values <= high) & (np.floor(values) == values)).all()
    )  # False for NaN


def draw_count(population: int, size: int) -> int:
    """Number of parents of a generation: two for each individual, or as many as may be
    published.
    """
    return max(2, min(2 * population, MAX_PARENT_BYTES // (4 * size), MAX_DRAWS))


def draw_parents(seed: int, number: int, count: int, elites: int) -> Integers:
    """int64 [count]: uniform draws of ``elites`` rows, with replacement, in the number-th update of
    a run.
    """
    return multiply_shift(raw_words(seed, MEMBER, number, count), elites)


def line_normals(seed: int, plans: Integers) -> Floats:
    """float32 [S], standard normals of (generation, slot) ``plans`` int64 [S, 2]."""
    normals = np.empty(len(plans), np.float32)
    for generation in np.unique(plans[:, 0]).tolist():
        rows = plans[:, 0] == generation
        slots = plans[rows, 1]
        stop = int(slots.max()) + 1
        normals[rows] = generation_normals(seed, generation, 1 << (stop - 1).bit_length())[slots]
    return normals


@lru_cache(maxsize=16)
def generation_normals(seed: int, generation: int, count: int) -> Floats:
    """Those of the first slots of a generation, float32 [count]; a slot's does not depend on the
    count.
    """
    words: NDArray[np.uint64] = raw_words(seed, PARENTS, generation, count)
    bits = words.astype("<u8", copy=False).view("<i4").reshape(-1, 2)
    space = np.empty((4, count), np.float32)
    radius = radii(np.ascontiguousarray(bits[:, 0]), space).copy()
    along, _ = directions(np.ascontiguousarray(bits[:, 1]), space)
    return radius * along
