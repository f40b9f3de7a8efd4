"""Suggestions for a mistyped name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

MOST = 3


def nearest_names(word: str, known: Iterable[str]) -> list[str]:
    """At most three known names: those that begin with ``word``, else those with a similar
    spelling.
    """
    names = list(known)
    beginning = [name for name in names if len(word.strip("-")) > 1 and name.startswith(word)]
    return beginning[:MOST] or difflib.get_close_matches(word, names, n=MOST)


def format_suggestion(word: str, known: Iterable[str]) -> str:
    """``did you mean …?``, or empty if no name is similar."""
    near = nearest_names(word, known)
    return f"did you mean {' or '.join(near)}?" if near else ""
