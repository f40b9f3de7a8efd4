"""Action bins: each number of a box action is one of a few values, the one with the largest output
(Salimans et al. 2017, section 4.1).
"""

from __future__ import annotations

from es_queue.errors import UsageError

NONE = "none"
MAX_BINS = 1000


def parse_bins(text: str) -> tuple[float, ...]:
    """The values of ``uniform:K`` or ``custom:a,b,c…`` from -1 (the lower bound) to 1 (the upper),
    ascending; () for none.

    Raises UsageError for anything else.
    """
    kind, _, rest = text.partition(":")
    try:
        if kind == "uniform" and 2 <= int(rest) <= MAX_BINS:
            return tuple((2 * place / (int(rest) - 1)) - 1 for place in range(int(rest)))
        if kind == "custom":
            values = tuple(float(value) for value in rest.split(","))
            if (
                2 <= len(values) <= MAX_BINS
                and values == tuple(sorted(set(values)))
                and values[0] >= -1
                and values[-1] <= 1
            ):
                return values
    except ValueError:
        pass
    if text == NONE:
        return ()
    raise UsageError(
        f"action_bins is {text}: use uniform:K for 2 to {MAX_BINS} bins, custom:a,b,... for "
        "ascending values from -1 (the lower bound) to 1 (the upper), or none"
    )
