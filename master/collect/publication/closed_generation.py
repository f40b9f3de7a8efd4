"""A closed generation: its results as arrays, and the slots that it learns from.

Sums run in slot order, so the bits do not depend on when slots were gathered.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_queue.numerics.arrays import Doubles, Floats, Integers, Mask
from es_queue.numerics.normalization import RunningMoments
from es_queue.numerics.return_statistics import ReturnStatistics
from es_queue.protocol.messages import SlotResult, publication_generation

Slots = Sequence[SlotResult | None]

#: Fewer slots are not worth the arrays that are made of them.
LEAST_SLOTS = 64
#: Bytes of the means that are copied into one array at once.
CHUNK_BYTES = 2**20


@dataclass(frozen=True)
class ResultArrays:
    """Slots [S] of ``individuals`` each, in slot order. A slot that failed everywhere is not
    ``valid``: its scores are NaN, its other values 0.

    noise_indices: int64 [S]; fitness, returns: float64 [S, individuals]; steps, cut: int64 [S,
    individuals]
    """

    valid: Mask
    noise_indices: Integers
    fitness: Doubles
    returns: Doubles
    steps: Integers
    cut: Integers

    @classmethod
    def from_results(cls, slots: Slots) -> ResultArrays:
        """Results have equal numbers of individuals; one if all failed."""
        results = [result for result in slots if result is not None]
        valid = (
            np.array([result is not None for result in slots], np.bool_)
            if len(results) < len(slots)
            else np.ones(len(slots), np.bool_)
        )

        def column(name: str, fill: float, dtype: type) -> NDArray[Any]:
            each = len(results[0].fitness) if results else 1
            values: NDArray[Any] = np.fromiter(
                chain.from_iterable(map(attrgetter(name), results)), dtype, each * len(results)
            ).reshape(-1, each)
            return fill_missing(values, valid, fill)

        indices = fill_missing(
            np.fromiter(map(attrgetter("noise_index"), results), np.int64, len(results)), valid, 0
        )
        nan = float("nan")
        return cls(
            valid,
            indices,
            column("fitness", nan, float),
            column("returns", nan, float),
            column("steps", 0, np.int64),
            column("cut", 0, np.int64),
        )

    @classmethod
    def concatenate(cls, parts: Sequence[ResultArrays]) -> ResultArrays:
        """The slots of all parts in turn. Each part has a slot that did not fail, unless it is the
        only part.
        """
        names = ("valid", "noise_indices", "fitness", "returns", "steps", "cut")
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))

    def __len__(self) -> int:
        return len(self.valid)

    @property
    def individuals(self) -> int:
        """Number of individuals that played; failed slots have none."""
        each: int = self.fitness.shape[1]
        return int(self.valid.sum()) * each

    @property
    def total_steps(self) -> int:
        return int(self.steps.sum())

    def scores(self, name: str) -> Doubles:
        """``fitness`` or ``returns`` of all individuals with a result, in slot order, float64
        [individuals].
        """
        scores: Doubles = getattr(self, name)[self.valid].ravel()
        return scores


def fill_missing(values: NDArray[Any], valid: Mask, fill: float) -> NDArray[Any]:
    if len(values) == len(valid):
        return values
    whole = np.full((len(valid), *values.shape[1:]), fill, values.dtype)
    whole[valid] = values
    return whole


def ordered_statistics(values: Doubles) -> ReturnStatistics | None:
    """``return_statistics`` for float64 [k], to the bit: sums run left to right, with the math
    library's squares.
    """
    if not len(values):
        return None
    with np.errstate(all="ignore"):
        mean = ordered_sum(values) / len(values)
        deviations = (values - mean).tolist()
    try:
        std = math.sqrt(
            ordered_sum(np.array([deviation**2 for deviation in deviations])) / len(values)
        )
    except OverflowError:
        std = math.inf
    listed = values.tolist()
    return ReturnStatistics(mean, std, min(listed), max(listed), len(listed))


def ordered_sum(values: Doubles) -> float:
    """Left to right from 0, in float64."""
    with np.errstate(all="ignore"):  # as Python's own, which says nothing
        return float(np.add.accumulate(np.concatenate([np.zeros(1), values]))[-1])


def merge_moments(moments: RunningMoments, slots: Slots) -> RunningMoments:
    """``moments`` with those of all episodes of the slots, one by one in slot order, because
    another grouping would give other bits.
    """
    episodes = [episode for result in slots if result is not None for episode in result.moments]
    chunk_size = max(1, CHUNK_BYTES // max(1, len(episodes[0].mean))) if episodes else 1
    for start in range(0, len(episodes), chunk_size):
        chunk = episodes[start : start + chunk_size]
        means, m2s = (
            np.frombuffer(b"".join(map(attrgetter(name), chunk)), "<f8").reshape(len(chunk), -1)
            for name in ("mean", "m2")
        )
        moments = moments.merge_many([moment.count for moment in chunk], means, m2s)
    return moments


class PrefixAccumulator:
    """The first slots of a generation, up to the first without a result, accumulated early.

    base: the statistics at the generation's beginning; moments: including the slots so far; slots:
    those, in order; most: slots that will certainly be learnt from, the limit of this work
    """

    def __init__(self, base: RunningMoments, most: int) -> None:
        self.base, self.most = base, most
        self.moments, self.slots = self.base, list[SlotResult]()
        self._parts: list[ResultArrays] = []

    def extend(self, results: Mapping[int, SlotResult], stop: int) -> None:
        """Take the slots up to ``stop`` or to the first without a result, if worthwhile."""
        start, stop = len(self.slots), min(stop, self.most)
        if stop - start < LEAST_SLOTS:
            return
        new_results: list[SlotResult] = []
        for slot in range(start, stop):
            result = results.get(slot)
            if result is None:  # it counts as failed, but somebody may answer it yet
                break
            new_results.append(result)
        if len(new_results) >= LEAST_SLOTS:
            self.moments = merge_moments(self.moments, new_results)
            self._parts.append(ResultArrays.from_results(new_results))
            self.slots += new_results

    def to_arrays(self, counted: Slots) -> ResultArrays:
        """All counted slots as arrays; the first ones are already gathered."""
        rest = counted[len(self.slots) :]
        parts = [*self._parts, ResultArrays.from_results(rest)] if rest else self._parts
        return join_arrays(parts, counted)

    def all_moments(self, counted: Slots) -> RunningMoments:
        return merge_moments(self.moments, counted[len(self.slots) :])


def join_arrays(parts: Sequence[ResultArrays], counted: Slots) -> ResultArrays:
    """The parts joined. A part in which all slots failed does not know its number of
    individuals.
    """
    if len(parts) == 1:
        return parts[0]
    if not parts or any(not part.valid.any() for part in parts):
        return ResultArrays.from_results(counted)
    return ResultArrays.concatenate(parts)


@dataclass(frozen=True)
class OpenPublication:
    """A replaced publication whose results still count (--schedule async).

    step_limit: of its training episodes; spread: of its perturbations
    counted: int64 [R, 2], ranges (start, stop) of the training slots that have been learnt from
    """

    publication: str
    step_limit: int
    spread: Floats
    counted: Integers

    @property
    def generation(self) -> int:
        return publication_generation(self.publication)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        return {
            f"open.{self.publication}.{name}": getattr(self, name) for name in ("spread", "counted")
        }

    @classmethod
    def from_checkpoint(
        cls, arrays: Mapping[str, NDArray[Any]], publication: str, step_limit: int
    ) -> OpenPublication:
        spread, counted = (arrays[f"open.{publication}.{name}"] for name in ("spread", "counted"))
        if counted.ndim != 2 or counted.shape[1] != 2:
            raise ValueError("the counted slots are not ranges")
        return cls(
            publication, int(step_limit), spread.astype(np.float32), counted.astype(np.int64)
        )


@dataclass(frozen=True)
class PublicationSlice:
    """Slots of one publication in an asynchronous batch, ascending. spread: of its
    perturbations.
    """

    publication: str
    slots: Integers
    spread: Floats


#: (publication, its slots ascending).
ReevaluatedSlots = Sequence[tuple[str, Integers]]


@dataclass(frozen=True)
class ClosedGeneration:
    """A closed generation: counted training slots, surplus ones, repeated evaluations, measured
    centres, and evaluations.

    In the asynchronous schedule ``counted`` is the batch; used: its slots by publication, in order;
    evaluated: the slots of ``evaluation``; tried: publication and slots of ``reevaluations``; open:
    publications that stay open. prefix: the first counted slots, accumulated early.
    """

    counted: Slots
    surplus: Slots
    evaluation: ReturnStatistics | None
    confirmation: ReturnStatistics | None
    eval_steps: int
    centre: SlotResult | None
    reevaluations: Slots = ()
    measured: Slots = ()
    used: Sequence[PublicationSlice] = ()
    tried: ReevaluatedSlots = ()
    open: tuple[OpenPublication, ...] = ()
    evaluated: Slots = ()
    prefix: PrefixAccumulator | None = None

    @property
    def results(self) -> list[SlotResult]:
        return [result for result in self.counted if result is not None]

    @cached_property
    def arrays(self) -> ResultArrays:
        if self.prefix is None:
            return ResultArrays.from_results(self.counted)
        return self.prefix.to_arrays(self.counted)


def total_steps(slots: Slots) -> int:
    return sum(sum(result.steps) for result in slots if result is not None)


def first_returns(slots: Slots) -> list[float]:
    return [result.returns[0] for result in slots if result is not None]
