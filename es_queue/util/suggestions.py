"""Suggestions for a mistyped name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

MOST = 3
#: How similar a name must be at least, and how much less than the nearest one, from 0 to 1.
SIMILAR, MARGIN = 0.66, 0.1


def nearest_names(word: str, known: Iterable[str]) -> list[str]:
    """At most three known names, the nearest first: those that begin with ``word``, else those
    whose spelling is about as similar as the nearest one's. The dashes of a flag do not count.
    """
    names = list(known)
    beginning = [name for name in names if len(word.strip("-")) > 1 and name.startswith(word)]
    matcher = difflib.SequenceMatcher(b=word.lstrip("-"))
    ratios: dict[str, float] = {}
    for name in names:
        matcher.set_seq1(name.lstrip("-"))
        ratios[name] = matcher.ratio()
    least = max(SIMILAR, max(ratios.values(), default=0) - MARGIN)
    near = beginning or [name for name in names if ratios[name] >= least]
    return sorted(near, key=lambda name: -ratios[name])[:MOST]


def format_suggestion(word: str, known: Iterable[str]) -> str:
    """``did you mean …?``, or empty if no name is similar."""
    near = nearest_names(word, known)
    return f"did you mean {' or '.join(near)}?" if near else ""
