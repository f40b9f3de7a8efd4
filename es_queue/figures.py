"""Figures of a list of returns, computed in one place so that two programs agree to the last digit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Figures:
    """Mean, population standard deviation, least and greatest of ``count`` returns."""

    mean: float
    std: float
    least: float
    greatest: float
    count: int


def figures_of(returns: Sequence[float]) -> Figures | None:
    """Summed in the order given, in float64; None for no returns."""
    if not returns:
        return None
    mean = sum(returns) / len(returns)
    spread = math.sqrt(sum((one - mean) ** 2 for one in returns) / len(returns))
    return Figures(mean, spread, min(returns), max(returns), len(returns))
