"""Renders a page of es-status: for programs or people, on a terminal or in a pipe."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from master.display.log_view import SafeStream
from master.display.terminal import format_plain_table, make_console, make_fields

#: Colours say how a run fares; nothing else is coloured.
GOOD, WARNING, BAD, PLAIN, FAINT, STRONG = "green", "yellow", "red", "", "dim", "bold"
LABEL_WIDTH = 12

PagePart = Text | Table


@dataclass(frozen=True)
class Page:
    """data: for programs; parts: for people; is_over: whether nothing more will follow"""

    data: Mapping[str, Any]
    parts: tuple[PagePart, ...]
    code: int = 0
    is_over: bool = False


def page_fields(rows: Sequence[tuple[str, str] | tuple[str, str, str]]) -> Table:
    """Rows of (label, text) or (label, text, style), indented."""
    width = max([LABEL_WIDTH, *(len(label) + 2 for label, *_ in rows)])
    return make_fields(((f"  {label}", Text(*text)) for label, *text in rows), width + 2)


def page_fields_if_any(rows: Sequence[tuple[str, str]]) -> Table:
    return page_fields([row for row in rows if row[1]])


def format_plain(page: Page) -> list[str]:
    """Lines for files and other programs."""
    lines: list[str] = []
    for part in page.parts:
        lines += [part.plain.rstrip()] if isinstance(part, Text) else format_plain_table(part)
    return lines


def print_page(page: Page, out: SafeStream, *, as_json: bool) -> None:
    if as_json:
        out.write_line(json.dumps(page.data, allow_nan=False))
    elif not out.is_terminal:
        out.write_line("\n".join(format_plain(page)))
    else:
        console = make_console(out)
        for part in page.parts:
            # A line that the terminal wraps by itself can be copied whole, so commands stand on
            # lines.
            console.print(part, soft_wrap=isinstance(part, Text))
