"""Deadlines of a search: the return that its evaluations must reach within a number of steps."""

from __future__ import annotations

from dataclasses import dataclass

from es_queue.errors import form_error
from es_queue.util.number_ranges import parse_finite

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
        numbers = [tuple(map(parse_finite, part.split("="))) for part in text.split(",")]
        deadlines = tuple(Deadline(steps, least) for steps, least in numbers)
    except ValueError:
        deadlines = ()
    steps = [deadline.steps for deadline in deadlines]
    is_rising = sorted(set(steps)) == steps
    if not 0 < len(deadlines) <= MAX_DEADLINES or not is_rising or steps[0] <= 0:
        raise form_error("restart_deadlines", text, FORM)
    return deadlines
