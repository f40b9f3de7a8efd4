"""The median time to an event of which some runs only tell that it has not come yet."""

from __future__ import annotations

from collections.abc import Sequence


def median_time(times: Sequence[float], reached: Sequence[bool]) -> float | None:
    """Median by the product-limit estimator (Kaplan & Meier 1958); None if fewer than half of the
    runs reach the event.

    times: of the event, or, where ``reached`` is false, when the run ended without it
    """
    share, remaining = 1.0, len(times)
    for time, event in sorted(
        zip(times, reached, strict=True), key=lambda run: (run[0], not run[1])
    ):
        if event:
            share *= 1 - 1 / remaining
            if share <= 0.5 + 1e-9:
                return time
        remaining -= 1
    return None
