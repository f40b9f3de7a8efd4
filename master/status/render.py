"""A page of es-status: what programs read of it, what people read of it, and how it is put on a
terminal or into a pipe.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TextIO, cast

from master.display.format import COLUMN_GAP, fitting_columns
from master.display.log_view import SafeStream

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

#: Colours say how a run fares; nothing else is coloured.
GOOD, WARNING, BAD, PLAIN, FAINT, STRONG = "green", "yellow", "red", "", "dim", "bold"
LABEL_WIDTH = 12
#: The last column of a table gives way down to this width before a column is left out.
LEAST_COLUMN_WIDTH = 12


@dataclass(frozen=True)
class PageLine:
    """Pieces of text on one line, each with its style."""

    pieces: tuple[tuple[str, str], ...]

    @property
    def plain(self) -> str:
        return "".join(text for text, _ in self.pieces)


def make_line(text: str, style: str = PLAIN) -> PageLine:
    return PageLine(((text, style),))


@dataclass(frozen=True)
class PageFields:
    """Labels with their texts, one below the other; those with an empty text are left out."""

    rows: tuple[tuple[str, str, str], ...]

    @classmethod
    def from_rows(cls, rows: Sequence[tuple[str, str] | tuple[str, str, str]]) -> PageFields:
        """Rows of (label, text) or (label, text, style)."""
        return cls(
            tuple((row[0], row[1], row[2] if len(row) > 2 else PLAIN) for row in rows if row[1])
        )

    @property
    def width(self) -> int:
        return max([LABEL_WIDTH, *(len(label) + 2 for label, _, _ in self.rows)])


@dataclass(frozen=True)
class PageTable:
    """Rows of texts under their columns.

    expendable: columns that a narrow terminal leaves out, in that order; right: those that are
    aligned to the right;
    styles: of cells, by their text; hidden_rows: how many rows were left out
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    expendable: tuple[str, ...] = ()
    right: frozenset[str] = frozenset()
    styles: Mapping[str, str] = field(default_factory=dict)
    hidden_rows: int = 0

    def widths(self) -> list[int]:
        return [max(map(len, cells)) for cells in zip(self.columns, *self.rows, strict=True)]

    def fitting_columns(self, width: int) -> list[int]:
        """Places of the columns that a terminal of this width shows."""
        widths = self.widths()
        widths[-1] = min(widths[-1], LEAST_COLUMN_WIDTH) if len(widths) > 1 else widths[-1]
        return fitting_columns(self.columns, widths, self.expendable, width)


PagePart = PageLine | PageFields | PageTable


@dataclass(frozen=True)
class Page:
    """data: what programs read; parts: what people read; code: what es-status ends with; over:
    nothing more will come.
    """

    data: Mapping[str, Any]
    parts: tuple[PagePart, ...]
    code: int = 0
    is_over: bool = False


# --- into a pipe


def format_plain(page: Page) -> list[str]:
    """The page as whole lines of text, for files and other programs: nothing is cut, folded or
    coloured.
    """
    lines: list[str] = []
    for part in page.parts:
        if isinstance(part, PageLine):
            lines.append(part.plain)
        elif isinstance(part, PageFields):
            lines += [f"  {label:<{part.width}}{text}" for label, text, _ in part.rows]
        else:
            lines += _format_plain_table(part)
    return [text_line.rstrip() for text_line in lines]


def _format_plain_table(table: PageTable) -> list[str]:
    widths = table.widths()
    sides = [">" if name in table.right else "<" for name in table.columns]
    lines = [
        "  ".join(
            f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)
        )
        for row in (table.columns, *table.rows)
    ]
    return lines + ([f"and {table.hidden_rows:,} more"] if table.hidden_rows else [])


# --- onto a terminal


def is_terminal(out: SafeStream) -> bool:
    return out.isatty() and os.environ.get("TERM", "") not in ("", "dumb", "unknown")


def make_console(out: SafeStream) -> Console:
    # start-up: rich, which plain output does not need
    from rich.console import Console

    return Console(
        file=cast(TextIO, out), force_terminal=True, markup=False, highlight=False, emoji=False
    )


def print_page(page: Page, out: SafeStream, *, as_json: bool) -> None:
    """Print a page once."""
    if as_json:
        print_json(page.data, out)
    elif not is_terminal(out):
        out.write_line("\n".join(format_plain(page)))
    else:
        console = make_console(out)
        for part in page.parts:
            # A line that the terminal wraps by itself can be copied whole, so commands stand on
            # lines.
            console.print(_render_part(part, console.width), soft_wrap=isinstance(part, PageLine))


def print_json(data: Mapping[str, Any], out: SafeStream) -> None:
    out.write_line(json.dumps(data, allow_nan=False))


def render_page(page: Page, console: Console) -> RenderableType:
    """The page for a terminal that is redrawn in place: where the height is too small, empty lines
    go, then rows of the longest table, which says how many.
    """
    # start-up: rich, which plain output does not need
    from rich.console import Group

    def render_group(parts: Sequence[PagePart]) -> Group:
        return Group(*(_render_part(part, console.width) for part in parts))

    def excess_lines(parts: Sequence[PagePart]) -> int:
        return len(console.render_lines(render_group(parts))) - (console.height - 1)

    parts = list(page.parts)
    if excess_lines(parts) > 0:
        parts = [part for part in parts if not isinstance(part, PageLine) or part.plain]
    longest = max(
        (part for part in parts if isinstance(part, PageTable)),
        key=lambda table: len(table.rows),
        default=None,
    )
    over = excess_lines(parts)
    if longest is not None and over > 0 and len(longest.rows) > 1:
        kept = max(1, len(longest.rows) - over - 1)
        cut = replace(
            longest,
            rows=longest.rows[:kept],
            hidden_rows=longest.hidden_rows + len(longest.rows) - kept,
        )
        parts = [cut if part is longest else part for part in parts]
    return render_group(parts)


def _render_part(part: PagePart, width: int) -> RenderableType:
    if isinstance(part, PageLine):
        # start-up: rich, which plain output does not need
        from rich.text import Text

        return Text.assemble(*part.pieces)
    return _render_fields(part) if isinstance(part, PageFields) else _render_table(part, width)


def _render_fields(fields: PageFields) -> RenderableType:
    # start-up: rich, which plain output does not need
    from rich.padding import Padding
    from rich.table import Table as Grid
    from rich.text import Text

    grid = Grid.grid()
    grid.add_column(style=FAINT, no_wrap=True, width=fields.width)
    grid.add_column(overflow="fold")
    for label, text, style in fields.rows:
        grid.add_row(Text(label), Text(text, style))
    return Padding(grid, (0, 0, 0, 2))


def _render_table(table: PageTable, width: int) -> RenderableType:
    # start-up: rich, which plain output does not need
    from rich.console import Group
    from rich.table import Table as Grid
    from rich.text import Text

    kept, widths = table.fitting_columns(width), table.widths()
    grid = Grid(box=None, header_style=FAINT, pad_edge=False, padding=(0, COLUMN_GAP, 0, 0))
    for position in kept:
        name, first = table.columns[position], position == 0
        side = "right" if name in table.right else "left"
        grid.add_column(
            name,
            no_wrap=True,
            overflow="ellipsis",
            justify=cast(Any, side),
            min_width=min(width, widths[0]) if first else None,
        )
    for row in table.rows:
        grid.add_row(
            *(Text(row[position], table.styles.get(row[position], PLAIN)) for position in kept)
        )
    return (
        Group(grid, Text(f"and {table.hidden_rows:,} more", FAINT)) if table.hidden_rows else grid
    )
