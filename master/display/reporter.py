"""Reporter: shows a run while it trains, in a view and in files."""

from __future__ import annotations

import logging
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from es_queue.config.run_config import RunConfig
from master.display.log_view import JsonView, LogView, QuietView, RunView, SafeStream
from master.status.figures import Record, finite_or_none
from master.storage.metrics_files import METRICS, metrics_files, read_json_lines

LOGGER = logging.getLogger("es_queue.display")
#: The same sentence is not repeated sooner.
REPEAT_SECONDS = 30.0
#: This many generations in a row with equal returns cause a hint.
EQUAL_GENERATIONS = 10
EQUAL_RETURNS_HINT = (
    f"all returns were equal for {EQUAL_GENERATIONS} generations, so the parameters have not "
    "changed: rewards may be too rare, --sigma may be too small to change an action, episodes may "
    "end too early, or every individual already reaches the highest return"
)
#: The end of a resumed run's metrics.jsonl for its view.
HISTORY_LINES, HISTORY_BYTES = 50_000, 4 * 2**20
#: Limit of remembered sentences, so that many different ones do not fill the memory.
MOST_REMEMBERED = 1000
#: Figures of a record that its generation has only if it was trained.
TRAINING_FIGURES = (
    *(f"return_{name}" for name in ("mean", "median", "std", "min", "max")),
    *(f"fitness_{name}" for name in ("mean", "std", "max")),
    *("length_mean", "cut_fraction"),
)
#: Between a program that calls ``train`` and the place of a note.
OWN_MODULES = {"es_queue", "master", "workers", "logging", "contextlib", "functools"}


class Reporter(RunView):
    """The output of a run: a view of it, the files in its folder, and trackers, which all get the
    same figures. For one thread. No method raises because of its arguments, or without a reader.
    """

    def __init__(
        self,
        run_dir: Path,
        view: RunView,
        *,
        trackers: Sequence[RunView] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run_dir, self._view, self._clock = run_dir, view, clock
        self._sinks = (*metrics_files(run_dir), *trackers, view)
        self._last_noted: dict[str, float] = {}
        self._equal_generations = 0

    def started(self, about: Mapping[str, str]) -> None:
        """The view of a resumed run gets its history."""
        for sink in self._sinks:
            sink.started(about)
        with suppress(OSError):
            records = read_json_lines(self._run_dir / METRICS, HISTORY_LINES, HISTORY_BYTES)
            self._view.resumed(list(records))

    def generation(self, record: Record) -> None:
        for sink in self._sinks:
            sink.generation(record)
        deviation = finite_or_none(record.get("return_std"))
        if deviation is not None:  # something was trained
            best, target = map(finite_or_none, (record.get("return_mean"), record.get("target")))
            is_solved = best is not None and target is not None and best >= target
            is_equal = deviation == 0 and not is_solved
            self._equal_generations = self._equal_generations + 1 if is_equal else 0
            if self._equal_generations == EQUAL_GENERATIONS:
                LOGGER.warning(EQUAL_RETURNS_HINT)

    def live(self, figures: Record) -> None:
        self._view.live(figures)

    def note(self, text: str) -> None:
        """A sentence for people, unless it was shown within the last 30 seconds."""
        now = self._clock()
        if now - self._last_noted.get(text, -REPEAT_SECONDS) < REPEAT_SECONDS:
            return
        if len(self._last_noted) >= MOST_REMEMBERED:
            self._last_noted.clear()
        self._last_noted[text] = now
        self._view.note(text)

    def summary(self, record: Record) -> None:
        for sink in self._sinks:
            sink.summary(record)

    def close(self) -> None:
        """Restore the terminal and close the files; it can be called again."""
        for sink in reversed(self._sinks):
            sink.close()


class Callback(RunView):
    """Calls a user's function with the figures of each generation.

    keeps_going: False once the function has returned False; it is not called again. The last
    generation of a run is only evaluated: its record repeats the training figures of the one before
    """

    def __init__(self, function: Callable[[Record], bool | None]) -> None:
        self._function, self.keeps_going = function, True
        self._trained: Record = {}

    def generation(self, record: Record) -> None:
        if finite_or_none(record.get("return_mean")) is not None:
            self._trained = {name: record[name] for name in TRAINING_FIGURES if name in record}
        if self.keeps_going:
            self.keeps_going = self._function({**record, **self._trained}) is not False


class WarningView(RunView):
    """Notes become warnings at the line of the user's program."""

    def note(self, text: str) -> None:
        frame, level = sys._getframe(), 1
        while frame.f_back and frame.f_globals["__name__"].partition(".")[0] in OWN_MODULES:
            frame, level = frame.f_back, level + 1
        warnings.warn(text, stacklevel=level)


def make_view(
    out: SafeStream,
    run: str,
    config: RunConfig,
    *,
    quiet: bool = False,
    json_lines: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> RunView:
    if json_lines:
        return JsonView(out, run, quiet)
    if quiet:
        return QuietView(out, config)
    if not out.is_terminal and not is_notebook():
        return LogView(out, run, config, clock)
    # start-up: rich, which logs do not need
    from master.display.panel import LiveView, NotebookView

    return NotebookView(out, run, config) if is_notebook() else LiveView(out, run, config, clock)


def is_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")
