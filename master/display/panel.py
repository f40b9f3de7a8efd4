"""Tables and panels on a terminal, drawn by rich; a run is one small panel, redrawn in place."""

from __future__ import annotations

import io
import re
import sys
import textwrap
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TextIO, cast

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from es_queue.config.run_config import RunConfig, parse_target
from es_queue.text import sanitize
from master.display.log_view import (
    GenerationPace,
    RunView,
    SafeStream,
    format_expectation,
    format_start,
    format_summary,
    without_start,
)
from master.status.curve import Series
from master.status.figures import (
    Record,
    figure_rows,
    fill,
    finite_or_none,
    format_bar,
    format_duration,
    format_results,
)

#: The shortest time between redraws; data may come faster.
DRAW_SECONDS = 0.2
#: A narrower terminal narrows the panel.
MOST_WIDTH, NO_LIMIT = 120, 100_000
#: Spaces between the columns of a table.
COLUMN_GAP = 2
#: The last column of a table shrinks to this width before a column is omitted.
LEAST_COLUMN_WIDTH = 12
BAR_WIDTH = 20
#: Figures of a record that hold only until the next one.
MOMENTARY = ("eta", "workers", "steps_per_second", "eval_steps_per_second")
#: A sentence with a command is not wrapped, so that it can be copied.
COMMAND = re.compile(r"\b(es-(master|status|play|plot|worker)|rq worker|pip install)\b")


def make_console(out: SafeStream) -> Console:
    return Console(
        file=cast(TextIO, out), force_terminal=True, highlight=False, markup=False, emoji=False
    )


@dataclass(frozen=True)
class FittingTable:
    """A table without lines that omits columns if the terminal is too narrow. Its first column is
    never cut, and its last one shrinks first.

    right: headers of right-aligned columns; expendable: those that may be omitted, in that order;
    styles: of cells, by their text; notes: what some headers mean, for a line below
    """

    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Collection[str]
    expendable: Sequence[str]
    styles: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = dict(zip(self.headers, zip(*self.rows, strict=True), strict=True))
        widths = {head: max(map(cell_len, (head, *cells))) for head, cells in columns.items()}
        first, last = self.headers[0], self.headers[-1]
        least = {**widths, last: min(widths[last], LEAST_COLUMN_WIDTH)} if first != last else widths
        for head in self.expendable:
            if sum(least[one] + COLUMN_GAP for one in columns) - COLUMN_GAP > options.max_width:
                columns.pop(head, None)
        table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, COLUMN_GAP, 0, 0))
        for head in columns:
            # rich narrows the column that may wrap, and cuts texts that may not.
            table.add_column(
                Text(head),
                justify="right" if head in self.right else "left",
                no_wrap=head != last,
                min_width=min(widths[head], options.max_width) if head == first else None,
            )
        for row in zip(*columns.values(), strict=True):
            styled = ((cell, self.styles.get(cell, "")) for cell in row)
            table.add_row(*(Text(*one, no_wrap=True, overflow="ellipsis") for one in styled))
        yield table
        if notes := "; ".join(text for head, text in self.notes.items() if head in columns):
            yield Text(f"\n{notes}", "dim")


def make_fields(rows: Iterable[tuple[str, Text]], width: int) -> Table:
    fields = Table.grid()
    fields.add_column(style="dim", no_wrap=True, width=width)
    fields.add_column(overflow="fold")
    for label, text in rows:
        fields.add_row(Text(label), text)
    return fields


def format_plain(parts: Iterable[RenderableType]) -> list[str]:
    """Lines for files and other programs: not cut, wrapped or coloured."""
    console = Console(file=io.StringIO(), width=NO_LIMIT, color_system=None, highlight=False)
    with console.capture() as capture:
        for part in parts:
            console.print(part, soft_wrap=isinstance(part, Text))
    return [line.rstrip() for line in capture.get().splitlines()]


class LiveView(RunView):
    """A panel at the end of a terminal that is redrawn in place, in the caller's thread only. Notes
    appear above it. ``clock`` returns monotonic seconds.
    """

    def __init__(
        self,
        out: SafeStream,
        run: str,
        config: RunConfig,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run, self._config, self._clock = run, config, clock
        self._start_time, self._pace = clock(), GenerationPace(clock)
        # The newest known figures, and those that change between records.
        self._record: Record = {"target": parse_target(config.target_reward)}
        self._figures: Record = {}
        self._evaluations = Series("eval_mean")
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

    def started(self, about: Mapping[str, str]) -> None:
        self._print_lines(format_start(self._run, self._config, about, self._console.width))

    def resumed(self, records: Sequence[Record]) -> None:
        for record in records:
            self._store_record({**record, "eta": None, "workers": None})
        self._start_time -= max(0.0, finite_or_none(self._record.get("seconds")) or 0.0)

    def generation(self, record: Record) -> None:
        about = {name: self._figures.get(name) for name in ("slots", "training_slots")}
        self._figures = {**about, "answered": about["slots"]}
        self._pace.begin()
        self._store_record(record)
        self._draw()

    def _store_record(self, record: Record) -> None:
        """The last generation of a run is only evaluated: its training figures are those of the one
        before.
        """
        known = {name: value for name, value in record.items() if value is not None}
        self._record |= {**dict.fromkeys(MOMENTARY), **without_start(known)}
        if finite_or_none(record.get("eval_mean")) is not None:
            self._evaluations.add(record)
            self._record["evaluated"] = record["generation"]

    def live(self, figures: Record) -> None:
        self._figures = figures
        self._draw()

    def note(self, text: str) -> None:
        width = max(40, self._console.width)
        lines = [text]
        if not COMMAND.search(text):  # a command is copied as it stands
            lines = [
                part
                for line in text.splitlines()
                for part in textwrap.wrap(line, width, break_long_words=False)
            ]
        self._print_lines(lines)

    def summary(self, record: Record) -> None:
        self.close()
        self._print_lines(format_summary(record, self._config))

    def close(self) -> None:
        if self._live.is_started:
            self._live.update(self._render())
            self._live.stop()

    def _draw(self) -> None:
        now = self._clock()
        if now - self._last_drawn >= DRAW_SECONDS:
            self._last_drawn = now
            self._show()

    def _show(self) -> None:
        self._live.start()
        self._live.update(self._render(), refresh=True)

    def _print_lines(self, lines: Iterable[str]) -> None:
        for line in lines:
            # Not wrapped here: a command that the terminal wraps can still be copied whole.
            self._console.print(Text(line), soft_wrap=True)

    def _render(self) -> Panel:
        config = self._config
        rows = [(label, Text(text)) for label, text in self._rows() if text]
        # Without room for the ^C that a terminal prints, the next panel would begin too low.
        width = min(MOST_WIDTH, self._console.width - len("^C"))
        method = f"{config.strategy_name}, {config.policy_name}"
        title = f"{self._run} · {sanitize(config.problem, 60)} · {method}"
        return Panel(
            make_fields(rows, max(len(label) for label, _ in rows) + 2),
            title=Text(sanitize(title, width - 6)),
            title_align="left",
            width=width,
            border_style="dim",
        )

    def _rows(self) -> list[tuple[str, str]]:
        config = self._config
        limits: Record = {"generations": config.generations, "max_steps": config.max_steps}
        waiting = sanitize(self._figures.get("waiting") or "", 120)
        now: Record = {**self._record, **self._figures, **limits, "waiting": waiting}
        left = fill("about {eta} left", now) or self._pace.format_left(now, is_steady=True)
        done, slots = finite_or_none(now.get("answered")), finite_or_none(now.get("slots"))
        bar = "" if done is None or not slots else format_bar(done, slots, BAR_WIDTH)
        running = f"running for {format_duration(self._clock() - self._start_time)}"
        generation = fill("{generation}[ of {generations?}]", now) or "first"
        means = [mean for _, mean in self._evaluations.points("generation")]
        rows = dict(figure_rows({**now, "aim": now["target"]}, means))
        if not rows["evaluation"]:
            often = f"every {config.eval_every} generations"
            every = ("none before the end", "every generation", often)[min(config.eval_every, 2)]
            rows["evaluation"] = every + fill(", target {target}", now)
        steps = fill("{env_steps}[ of {max_steps?}][ + {eval_steps?} in evaluations]", now)
        workers = fill("{workers?}[, {busy} busy on average][, {waiting}]", now)
        expected = format_expectation(config, now.get("env_steps"))
        return [
            ("generation", ", ".join(filter(None, (generation, running, left)))),
            ("steps", steps),
            *rows.items(),
            ("workers", workers or f"none, {waiting or 'waiting for one to join'}"),
            ("slots", bar and f"{bar} {format_results(done, slots, now.get('training_slots'))}"),
            ("expect", expected.removeprefix("evaluations ")),
        ]


class NotebookView(LiveView):
    """The panel as HTML in the cell of a notebook that runs now; the rest is printed there."""

    def __init__(self, out: SafeStream, run: str, config: RunConfig) -> None:
        super().__init__(out, run, config)
        # optional: a notebook has IPython
        from IPython.display import DisplayHandle, display

        self._out, self._display, self._handle = out, display, DisplayHandle()
        self._console = Console(file=io.StringIO(), record=True, width=100, force_jupyter=False)
        self._has_shown = False

    def _show(self) -> None:
        self._console.print(self._render())
        pre = '<pre style="line-height: 1.2; white-space: pre">{code}</pre>'
        page = self._console.export_html(clear=False, inline_styles=True, code_format=pre)
        bundle = {"text/html": page, "text/plain": self._console.export_text()}
        if self._has_shown:
            self._handle.update(bundle, raw=True)
        else:
            self._display(bundle, raw=True, display_id=self._handle.display_id)
        self._has_shown = True

    def _print_lines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._out.write_line(line)

    def close(self) -> None:
        if self._has_shown:
            self._show()
            self._has_shown = False
