"""Statistics of a list of returns, computed in one place so that all programs agree to the last
digit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ReturnStatistics:
    """Mean, population standard deviation, minimum and maximum of ``count`` returns."""

    mean: float
    std: float
    minimum: float
    maximum: float
    count: int

    @property
    def standard_error(self) -> float:
        """Of the mean: std/√count."""
        return self.std / math.sqrt(self.count)


def sum_in_order(values: Iterable[float]) -> float:
    """The sum from left to right in float64, rounded at each step. The built-in ``sum`` rounds
    differently since Python 3.12.
    """
    total = 0.0
    for value in values:
        total += value
    return total


def return_statistics(returns: Sequence[float]) -> ReturnStatistics | None:
    """Summed in the given order, in float64; None without returns."""
    if not returns:
        return None
    mean = sum_in_order(returns) / len(returns)
    try:
        spread = math.sqrt(sum_in_order((value - mean) ** 2 for value in returns) / len(returns))
    except OverflowError:  # Python raises if the square exceeds float64
        spread = math.inf
    return ReturnStatistics(mean, spread, min(returns), max(returns), len(returns))
