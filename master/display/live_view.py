"""A run on a terminal: one small panel that is redrawn in place, with notes above it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from rich.panel import Panel
from rich.text import Text

from es_queue.config.episode_rules import parse_target
from es_queue.config.run_config import RunConfig
from es_queue.security.sanitize import sanitize
from master.display.format import (
    Record,
    Value,
    finite_or_none,
    format_bar,
    format_compact,
    format_duration,
    format_evaluation,
    format_expectation,
    format_graph,
    format_progress,
    format_recoveries,
    format_score,
    format_summary,
    format_training_return,
    format_unperturbed,
    format_whole,
)
from master.display.log_view import DisplayView, GenerationPace, SafeStream, format_start
from master.display.terminal import LivePanel, make_fields, make_panel

MOST_EVALUATIONS = 4096
GRAPH_WIDTH = 44
BAR_WIDTH = 24


class LiveView(DisplayView):
    def __init__(
        self,
        out: SafeStream,
        run: str,
        config: RunConfig,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._run, self._config = run, config
        self._start_time, self._generation_pace = clock(), GenerationPace(clock)
        self._record: Record = {}
        self._figures: Record = {}
        self._last_trained: Record = {}
        self._last_evaluated: Record = {}
        self._evaluations: deque[tuple[float, float]] = deque(maxlen=MOST_EVALUATIONS)
        self._panel = LivePanel(out, self._render, clock)

    def started(self, about: Mapping[str, str]) -> None:
        for line in format_start(self._run, self._config, about, self._panel.width):
            self._panel.print_line(line)

    def resumed(self, records: Sequence[Record]) -> None:
        for record in records:
            self._store_record({**record, "eta": None, "workers": None})
        self._start_time -= max(0.0, finite_or_none(self._record.get("seconds")) or 0.0)

    def generation(self, record: Record) -> None:
        slots = self._figures.get("slots")
        self._figures = {"answered": slots, "slots": slots}
        self._generation_pace.begin()
        self._store_record(record)
        self._panel.draw()

    def _store_record(self, record: Record) -> None:
        self._record = record
        # the last generation of a run is only evaluated
        if finite_or_none(record.get("return_mean")) is not None:
            self._last_trained = record
        mean = finite_or_none(record.get("eval_mean"))
        if mean is not None:
            number = finite_or_none(record.get("generation")) or 0.0
            while self._evaluations and self._evaluations[-1][0] >= number:
                self._evaluations.pop()  # a run that resumed from an older checkpoint repeats some
            self._last_evaluated = record
            self._evaluations.append((number, mean))

    def live(self, figures: Record) -> None:
        self._figures = figures
        self._panel.draw()

    def note(self, text: str) -> None:
        self._panel.print_line(text)

    def summary(self, record: Record) -> None:
        self.close()
        for line in format_summary(record, self._config):
            self._panel.print_line(line)

    def close(self) -> None:
        self._panel.close()

    def _render(self) -> Panel:
        rows = [(label, Text(text)) for label, text in self._rows() if text]
        return make_panel(
            make_fields(rows, max(len(label) for label, _ in rows) + 2),
            f"{self._run} · {sanitize(self._config.task, 60)} · {self._config.strategy}, "
            f"{self._config.policy_name}",
        )

    def _rows(self) -> list[tuple[str, str]]:
        now: Mapping[str, Value] = {**self._record, **self._figures}
        steps = now.get("env_steps")
        speed = (
            f"{format_progress(steps, self._config.max_steps)}, "
            f"{format_whole(now.get('steps_per_second'))} per second"
        )
        return [
            ("generation", self._generation(now)),
            ("steps", speed if steps is not None else ""),
            ("training", format_training_return(self._last_trained)),
            ("evaluation", self._evaluation()),
            ("", format_graph([mean for _, mean in self._evaluations], GRAPH_WIDTH)),
            ("unperturbed", format_unperturbed(self._last_trained)),
            ("workers", self._workers(now)),
            ("slots", self._slots(now)),
            ("recovered", format_recoveries(now)),
            ("expect", format_expectation(self._config, steps)),
        ]

    def _generation(self, now: Mapping[str, Value]) -> str:
        elapsed = format_duration(self._clock() - self._start_time)
        left = (
            self._generation_pace.format_steady_left(self._figures)
            if finite_or_none(now.get("eta")) is None
            else f"about {format_duration(now['eta'])} left"
        )
        number = (
            format_progress(now.get("generation"), self._config.generations)
            if now.get("generation") is not None
            else "first"
        )
        return ", ".join(filter(None, (number, f"running for {elapsed}", left)))

    def _evaluation(self) -> str:
        target = parse_target(self._config.target_reward)
        target_text = "" if isinstance(target, str) else f"target {format_score(target)}"
        if not self._last_evaluated:
            every = self._config.eval_every
            interval = f"every {every} generations" if every else "none before the end"
            interval = "every generation" if every == 1 else interval
            return ", ".join(filter(None, (interval, target_text)))
        at = f"in generation {format_whole(self._last_evaluated.get('generation'))}"
        return ", ".join(
            filter(None, (f"{format_evaluation(self._last_evaluated)}", at, target_text))
        )

    def _workers(self, now: Mapping[str, Value]) -> str:
        waiting = sanitize(now["waiting"], 120) if now.get("waiting") else ""
        if not finite_or_none(now.get("workers")):
            return f"none, {waiting or 'waiting for one to join'}"
        busy = finite_or_none(now.get("busy"))
        share = "" if busy is None else f"{format_whole(busy)} busy on average"
        return ", ".join(filter(None, (format_whole(now["workers"]), share, waiting)))

    def _slots(self, now: Mapping[str, Value]) -> str:
        answered, slots = finite_or_none(now.get("answered")), finite_or_none(now.get("slots"))
        if answered is None or not slots:
            return ""
        return (
            f"{format_bar(answered, slots, BAR_WIDTH)} {format_compact(answered)} of "
            f"{format_compact(slots)} results"
        )
