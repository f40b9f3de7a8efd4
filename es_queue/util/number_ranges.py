"""Numbers as people write them, and lists of whole numbers: ``1-5`` or ``1,3,7-9``."""

from __future__ import annotations

import math
import re

_RANGE = re.compile(r"([0-9]{1,19})(?:-([0-9]{1,19}))?", re.ASCII)


LARGEST_WHOLE = 10**9


def parse_whole(text: str, low: int) -> int:
    """A whole number from ``low`` to 10^9. Raises ValueError."""
    # Only plain digits: int() would also take "1_6", " 16" and digits of other scripts.
    if not re.fullmatch(r"[0-9]{1,10}", text) or not low <= int(text) <= LARGEST_WHOLE:
        raise ValueError
    return int(text)


def parse_finite(text: str, low: float = -math.inf, high: float = math.inf) -> float:
    """A finite number from ``low`` to ``high``. Raises ValueError."""
    number = float(text)
    if not math.isfinite(number) or not low <= number <= high:
        raise ValueError
    return number


def parse_number_ranges(text: str, noun: str, most: int, highest: int) -> tuple[int, ...]:
    """The numbers of ``text`` in order, without repetition; at most ``most``, none above
    ``highest``.

    noun: the name of one of them in errors. Raises ValueError, whose text is the fix.
    """
    numbers: list[int] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise ValueError(
                "use whole numbers and ranges, separated by commas, such as 1-5 or 1,3,7-9"
            )
        first = int(match[1])
        last = first if match[2] is None else int(match[2])
        if last > highest:
            raise ValueError(f"a {noun} is at most {highest}")
        if last < first:
            raise ValueError(f"write the range from low to high: {last}-{first}")
        if len(numbers) + last - first >= most:
            raise ValueError(f"use at most {most} {noun}s")
        numbers += range(first, last + 1)
    known: set[int] = set()
    for number in numbers:
        if number in known:
            raise ValueError(f"give each {noun} once; {number} is listed twice")
        known.add(number)
    return tuple(numbers)
