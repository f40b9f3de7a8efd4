"""Tables and live views on a terminal, drawn by rich."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TextIO, cast

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderableType, RenderResult
from rich.live import Live
from rich.panel import Panel
from rich.table import Column, Table
from rich.text import Text

from master.display.log_view import SafeStream

#: The shortest time between redraws; data may come faster.
DRAW_SECONDS = 0.2
#: A narrower terminal narrows the panel.
MOST_WIDTH = 120
#: Spaces between the columns of a table.
COLUMN_GAP = 2
#: A table without lines.
PLAIN: dict[str, Any] = {
    "box": None,
    "header_style": "dim",
    "pad_edge": False,
    "padding": (0, COLUMN_GAP, 0, 0),
}
#: The last column of a table shrinks to this width before a column is omitted.
LEAST_COLUMN_WIDTH = 12


def make_console(out: SafeStream) -> Console:
    return Console(
        file=cast(TextIO, out), force_terminal=True, highlight=False, markup=False, emoji=False
    )


class FittingTable(Table):
    """A table without lines that omits columns if the terminal is too narrow. Its first column is
    never cut.

    Args:
        rows: Cells without their own style have the ``styles`` of their text.
        right: Headers of right-aligned columns.
        expendable: Headers of columns that may be omitted, in that order.
    """

    def __init__(
        self,
        headers: Sequence[str],
        rows: Sequence[Sequence[str | Text]],
        right: Collection[str],
        expendable: Sequence[str],
        styles: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(**PLAIN)
        self._expendable = [headers.index(header) for header in expendable]
        for place, header in enumerate(headers, 1):
            # rich narrows the column that may wrap, and cuts texts that may not.
            side: JustifyMethod = "right" if header in right else "left"
            self.add_column(Text(header), justify=side, no_wrap=place < len(headers))
        for row in rows:
            self.add_row(*(make_cell(cell, styles) for cell in row))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = self._fitting_columns(options.max_width)
        name_width = min(column_width(columns[0]), options.max_width)
        first = replace(columns[0].copy(), min_width=name_width)
        table = Table(first, *(column.copy() for column in columns[1:]), **PLAIN)
        for row in zip(*(column.cells for column in columns), strict=True):
            table.add_row(*row)
        yield table

    def _fitting_columns(self, width: int) -> list[Column]:
        widths = [column_width(column) for column in self.columns]
        if len(widths) > 1:
            widths[-1] = min(widths[-1], LEAST_COLUMN_WIDTH)
        kept = list(range(len(widths)))
        for place in self._expendable:
            if sum(widths[kept_place] + COLUMN_GAP for kept_place in kept) - COLUMN_GAP <= width:
                break
            kept.remove(place)
        return [self.columns[place] for place in kept]


def make_cell(cell: str | Text, styles: Mapping[str, str]) -> Text:
    if isinstance(cell, Text):
        return cell
    return Text(cell, styles.get(cell, ""), no_wrap=True, overflow="ellipsis")


def column_width(column: Column) -> int:
    return max(cell_len(str(text)) for text in (column.header, *column.cells))


def make_fields(rows: Iterable[tuple[str, Text]], width: int) -> Table:
    fields = Table.grid()
    fields.add_column(style="dim", no_wrap=True, width=width)
    fields.add_column(overflow="fold")
    for label, text in rows:
        fields.add_row(Text(label), text)
    return fields


def format_plain_table(table: Table) -> Iterator[str]:
    """A table as lines for files and other programs: not cut, wrapped or coloured."""
    columns = [
        [str(text) for text in ([column.header] if table.show_header else []) + [*column.cells]]
        for column in table.columns
    ]
    sides = [">" if column.justify == "right" else "<" for column in table.columns]
    widths = [
        column.width or max(map(len, texts), default=0)
        for column, texts in zip(table.columns, columns, strict=True)
    ]
    gap = " " * table.padding[1]
    for row in zip(*columns, strict=True):
        cells = zip(row, sides, widths, strict=True)
        yield gap.join(f"{text:{side}{width}}" for text, side, width in cells).rstrip()


def make_panel(content: RenderableType, title: str) -> Panel:
    return Panel(
        content, title=Text(title), title_align="left", width=MOST_WIDTH, border_style="dim"
    )


class LivePanel:
    """A panel at the end of a terminal that is redrawn in place, with lines above it.

    It draws only in the caller's thread. ``render`` returns its content; ``clock`` returns
    monotonic seconds.
    """

    def __init__(
        self,
        out: SafeStream,
        render: Callable[[], RenderableType],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._render, self._clock = render, clock
        self._last_drawn = -DRAW_SECONDS
        self._console = make_console(out)
        self._live = Live(
            console=self._console,
            auto_refresh=False,
            vertical_overflow="crop",
            # Other output would tear the panel in a terminal; a file gets it unchanged.
            redirect_stdout=sys.stdout is not None and sys.stdout.isatty(),
            redirect_stderr=sys.stderr is not None and sys.stderr.isatty(),
        )

    @property
    def width(self) -> int:
        return self._console.width

    @property
    def height(self) -> int:
        return self._console.height

    def print_line(self, line: str) -> None:
        # Not wrapped here: a command that the terminal wraps can still be copied whole.
        self._console.print(Text(line), soft_wrap=True)

    def draw(self) -> None:
        now = self._clock()
        if now - self._last_drawn < DRAW_SECONDS:
            return
        self._last_drawn = now
        self._live.start()
        self._live.update(self._render(), refresh=True)

    def close(self) -> None:
        if self._live.is_started:
            self._live.update(self._render())
            self._live.stop()
