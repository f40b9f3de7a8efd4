"""The archive of behaviours and the distance to it: Lehman and Stanley 2011, Abandoning objectives
(novelty search).

https://doi.org/10.1162/EVCO_a_00025, with the mean Euclidean distance to the k nearest of Conti et
al. 2018, equation 1.
"""

from __future__ import annotations

import numpy as np

from es_queue.numerics.arrays import Doubles, Floats
from es_queue.numerics.return_statistics import sum_in_order

#: Numbers of the archive that are worked at once: they stay in the cache.
PIECE = 2**14


def novelty_of(behaviours: Floats, archive: Floats, neighbours: int) -> Doubles:
    """Mean distance, float64 [n], of each of ``behaviours`` [n, b] to its nearest ``neighbours`` in
    ``archive`` [A, b].

    A smaller archive counts whole; an empty one gives 0. A behaviour that is not finite gives NaN.
    Sums have a fixed order.
    """
    if not len(archive):
        return np.where(np.isfinite(behaviours).all(axis=1), 0.0, np.nan)
    pieces = split_archive(archive)
    return np.array(
        [
            mean_distance(behaviour, pieces, neighbours)
            for behaviour in behaviours.astype(np.float64)
        ],
        np.float64,
    )


def split_archive(archive: Floats) -> list[Doubles]:
    """The archive [A, b] as columns [b, …] in pieces of about ``PIECE`` numbers and nearly equal
    width: numpy sums a single column in another order.
    """
    count = max(1, min(len(archive) // 2, archive.size // PIECE))
    return [np.ascontiguousarray(piece.T, np.float64) for piece in np.array_split(archive, count)]


def mean_distance(behaviour: Doubles, pieces: list[Doubles], neighbours: int) -> float:
    """Mean distance of one behaviour [b] to the nearest of an archive in pieces."""
    if not np.isfinite(behaviour).all():
        return float("nan")
    squares = np.concatenate(
        [np.add.reduce(np.square(piece - behaviour[:, np.newaxis]), axis=0) for piece in pieces]
    )
    if neighbours < len(squares):
        squares = np.partition(squares, neighbours - 1)[:neighbours]
    nearest = np.sqrt(np.sort(squares)).tolist()
    return sum_in_order(nearest) / len(nearest)


def extend_archive(archive: Floats, measured: Floats, most: int) -> Floats:
    """``archive`` [A, b] followed by the finite rows of ``measured`` [k, b]; the oldest beyond
    ``most`` are dropped.
    """
    fresh = measured[np.isfinite(measured).all(axis=1)]
    return np.concatenate([archive, fresh])[-most:] if len(archive) else fresh[-most:]


def draw_index(weights: Doubles, chance: float) -> int:
    """Index that ``chance``, uniform in [0, 1), selects with probabilities proportional to the
    weights; equal ones if all weights are 0.
    """
    shares = weights.tolist() if np.any(weights > 0) else [1.0] * len(weights)
    threshold, reached = chance * sum_in_order(shares), 0.0
    for place, share in enumerate(shares):
        reached += share
        if threshold < reached:
            return place
    return int(np.flatnonzero(shares)[-1])  # the product was rounded up to the sum
