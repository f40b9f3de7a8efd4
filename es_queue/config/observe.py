"""``--observe``: the numbers of an observation that a policy receives."""

from __future__ import annotations

from es_queue.errors import UsageError
from es_queue.text import parse_number_ranges

MOST_NUMBERS, HIGHEST_NUMBER = 2**16, 2**24


def parse_observe(text: str) -> tuple[int, ...] | None:
    """The indices in a text such as ``0-13,20``; None for ``all``. Raises UsageError."""
    if text == "all":
        return None
    try:
        return parse_number_ranges(text, "number", MOST_NUMBERS, HIGHEST_NUMBER)
    except ValueError as error:
        raise UsageError(f"observe is {text[:60]!r}: {error}, or all") from None
