"""Deadlines of a search: the return that its evaluations must reach within a number of steps."""

from __future__ import annotations

import math
from dataclasses import dataclass

from es_queue.errors import UsageError

FORM = "STEPS=RETURN,STEPS=RETURN,... with rising steps, or none"
MAX_DEADLINES = 100


@dataclass(frozen=True)
class Deadline:
    """After ``steps`` counted training steps, some evaluation must have had a mean of ``least``."""

    steps: float
    least: float


def parse_deadlines(text: str) -> tuple[Deadline, ...]:
    """Read ``STEPS=RETURN,...``, or ``none`` as no deadlines. Raises UsageError."""
    if text == "none":
        return ()
    try:
        numbers = [tuple(map(float, part.split("="))) for part in text.split(",")]
        deadlines = tuple(Deadline(steps, least) for steps, least in numbers)
    except ValueError:
        deadlines = ()
    steps = [deadline.steps for deadline in deadlines]
    is_finite = all(
        math.isfinite(value) for each in deadlines for value in (each.steps, each.least)
    )
    is_rising = sorted(set(steps)) == steps
    if not 0 < len(deadlines) <= MAX_DEADLINES or not is_finite or not is_rising or steps[0] <= 0:
        quoted = repr(text if len(text) <= 60 else text[:60] + "...")
        raise UsageError(f"restart_deadlines is {quoted}: use {FORM}")
    return deadlines
