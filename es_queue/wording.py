"""Text from elsewhere, made fit for a terminal; master and workers use the same."""

from __future__ import annotations

#: What one text from elsewhere may take of a screen.
LONGEST_TEXT = 400


def printable(text: object, longest: int = LONGEST_TEXT) -> str:
    """One line of text that can do nothing to a terminal: what does not print is escaped, the rest cut."""
    shown = str(text)[: longest + 1]
    shown = "".join(one if one.isprintable() else ascii(one)[1:-1] for one in shown)
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"
