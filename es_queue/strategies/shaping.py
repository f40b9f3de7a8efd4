"""Shaping: converts fitness to utility.

Failed individuals (not finite) take the worst rank, or the smallest finite value. Ties share the
mean of their utilities. If all are equal, every utility is exactly 0.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from es_queue.config.settings import setting
from es_queue.numerics.arrays import Doubles, recombination_weights, unit_scaled

#: Shapings whose fitness is Σ_t sign(r_t), so that workers must send that.
BY_SIGN = frozenset({"sign", "centered-sign-rank"})


class ShapingSettings:
    shaping = setting(
        "centered-rank",
        "how fitness is converted to utility",
        choices=("centered-rank", "centered-sign-rank", "log-rank", "sign", "z-score"),
    )


def utilities(shaping: str, fitness: Doubles) -> Doubles:
    """Utilities of ``fitness`` by the named shaping, float64 of the same shape."""
    flat = fitness.ravel()
    if all_equal(with_failures_last(flat)):
        return np.zeros_like(fitness)
    return SHAPINGS[shaping](flat).reshape(fitness.shape)


def all_equal(values: Doubles) -> bool:
    return bool(np.all(values == values[:1]))


def with_failures_last(fitness: Doubles) -> Doubles:
    """``fitness`` with −∞ for every value that is not finite."""
    return np.where(np.isfinite(fitness), fitness, -np.inf)


def with_failures_lowest(fitness: Doubles) -> Doubles:
    """``fitness`` with the smallest finite value for every one that is not finite; else zeros."""
    finite = np.isfinite(fitness)
    if not finite.any():
        return np.zeros_like(fitness)
    return np.where(finite, fitness, fitness[finite].min())


def share_by_rank(fitness: Doubles, table: Doubles) -> Doubles:
    """``table[0]`` for the lowest of ``fitness`` [m] … ``table[m-1]`` for the highest; equals share
    their mean.

    The mean is of utilities, not the utility of the mean rank: with log-rank the two differ.
    """
    values = with_failures_last(fitness)
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    first = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    counts = np.diff(np.r_[first, len(ordered)])
    shared = np.empty_like(table)
    shared[order] = np.repeat(np.add.reduceat(table, first) / counts, counts)
    return shared


def centered_rank(fitness: Doubles) -> Doubles:
    """Ranks spread evenly over [−½, ½] (evolution-strategies-starter, ``compute_centered_ranks``),
    ties shared.
    """
    return share_by_rank(fitness, np.arange(len(fitness)) / (len(fitness) - 1) - 0.5)


def log_rank(fitness: Doubles) -> Doubles:
    """``recombination_weights`` of the rank, ties shared."""
    return share_by_rank(fitness, recombination_weights(len(fitness))[::-1])


def blended_rank(fitness: Doubles, linear: float) -> Doubles:
    """``log_rank`` with a share of ``linear`` from centred ranks of the same Σ|u|, ties shared:
    they
    also use the worse half, and contain less noise from a few lucky episodes.
    """
    logarithmic = recombination_weights(len(fitness))[::-1]
    centred = np.arange(len(fitness)) - (len(fitness) - 1) / 2
    centred *= np.abs(logarithmic).sum() / np.abs(centred).sum()
    return share_by_rank(fitness, (1 - linear) * logarithmic + linear * centred)


def z_score(fitness: Doubles) -> Doubles:
    """Fitness less its mean, in population standard deviations."""
    values, _ = unit_scaled(with_failures_lowest(fitness))
    if all_equal(values):
        return np.zeros_like(values)
    centred = values - values.mean()
    return np.asarray(centred / np.sqrt(np.square(centred).mean()))


def raw_fitness(fitness: Doubles) -> Doubles:
    """The starter's ``sign`` mode, if fitness is the sum of the rewards' signs."""
    values = with_failures_lowest(fitness)
    return np.zeros_like(values) if all_equal(values) else values


SHAPINGS: dict[str, Callable[[Doubles], Doubles]] = {
    "centered-rank": centered_rank,
    "centered-sign-rank": centered_rank,
    "log-rank": log_rank,
    "sign": raw_fitness,
    "z-score": z_score,
}
