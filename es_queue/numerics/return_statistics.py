"""Statistics of a list of returns, computed in one place so that two programs agree to the last
digit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ReturnStatistics:
    """Mean, population standard deviation, least and greatest of ``count`` returns."""

    mean: float
    std: float
    minimum: float
    maximum: float
    count: int


def sum_in_order(values: Iterable[float]) -> float:
    """Left to right in float64, rounding at each step: since Python 3.12 the built-in ``sum``
    rounds otherwise.
    """
    total = 0.0
    for value in values:
        total += value
    return total


def return_statistics(returns: Sequence[float]) -> ReturnStatistics | None:
    """Summed in the order given, in float64; None for no returns."""
    if not returns:
        return None
    mean = sum_in_order(returns) / len(returns)
    try:
        spread = math.sqrt(sum_in_order((value - mean) ** 2 for value in returns) / len(returns))
    except OverflowError:  # Python raises where float64 has no square
        spread = math.inf
    return ReturnStatistics(mean, spread, min(returns), max(returns), len(returns))
