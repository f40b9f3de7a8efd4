"""Reporter: shows a run while it trains, in a view and in files."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from es_queue.config.run_config import RunConfig
from master.display.format import Record, finite_or_none
from master.display.log_view import DisplayView, JsonView, LogView, QuietView, SafeStream
from master.storage.metrics_files import METRICS, LineFile, metrics_files, read_json_lines

if TYPE_CHECKING:
    from master.storage.trackers import Tracker

LOGGER = logging.getLogger("es_queue.display")
#: The same sentence is not repeated sooner.
REPEAT_SECONDS = 30.0
#: This many generations in a row with equal returns cause a hint.
EQUAL_GENERATIONS = 10
EQUAL_RETURNS_HINT = (
    f"all returns were equal for {EQUAL_GENERATIONS} generations, so nothing was learnt: rewards "
    "may be too rare, --sigma may be too small to change an action, episodes may end too early, "
    "or every individual already reaches the highest return"
)
#: The end of a resumed run's metrics.jsonl for its view.
HISTORY_LINES, HISTORY_BYTES = 50_000, 4 * 2**20
#: Limit of remembered sentences, so that many different ones do not fill the memory.
MOST_REMEMBERED = 1000


class Reporter:
    """The output of a run: a view of it, and the files in its folder. For one thread. No method
    raises because of its arguments, or without a reader.

    trackers: experiment trackers that get the same figures
    """

    def __init__(
        self,
        run_dir: Path,
        view: DisplayView,
        *,
        trackers: Sequence[Tracker] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run_dir, self._view, self._clock = run_dir, view, clock
        self._trackers = trackers
        self._files: list[LineFile | Tracker] = [*metrics_files(run_dir), *trackers]
        self._last_noted: dict[str, float] = {}
        self._equal_generations = 0

    def started(self, about: dict[str, str]) -> None:
        """The view of a resumed run gets its history."""
        self._view.started(about)
        with suppress(OSError):
            records = read_json_lines(self._run_dir / METRICS, HISTORY_LINES, HISTORY_BYTES)
            self._view.resumed(list(records))

    def generation(self, record: Record) -> None:
        warn([file.append(record) for file in self._files])
        self._view.generation(record)
        self._note_equal_returns(record)

    def live(self, figures: Record) -> None:
        """Changes between generations, about once per second; only for a live terminal.

        figures: workers, answered, slots, steps_per_second, waiting (a few words, or None), and
        newer fields of a generation's record.
        """
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
        warn([tracker.summary(record) for tracker in self._trackers])
        self._view.summary(record)

    def close(self) -> None:
        """Restore the terminal and close the files; it can be called again."""
        self._view.close()
        warn([file.close() for file in self._files])

    def _note_equal_returns(self, record: Record) -> None:
        deviation = finite_or_none(record.get("return_std"))
        if deviation is None:  # nothing was trained
            return
        self._equal_generations = self._equal_generations + 1 if deviation == 0 else 0
        if self._equal_generations == EQUAL_GENERATIONS:
            LOGGER.warning(EQUAL_RETURNS_HINT)


def warn(troubles: Iterable[str]) -> None:
    for trouble in filter(None, troubles):
        LOGGER.warning(trouble)


def make_view(
    out: SafeStream,
    run: str,
    config: RunConfig,
    *,
    quiet: bool = False,
    json_lines: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> DisplayView:
    if json_lines:
        return JsonView(out, run, quiet)
    if quiet:
        return QuietView(out, config)
    if out.is_terminal:
        # start-up: rich, which logs do not need
        from master.display.terminal import LiveView

        return LiveView(out, run, config, clock)
    return LogView(out, run, config, clock)
