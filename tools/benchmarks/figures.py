"""A row of the table: a figure, its target, whether it was met, how much it spread."""

from __future__ import annotations

import operator
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

BOUNDS: dict[str, Callable[[float, float], bool]] = {
    "≥": operator.ge,
    "≤": operator.le,
    "<": operator.lt,
}


@dataclass(frozen=True)
class Row:
    """One figure. ``values``: one a repeat, of which the median counts, or their least, median and
    greatest alone and ``repeats``.

    name: short; text: what is measured; target: None where the figure is only reported; bound: what
    the figure must be to the target, one of ≥, ≤, <; skipped: why there is no figure, else empty;
    beside: absolute rates and what else a reader wants to know
    """

    name: str
    text: str
    values: tuple[float, ...]
    unit: str = ""
    target: float | None = None
    bound: str = "≥"
    beside: dict[str, str] = field(default_factory=dict)
    skipped: str = ""
    repeats: int = 0

    @property
    def figure(self) -> float:
        return statistics.median(self.values)

    @property
    def met(self) -> bool | None:
        """None where there is nothing to meet, or nothing was measured."""
        if self.target is None or not self.values:
            return None
        return BOUNDS[self.bound](self.figure, self.target)

    @property
    def verdict(self) -> str:
        if self.skipped:
            return "skipped"
        return {None: "reported", True: "met", False: "missed"}[self.met]

    def required(self) -> str:
        return "" if self.target is None else f"{self.bound} {number(self.target)}{self.unit}"

    def shown(self) -> str:
        return f"{number(self.figure)}{self.unit}" if self.values else ""

    @property
    def times(self) -> int:
        return self.repeats or len(self.values)

    def spread(self) -> str:
        if self.times < 2:
            return ""
        return f"{number(min(self.values))} to {number(max(self.values))}"

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "values": list(self.values)}

    @classmethod
    def read(cls, values: dict[str, Any]) -> Row:
        return cls(**{**values, "values": tuple(values["values"])})


def number(value: float) -> str:
    """Three digits that count, and no more."""
    if value == 0:
        return "0"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:,.0f}"


def middle(values: Sequence[float], pattern: str = "{:,.0f}") -> str:
    """The median as text."""
    return pattern.format(statistics.median(values))
