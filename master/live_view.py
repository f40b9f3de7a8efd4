"""A run on a terminal: one small panel that is redrawn in place, with notes above it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from rich.console import RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from es_queue.config import RunConfig
from es_queue.episode_rules import parse_target
from master.console import SafeStream, started_lines
from master.panel import WIDEST, LivePanel
from master.wording import (
    Record,
    Value,
    bar,
    compact,
    duration,
    evaluation,
    expectation,
    finite,
    graph,
    mended,
    printable,
    progress_of,
    score,
    summary_lines,
    training_return,
    unperturbed,
    whole,
)

KEPT_EVALUATIONS = 4096
GRAPH_WIDTH = 40
BAR_WIDTH = 24


class LiveView(LivePanel):
    """One run's figures in the panel."""

    def __init__(self, out: SafeStream, run: str, config: RunConfig, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(out, clock)
        self._run, self._config = run, config
        self._began = clock()
        self._record: Record = {}
        self._figures: Record = {}
        self._trained: Record = {}
        self._evaluated: Record = {}
        self._evaluations: deque[float] = deque(maxlen=KEPT_EVALUATIONS)

    def started(self, about: Mapping[str, str]) -> None:
        for line in started_lines(self._run, self._config, about):
            self._print(line)

    def generation(self, record: Record) -> None:
        slots = self._figures.get("slots")
        self._figures = {"answered": slots, "slots": slots}
        self._remember(record)
        self._draw()

    def _remember(self, record: Record) -> None:
        self._record = record
        if finite(record.get("return_mean")) is not None:  # the last generation of a run is evaluated alone
            self._trained = record
        mean = finite(record.get("eval_mean"))
        if mean is not None:
            self._evaluated = record
            self._evaluations.append(mean)

    def recall(self, records: Sequence[Record]) -> None:
        """Generations of before this display began."""
        for record in records:
            self._remember(record)
        self._draw()

    def live(self, figures: Record) -> None:
        self._figures = figures
        self._draw()

    def note(self, text: str) -> None:
        self._print(text)

    def summary(self, record: Record) -> None:
        self.close()
        for line in summary_lines(record):
            self._print(line)

    def _panel(self) -> RenderableType:
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column(overflow="fold")
        for label, text in self._rows():
            if text:
                grid.add_row(Text(label), Text(text))
        title = Text(f"{self._run} · {printable(self._config.task, 60)} · {self._config.strategy}, {self._config.policy_name}")
        return Panel(grid, title=title, title_align="left", width=WIDEST, border_style="dim")

    def _rows(self) -> list[tuple[str, str]]:
        now: Mapping[str, Value] = {**self._record, **self._figures}
        steps = now.get("env_steps")
        speed = f"{progress_of(steps, self._config.max_steps)}, {whole(now.get('steps_per_second'))} a second"
        return [
            ("generation", self._generation(now)),
            ("steps", speed if steps is not None else ""),
            ("training", training_return(self._trained)),
            ("evaluation", self._evaluation()),
            ("", graph(list(self._evaluations), GRAPH_WIDTH)),
            ("unperturbed", unperturbed(self._trained.get("centre_rank"))),
            ("workers", self._workers(now)),
            ("slots", self._slots(now)),
            ("mended", mended(now)),
            ("expect", expectation(self._config, steps)),
        ]

    def _generation(self, now: Mapping[str, Value]) -> str:
        elapsed = duration(self._clock() - self._began)
        left = "" if finite(now.get("eta")) is None else f", about {duration(now['eta'])} left"
        number = progress_of(now.get("generation"), self._config.generations) if now.get("generation") is not None else "first"
        return f"{number}, running for {elapsed}{left}"

    def _evaluation(self) -> str:
        target = parse_target(self._config.target_reward)
        aim = "" if isinstance(target, str) else f"target {score(target)}"
        if not self._evaluated:
            due = f"every {self._config.eval_every} generations" if self._config.eval_every else "none before the end"
            return ", ".join(filter(None, (due, aim)))
        at = f"in generation {whole(self._evaluated.get('generation'))}"
        return ", ".join(filter(None, (f"{evaluation(self._evaluated)}", at, aim)))

    def _workers(self, now: Mapping[str, Value]) -> str:
        waiting = printable(now["waiting"], 120) if now.get("waiting") else ""
        if not finite(now.get("workers")):
            return f"none, {waiting or 'waiting for one to join'}"
        return ", ".join(filter(None, (whole(now["workers"]), waiting)))

    def _slots(self, now: Mapping[str, Value]) -> str:
        answered, slots = finite(now.get("answered")), finite(now.get("slots"))
        if answered is None or not slots:
            return ""
        return f"{bar(answered, slots, BAR_WIDTH)} {compact(answered)} of {compact(slots)} answered"
