"""Array types, and arithmetic on arrays whose bits depend only on its inputs.

Sums add whole rows in slot order with plain numpy, so neither the width of a slice nor the number
of threads changes a bit. BLAS kernels, and numpy's ``exp``, ``log`` and ``power``, differ between
CPUs.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from es_queue.errors import RunFolderError
from es_queue.numerics.fingerprint import power as power

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]


def typed_array(
    arrays: Mapping[str, NDArray[Any]], name: str, kind: type, shape: tuple[int | None, ...]
) -> NDArray[Any]:
    """An array with exactly this type and shape, in which None is any length. Raises RunFolderError
    if it differs, or holds a number that is not finite.
    """
    if name not in arrays:
        raise RunFolderError(f"it has no array {name!r}")
    array = arrays[name]
    pairs = zip(shape, array.shape, strict=False)
    sides = tuple(length if side is None else side for side, length in pairs)
    if array.dtype != kind or array.ndim != len(shape) or array.shape != sides:
        expected = ", ".join("any" if side is None else f"{side:,}" for side in shape)
        raise RunFolderError(
            f"its array {name!r} is {array.dtype.name} {list(array.shape)}, not "
            f"{np.dtype(kind).name} [{expected}]"
        )
    if not np.isfinite(array).all():
        raise RunFolderError(f"its array {name!r} holds a number that is not finite")
    return array


Item = TypeVar("Item")

# --- threads: numpy releases the interpreter's lock inside its loops

#: More would wait for each other's calls into numpy, and for memory.
MAX_THREADS = 8


def usable_cores() -> int:
    """The number of cores that this process may use, 1 to ``MAX_THREADS``."""
    affinity = getattr(os, "sched_getaffinity", None)
    return max(1, min(len(affinity(0)) if affinity else os.cpu_count() or 1, MAX_THREADS))


def for_each(work: Callable[[Item], object], items: Iterable[Item], threads: int) -> None:
    """Call ``work`` once with each item, in that many threads, which see the caller's
    ``np.errstate`` and end with the call, so a process may fork afterwards.
    """
    if threads <= 1:
        for item in items:
            work(item)
        return
    pool = ThreadPoolExecutor(threads)
    try:
        for future in [pool.submit(copy_context().run, work, item) for item in items]:
            future.result()
    finally:
        pool.shutdown(cancel_futures=True)


# --- sums in slot order

#: Slots that are added in float32 before they join the float64 total. Changing it changes digests.
GROUP = 32
#: Columns of a chunk of a norm (it changes digests), and the longest rows worth copying.
COLUMNS = 4096
#: Slots whose rows are copied at once if they are short, or read at once; in whole groups.
SLOTS, VIEWS = 256, 4096
#: Columns of a piece of long rows: two float32 rows fit into the L2 cache.
WIDEST = 3 * 2**15
#: From this many columns on, the number of pieces is even, so that two threads end together.
SHARED = 2**16
#: With fewer products, threads would take longer to start than to work.
WORTH_THREADS = 2**22

#: ``transform(values, out)`` writes the transformed elements to ``out``, which may be ``values``.
Transform = Callable[[Floats, Floats], object]


class NoiseRows(Protocol):
    """Slices of the noise: the table of a host, or an array in tests."""

    def rows(self, indices: Integers, start: int, stop: int) -> Floats:
        """Row k is ``noise[indices[k] + start : indices[k] + stop]``."""
        ...

    def views(self, indices: Integers, start: int, stop: int) -> Sequence[Floats]: ...


@dataclass(frozen=True)
class ArrayNoise:
    """An array [n] as the noise, for tests and for experiments with a strategy."""

    noise: Floats

    def rows(self, indices: Integers, start: int, stop: int) -> Floats:
        return np.take(self.noise, indices[:, np.newaxis] + np.arange(start, stop))

    def views(self, indices: Integers, start: int, stop: int) -> Sequence[Floats]:
        return [self.noise[index + start : index + stop] for index in indices.tolist()]


def weighted_rows(
    noise: NoiseRows,
    indices: Integers,
    weights: Doubles,
    size: int,
    transform: Transform | None = None,
) -> Doubles:
    """Σ_k weights[k] · transform(noise row k), float64 [size], in the order of ``indices`` [S].

    ``transform`` works on each element (pgpe: ε² − 1). Products are float32; ``GROUP`` slots are
    added in float32, the groups in float64. Raises ValueError unless there is one weight per row.
    """
    if len(indices) != len(weights):
        raise ValueError(f"{len(weights)} weights for {len(indices)} rows of noise")
    scaled, exponent = unit_scaled(weights)
    factors = scaled.astype(np.float32)
    total = np.zeros(size, np.float64)
    if size <= COLUMNS:
        _add_copies(total, noise, indices, factors, transform)
    else:
        _add_long_rows(total, noise, indices, factors, transform)
    return np.ldexp(total, exponent)


def _add_copies(
    total: Doubles,
    noise: NoiseRows,
    indices: Integers,
    factors: Floats,
    transform: Transform | None,
) -> None:
    """For short rows, on which a call into numpy takes longer than its work."""
    column, summed = factors[:, np.newaxis], np.empty(len(total), np.float32)
    for first in range(0, len(indices), SLOTS):
        rows = noise.rows(indices[first : first + SLOTS], 0, len(total))
        if transform is not None:
            transform(rows, rows)
        np.multiply(rows, column[first : first + SLOTS], out=rows)
        for begin in range(0, len(rows), GROUP):
            np.add(total, _sum_in_order(rows[begin : begin + GROUP], summed), out=total)


def _sum_in_order(group: Floats, out: Floats) -> Floats:
    if group.shape[1] > 1:
        return np.add.reduce(group, axis=0, out=out)
    # numpy reduces a single column as a vector: pairwise
    out[0] = np.add.accumulate(group[:, 0])[-1]
    return out


def _add_long_rows(
    total: Doubles,
    noise: NoiseRows,
    indices: Integers,
    factors: Floats,
    transform: Transform | None,
) -> None:
    def work(piece: tuple[int, int]) -> None:
        start, stop = piece
        for first in range(0, len(indices), VIEWS):
            rows = noise.views(indices[first : first + VIEWS], start, stop)
            _add_views(total[start:stop], rows, factors[first : first + VIEWS], transform)

    pieces = column_pieces(len(total))
    for_each(work, pieces, _useful_threads(len(total) * len(indices)))


def column_pieces(size: int) -> list[tuple[int, int]]:
    """Start and stop of each piece of ``size`` columns: as even as possible."""
    count = 2 * -(-size // (2 * WIDEST)) if size >= SHARED else 1
    width = -(-size // count)
    return [(start, min(start + width, size)) for start in range(0, size, width)]


def _add_views(
    total: Doubles, rows: Sequence[Floats], factors: Floats, transform: Transform | None
) -> None:
    """Read each row from memory once; the products and their sum stay in the cache."""
    summed, product = np.empty_like(total, np.float32), np.empty_like(total, np.float32)
    multiply, add = np.multiply, np.add
    pairs = list(zip(rows, factors, strict=True))
    for first in range(0, len(pairs), GROUP):
        out = summed
        for row, factor in pairs[first : first + GROUP]:
            if transform is None:
                multiply(row, factor, out)
            else:
                transform(row, out)
                multiply(out, factor, out)
            if out is product:
                add(summed, product, summed)
            out = product
        add(total, summed, total)


def unit_scaled(values: Doubles) -> tuple[Doubles, int]:
    """``values`` divided by a power of two so that the largest is in [½, 1), and that power's
    exponent. Squares and a cast to float32 then do not overflow.
    """
    largest = float(np.max(np.abs(values), initial=0.0))
    exponent = math.frexp(largest)[1]
    return np.ldexp(values, -exponent), exponent


def combine_rows(matrix: Floats, weights: Floats) -> Floats:
    """weights @ matrix for ``weights`` [S, m] and ``matrix`` [m, n]: float32 [S, n], rounded like
    ``weighted_rows``.
    """
    combined = np.empty((len(weights), matrix.shape[1]), np.float32)

    def work(row: int) -> None:
        total = np.zeros(matrix.shape[1], np.float64)
        summed = np.empty(matrix.shape[1], np.float32)
        for first in range(0, len(matrix), GROUP):
            group = slice(first, first + GROUP)
            product = matrix[group] * weights[row, group, np.newaxis]
            np.add(total, _sum_in_order(product, summed), out=total)
        combined[row] = total

    for_each(work, range(len(weights)), _useful_threads(matrix.size * len(weights)))
    return combined


def add_outer_products(matrix: Floats, keep: float, left: Doubles, right: Doubles) -> Floats:
    """keep · matrix + Σ_k left[k] ⊗ right[k] for ``left`` [k, m] and ``right`` [k, n]: float32
    [m, n], added in float64 in order.
    """
    result = np.empty_like(matrix)

    def work(first: int) -> None:
        rows = slice(first, first + GROUP)
        total = matrix[rows].astype(np.float64)
        np.multiply(total, keep, out=total)
        product = np.empty_like(total)
        for column, row in zip(left[:, rows], right, strict=True):
            np.multiply(column[:, np.newaxis], row, out=product)
            np.add(total, product, out=total)
        result[rows] = total

    starts = range(0, len(matrix), GROUP)
    for_each(work, starts, _useful_threads(matrix.size * len(left)))
    return result


def _useful_threads(products: int) -> int:
    return usable_cores() if products >= WORTH_THREADS else 1


def dot(left: NDArray[Any], right: NDArray[Any]) -> float:
    """Σ left · right of two vectors [n] in float64, by chunks of ``COLUMNS`` in order."""
    total = 0.0
    for start in range(0, len(left), COLUMNS):
        chunk = slice(start, start + COLUMNS)
        products = np.multiply(left[chunk], right[chunk], dtype=np.float64)
        total += float(np.add.reduce(products))
    return total


def norm(vector: NDArray[Any]) -> float:
    """The Euclidean length of ``vector`` [n]: the root of its ``dot`` with itself."""
    return math.sqrt(dot(vector, vector))


# --- functions with equal bits on every CPU


def steady_exp(values: Doubles) -> Doubles:
    """exp of each element within a few units in the last place; ∞ or 0 beyond normal numbers."""
    bounded = np.clip(values, -1000.0, 1000.0)
    twos = np.rint(bounded / math.log(2))
    rest = bounded - twos * math.log(2)
    series = np.ones_like(rest)
    for term in range(14, 0, -1):  # the next term is below 2^-60 for |rest| ≤ ½ ln 2
        series = 1.0 + rest / term * series
    return np.asarray(np.ldexp(series, twos.astype(np.int32)))


def squared_less_one(noise: Floats, out: Floats) -> None:
    """ε² − 1 of each element, into ``out`` of the same shape (see ``weighted_rows``)."""
    np.square(noise, out)
    np.subtract(out, np.float32(1), out)


def recombination_weights(count: int) -> Doubles:
    """max(0, ln(m/2 + 1) − ln k)/Σ − 1/m for the k-th best of m, float64 [m], best first (Wierstra
    et al. 2014, NES, section 3.1).
    """
    logs = np.array([math.log(k) for k in range(1, count + 1)])
    raw = np.maximum(0.0, math.log(count / 2 + 1) - logs)
    return np.asarray(raw / raw.sum() - 1 / count)
