"""Makes untrusted text safe for a terminal."""

from __future__ import annotations

#: The longest text from elsewhere on a screen.
MAX_TEXT = 400


def escape(text: str) -> str:
    """Text from anyone, harmless to a terminal."""
    return "".join(
        character if character.isprintable() else ascii(character)[1:-1] for character in text
    )


def sanitize(text: object, longest: int = MAX_TEXT) -> str:
    """One line of text that is safe for a terminal: unprintable characters are escaped, and a long
    text is cut.
    """
    line = escape(str(text)[: longest + 1])
    return line if len(line) <= longest else line[: longest - 1] + "…"
