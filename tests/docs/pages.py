"""The Markdown pages of the project, and what stands in them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

HOUSE = Path(__file__).resolve().parents[2]
FENCE = re.compile(
    r"^(?P<mark><!-- (?:runnable|file:)[^\n]*-->\n)?^```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^```",
    re.MULTILINE | re.DOTALL,
)
LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")


def pages() -> list[Path]:
    """README and the like, and every page under docs/, in a fixed order."""
    return [*sorted(HOUSE.glob("*.md")), *sorted((HOUSE / "docs").rglob("*.md"))]


def named(page: Path) -> str:
    return str(page.relative_to(HOUSE))


@dataclass(frozen=True)
class Marked:
    """A fenced block that its page marks. mark: the words of the comment above it."""

    mark: str
    language: str
    code: str


def marked_blocks(page: Path) -> list[Marked]:
    """In the page's order: blocks under ``<!-- runnable -->`` or ``<!-- file: NAME -->``."""
    found = FENCE.finditer(page.read_text("utf-8"))
    return [
        Marked(one["mark"].strip()[4:-3].strip(), one["language"], one["code"])
        for one in found
        if one["mark"]
    ]


def prose(page: Path) -> str:
    """A page without its code: what looks like a link there is none."""
    return re.sub(r"`[^`\n]*`", "", FENCE.sub("", page.read_text("utf-8")))


def anchors(page: Path) -> set[str]:
    """The names of a page's headings, as the site and the usual viewers make them."""
    titles = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}
