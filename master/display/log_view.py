"""Output of a run that cannot be redrawn: a log, only the end, or JSON; and its stream."""

from __future__ import annotations

import codecs
import io
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

from es_queue.command_line import discard_output, format_command
from es_queue.config.recipes import Expectation, expected_points, recipe_for
from es_queue.config.run_config import ASKED, RunConfig, every_setting
from es_queue.config.scaling import scaled
from es_queue.text import sanitize
from es_queue.user_code import named_modules
from master.status.figures import (
    EVALUATION,
    GENERATION,
    SPEED,
    STEPS_TAKEN,
    TRAINING,
    Record,
    Value,
    fill,
    finite_or_none,
    format_compact,
    format_duration,
    format_whole,
    format_workers,
)

#: A log has at most one line in this many seconds, plus evaluations, the first and the last.
LEAST_LINE_SECONDS = 1.0
#: While a generation is open, a log has at least one line in this many seconds.
MOST_SILENT_SECONDS = 30.0
#: Before this many seconds, a panel estimates a generation's duration only from this share of its
#: results.
LEAST_WAIT_SECONDS, LEAST_SHARE = 5.0, 0.1
#: A recipe's expectations apply only to its method.
METHOD_SETTINGS = ("strategy", "policy")
SUMMARY_FIELDS = (("digest", "digest"), ("last", "last_checkpoint"), ("best", "best_checkpoint"))
#: No line has more columns.
NO_LIMIT = 2**31
#: For terminals that lack the signs on the left.
ASCII_FALLBACKS = dict(zip("▁▂▃▄▅▆▇█░±…·✓▲✗", "_.-:=+*#.~.-+!x", strict=True))


class RunView:
    """What shows or records a run. Each method is an event, and does nothing by default."""

    def started(self, about: Mapping[str, str]) -> None:
        """about: labelled texts, such as the command to join."""

    def resumed(self, records: Sequence[Record]) -> None:
        """The newest records of the generations before a resume."""

    def generation(self, record: Record) -> None:
        """A generation has ended."""

    def live(self, figures: Record) -> None:
        """Changes between generations, about once per second: workers, answered, slots,
        steps_per_second, waiting (a few words, or None), and newer fields of a record.
        """

    def note(self, text: str) -> None:
        """A sentence for people."""

    def summary(self, record: Record) -> None:
        """The run has ended in order."""

    def close(self) -> None:
        """Nothing follows. It can be called again."""


class SafeStream(io.TextIOBase):
    """A text stream that outlives its reader: a closed pipe makes it silent, a sign that it cannot
    encode becomes a plain one.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self._encoding = getattr(stream, "encoding", None) or "utf-8"

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding

    @property
    def is_silent(self) -> bool:
        return self._stream is None

    def isatty(self) -> bool:
        try:
            return self._stream is not None and self._stream.isatty()
        except ValueError:  # it is closed
            return False

    @property
    def is_terminal(self) -> bool:
        """Whether text there can be redrawn in place."""
        return self.isatty() and os.environ.get("TERM", "") not in ("", "dumb", "unknown")

    def write(self, text: str) -> int:
        plain = text.encode(self._encoding, PLAIN_SIGNS).decode(self._encoding)
        self._call_safely("write", plain)
        return len(text)

    def flush(self) -> None:
        self._call_safely("flush")

    def write_line(self, text: str) -> None:
        self.write(text + "\n")
        self.flush()

    def _call_safely(self, method: str, *arguments: str) -> None:
        try:
            if self._stream is not None:
                getattr(self._stream, method)(*arguments)
        except BlockingIOError:
            pass  # a slow reader loses this text, but later text may arrive
        except (OSError, ValueError):  # no reader, terminal or open stream any more
            stream, self._stream = self._stream, None
            discard_output(stream)


def replace_signs(error: UnicodeError) -> tuple[str, int]:
    """Each as wide as the sign, or redrawing would fail."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    signs = error.object[error.start : error.end]
    return "".join(ASCII_FALLBACKS.get(sign, "?") for sign in signs), error.end


PLAIN_SIGNS = "es_queue.plain_signs"
codecs.register_error(PLAIN_SIGNS, replace_signs)


def format_start(
    run: str, config: RunConfig, about: Mapping[str, str], columns: int = NO_LIMIT
) -> list[str]:
    description = (
        f"{sanitize(config.problem)}, {config.strategy_name} with a {config.policy_name} policy, "
        f"population {scaled(config).population}"
    )
    return format_labelled(f"run {run}", description, about, columns)


def format_labelled(
    title: str, description: str, about: Mapping[str, str], columns: int = NO_LIMIT
) -> list[str]:
    """A title and labelled texts. A text longer than the columns is alone on an uncut line, so that
    a command can be copied.
    """
    head = f"{title}: {description}"
    lines = [head] if len(head) <= columns else [title, f"  {description}"]
    width = max([8, *(len(name) for name in about)]) + 2
    for name, text in about.items():
        line = f"  {sanitize(name):<{width}}{sanitize(text, 4096)}"
        fits = len(line) <= columns
        lines += [line] if fits else [f"  {sanitize(name)}", sanitize(text, 4096)]
    return lines


def recipe_points(config: Mapping[str, Any]) -> Sequence[Expectation]:
    """What the recipe's method has reached; none for a run of another method."""
    env = config.get("env")
    recipe = recipe_for(env) if isinstance(env, str) else {}
    is_recipes = isinstance(env, str) and all(
        config.get(name) == recipe.get(name, every_setting()[name].default)
        for name in METHOD_SETTINGS
    )
    return expected_points(str(env)) if is_recipes else ()


def format_expectation(config: RunConfig, env_steps: object) -> str:
    """Empty without a recipe, or with another method."""
    points = recipe_points({name: getattr(config, name) for name in ("env", *METHOD_SETTINGS)})
    if not points:
        return ""
    steps = finite_or_none(env_steps) or 0.0
    nearest = min(points, key=lambda point: abs(point.steps - steps))
    return f"evaluations near {format_compact(nearest.steps)} steps: {nearest.note}"


def format_generation(record: Mapping[str, Value], config: RunConfig) -> str:
    lines = {
        "training": fill(TRAINING, record),
        "evaluation": fill(EVALUATION, record),
        "speed": fill(SPEED, without_start(record)),
        "at_work": format_workers(record),
        "generations": config.generations,
        "max_steps": config.max_steps,
    }
    return fill(GENERATION, {**without_start(record), **lines})


def without_start(record: Mapping[str, Value]) -> Record:
    """Of a first generation, no speed and no time left: its seconds contain the start of the
    workers.
    """
    misleading = ("steps_per_second", "eval_steps_per_second", "eta")
    is_first = record.get("generation") == 0
    return {**record, **(dict.fromkeys(misleading) if is_first else {})}


def format_summary(record: Mapping[str, Value], config: RunConfig) -> list[str]:
    """The lines after a run; its own code, if it has any, is played only with --trust."""
    final = (
        "{eval_mean±eval_std} over {eval_episodes} fresh episodes, min {eval_min}[, {eval_info}]"
    )
    is_evaluated = finite_or_none(record.get("eval_mean")) is not None
    confirmed = fill("{confirm_mean} when the target was passed", record)
    rows: list[tuple[str, object]] = [
        ("steps", fill(STEPS_TAKEN, record)),
        ("evaluation", fill(final, record) or "none at the end; no figure here can be quoted"),
        ("confirming", confirmed if is_evaluated else ""),
        *((name, record.get(key)) for name, key in SUMMARY_FIELDS),
    ]
    best = record.get("best_checkpoint")
    if best and config.objective == ASKED:
        rows.append(("vector", f'es_queue.load_policy("{sanitize(best, 4096)}").vector'))
    elif best:
        trust = " --trust" if named_modules(config) else ""
        trust += " --export FILE.safetensors" if config.model else ""
        rows.append(("play it", f"{format_command('es-play')} {sanitize(best, 4096)}{trust}"))
    return [
        f"run {sanitize(record.get('run'))} {sanitize(record.get('state'))} after "
        f"{format_duration(record.get('seconds'))}: "
        f"{format_whole(record.get('generation'))} generations, "
        f"{format_whole(record.get('episodes'))} episodes",
        *(f"  {name:<12}{sanitize(text, 4096)}" for name, text in rows if text),
    ]


class GenerationPace:
    """The duration of the open generation, estimated from its first result on. Time without workers
    does not count.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.begin()

    def begin(self) -> None:
        self._start = self._clock()

    def estimate(self, figures: Record) -> float | None:
        """Seconds of the open generation; None before the first result."""
        done, slots = (finite_or_none(figures.get(name)) for name in ("answered", "slots"))
        if not figures.get("workers"):
            self.begin()
        if not done or not slots or done >= slots:
            return None
        return (self._clock() - self._start) * slots / done

    def format_left(self, figures: Record, *, is_steady: bool = False) -> str:
        """is_steady: empty in the first seconds, until a tenth of the results are there: workers
        that are starting delay the first results.
        """
        whole, elapsed = self.estimate(figures), self._clock() - self._start
        if whole is None or (is_steady and elapsed < min(LEAST_WAIT_SECONDS, LEAST_SHARE * whole)):
            return ""
        left = format_duration(whole - elapsed)
        return f"about {format_duration(whole)} per generation, {left} of this one left"


class QuietView(RunView):
    def __init__(self, out: SafeStream, config: RunConfig) -> None:
        self._out, self._config = out, config

    def note(self, text: str) -> None:
        self._out.write_line(text)

    def summary(self, record: Record) -> None:
        self._out.write_line("\n".join(format_summary(record, self._config)))


class LogView(QuietView):
    """Plain lines: one per generation and at most one per second, but always the first, the last
    and the evaluations, unless every generation has one. A long generation has a line every 30
    seconds.
    """

    def __init__(
        self,
        out: SafeStream,
        run: str,
        config: RunConfig,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(out, config)
        self._run, self._clock = run, clock
        self._last_time = -LEAST_LINE_SECONDS
        self._last_live, self._pace = clock(), GenerationPace(clock)
        self._pending: Record | None = None
        self._last_expectation = ""

    def started(self, about: Mapping[str, str]) -> None:
        self._out.write_line("\n".join(format_start(self._run, self._config, about)))

    def live(self, figures: Record) -> None:
        now = self._clock()
        left = self._pace.format_left(figures)  # its start is that of the first worker
        if now - self._last_live < MOST_SILENT_SECONDS:
            return
        self._last_live = now
        parts = (
            f"open generation {format_whole(figures.get('answered'))} of "
            f"{format_whole(figures.get('slots'))} results",
            format_workers(figures),
            sanitize(figures.get("waiting") or "", 120),
            left,
        )
        self._out.write_line(" | ".join(filter(None, parts)))

    def generation(self, record: Record) -> None:
        now = self._last_live = self._clock()
        self._pending = record
        self._pace.begin()
        evaluation = "confirm_mean" if self._config.eval_every == 1 else "eval_mean"
        is_evaluated = finite_or_none(record.get(evaluation)) is not None
        if is_evaluated or now - self._last_time >= LEAST_LINE_SECONDS:
            self._last_time = now
            self.close()

    def summary(self, record: Record) -> None:
        self.close()
        super().summary(record)

    def close(self) -> None:
        """Print the newest record, if that was omitted."""
        record, self._pending = self._pending, None
        if record is None:
            return
        expected = format_expectation(self._config, record.get("env_steps"))
        if expected != self._last_expectation:
            self._out.write_line(f"expect {expected}")
            self._last_expectation = expected
        self._out.write_line(format_generation(record, self._config))


class JsonView(RunView):
    """JSON objects, one per line; ``quiet`` leaves only notes and the summary."""

    def __init__(self, out: SafeStream, run: str, quiet: bool) -> None:
        self._out, self._run, self._quiet = out, run, quiet

    def started(self, about: Mapping[str, str]) -> None:
        if not self._quiet:
            self._write_event("started", {"run": self._run, **about})

    def generation(self, record: Record) -> None:
        if not self._quiet:
            self._write_event("generation", record)

    def note(self, text: str) -> None:
        self._write_event("note", {"text": text})

    def summary(self, record: Record) -> None:
        self._write_event("summary", record)

    def _write_event(self, event: str, record: Mapping[str, Value]) -> None:
        self._out.write_line(format_json_line({"event": event, **record}))


def format_json_line(record: Mapping[str, Value]) -> str:
    """One JSON object in ASCII on one line; a number that is not finite is null."""
    sound = {
        name: None if isinstance(value, float) and finite_or_none(value) is None else value
        for name, value in record.items()
    }
    return json.dumps(sound, default=_to_plain_value, allow_nan=False)


def _to_plain_value(value: object) -> Value:
    """A number of numpy as Python's, NaN as None; anything else as text."""
    try:
        number = value.item()  # type: ignore[attr-defined]
    except (AttributeError, ValueError):
        return str(value)
    return None if isinstance(number, float) and finite_or_none(number) is None else number
