"""Text that people type, suggestions for mistyped names, and text from elsewhere on a screen."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable

#: The longest text from elsewhere on a screen.
MAX_TEXT = 400


def escape(text: str) -> str:
    """Text from anyone, harmless to a terminal."""
    return "".join(
        character if character.isprintable() else ascii(character)[1:-1] for character in text
    )


def sanitize(text: object, longest: int = MAX_TEXT) -> str:
    """One line that is safe for a terminal: escaped, and cut if it is long."""
    line = escape(str(text)[: longest + 1])
    return line if len(line) <= longest else line[: longest - 1] + "…"


def to_text(data: object) -> str:
    return data.decode("utf-8", "replace") if isinstance(data, bytes) else str(data)


# --- suggestions

MOST_SUGGESTIONS = 3
#: How similar a name must be at least, and how much less than the nearest one, from 0 to 1.
SIMILAR, MARGIN = 0.66, 0.1


def nearest_names(word: str, known: Iterable[str]) -> list[str]:
    """At most three known names, the nearest first: those that begin with ``word``, else those
    about as similar as the nearest one or with which ``word`` begins. A flag's dashes and capital
    letters do not count.
    """
    word, names = word.strip("-").lower(), {name: name.lstrip("-").lower() for name in known}
    ratios = {
        name: difflib.SequenceMatcher(None, plain, word).ratio() for name, plain in names.items()
    }
    least = max(SIMILAR, max(ratios.values(), default=0) - MARGIN)
    near = [name for name, plain in names.items() if len(word) > 1 and plain.startswith(word)]
    near = near or [
        name
        for name, plain in names.items()
        if ratios[name] >= least or (len(plain) > 2 and word.startswith(plain))
    ]
    return sorted(near, key=lambda name: -ratios[name])[:MOST_SUGGESTIONS]


def format_suggestion(word: str, known: Iterable[str]) -> str:
    """``did you mean …?``, or empty if no name is similar."""
    near = nearest_names(word, known)
    return f"did you mean {' or '.join(near)}?" if near else ""


# --- numbers

LARGEST_WHOLE = 10**9
_RANGE = re.compile(r"([0-9]{1,19})(?:-([0-9]{1,19}))?", re.ASCII)


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
    """The numbers of ``1-5`` or ``1,3,7-9`` in order; at most ``most``, none above ``highest``.

    noun: the name of one of them. Raises ValueError, whose text is the fix.
    """
    numbers: dict[int, None] = {}
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise ValueError(
                "use whole numbers and ranges, separated by commas, such as 1-5 or 1,3,7-9"
            )
        first, last = int(match[1]), int(match[2] or match[1])
        if last > highest:
            raise ValueError(f"a {noun} is at most {highest}")
        if last < first:
            raise ValueError(f"write the range from low to high: {last}-{first}")
        if len(numbers) + last - first >= most:
            raise ValueError(f"use at most {most} {noun}s")
        for number in range(first, last + 1):
            if number in numbers:
                raise ValueError(f"give each {noun} once; {number} is listed twice")
            numbers[number] = None
    return tuple(numbers)
