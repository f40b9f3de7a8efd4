"""The median time to an event that some runs did not reach before they ended."""

from __future__ import annotations

from collections.abc import Sequence


def median_time(times: Sequence[float], reached: Sequence[bool]) -> float | None:
    """Median by the product-limit estimator (Kaplan & Meier 1958); None if the estimated share of
    runs without the event stays above one half.

    times: of the event, or of the run's end if ``reached`` is false
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
