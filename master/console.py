"""What a run prints where nothing can be redrawn: a log of lines, the end alone, or JSON; and the stream for it."""

from __future__ import annotations

import io
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TextIO

from es_queue.config import RunConfig
from master.wording import Record, Value, expectation, finite, generation_line, printable, summary_lines

#: A log has at most a line in so many seconds, evaluations and the ends apart.
LINE_SECONDS = 1.0
#: For terminals that lack the signs on the left; each as wide as what it stands for, or redrawing would go wrong.
PLAIN_SIGNS = dict(zip("▁▂▃▄▅▆▇█░", "_.-:=+*#.", strict=True)) | {"±": "~", "…": ".", "·": "-"}


class View(Protocol):
    """One way to show a run; the methods are Report's."""

    def started(self, about: Mapping[str, str]) -> None: ...
    def generation(self, record: Record) -> None: ...
    def recall(self, records: Sequence[Record]) -> None: ...
    def live(self, figures: Record) -> None: ...
    def note(self, text: str) -> None: ...
    def summary(self, record: Record) -> None: ...
    def close(self) -> None: ...


class SafeStream(io.TextIOBase):
    """A text stream that outlives its reader: a closed pipe makes it silent, a sign it cannot show becomes a plain one."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self._encoding = getattr(stream, "encoding", None) or "utf-8"

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding

    def isatty(self) -> bool:
        try:
            return self._stream is not None and self._stream.isatty()
        except ValueError:  # it was closed
            return False

    def write(self, text: str) -> int:
        if self._stream is not None:
            self._safely(self._stream.write, encodable(text, self._encoding))
        return len(text)

    def flush(self) -> None:
        if self._stream is not None:
            self._safely(self._stream.flush)

    def line(self, text: str) -> None:
        """Write one line, at once."""
        self.write(text + "\n")
        self.flush()

    def _safely(self, call: Callable[..., object], *arguments: str) -> None:
        try:
            call(*arguments)
        except BlockingIOError:
            pass  # the reader is slow and the stream does not wait: these words are lost, later ones may not be
        except (OSError, ValueError):  # nobody reads any more, the terminal is gone, or the stream was closed
            self._silence()

    @property
    def silent(self) -> bool:
        """Whether nobody reads any more: then nothing need be shown."""
        return self._stream is None

    def _silence(self) -> None:
        """Go quiet for good; what anyone else still prints there would fail when Python ends, so it goes nowhere."""
        stream, self._stream = self._stream, None
        try:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            try:
                os.dup2(nowhere, stream.fileno())  # type: ignore[union-attr]
            finally:
                os.close(nowhere)
        except (OSError, ValueError):
            pass


def encodable(text: str, encoding: str) -> str:
    """The text with plain signs for those that the encoding lacks."""
    try:
        text.encode(encoding)
        return text
    except UnicodeEncodeError:
        return "".join(one if _fits(one, encoding) else PLAIN_SIGNS.get(one, "?") for one in text)
    except LookupError:
        return text.encode("ascii", "replace").decode("ascii")


def _fits(sign: str, encoding: str) -> bool:
    try:
        sign.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def started_lines(run: str, config: RunConfig, about: Mapping[str, str]) -> list[str]:
    """Where everything of a run is, how to watch it and how to join it: commands stand whole on their lines."""
    what = f"{config.strategy} with a {config.policy_name} policy, population {config.population}"
    lines = [f"run {run}: {printable(config.task)}, {what}"]
    width = max([8, *(len(name) for name in about)]) + 2
    return lines + [f"  {printable(name):<{width}}{printable(text, 4096)}" for name, text in about.items()]


class LogView:
    """Plain lines: a generation a line, at most one a second, but always the first, the last and the evaluations."""

    def __init__(self, out: SafeStream, run: str, config: RunConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._out, self._run, self._config, self._clock = out, run, config, clock
        self._last = -LINE_SECONDS
        self._unshown: Record | None = None
        self._expected = ""

    def started(self, about: Mapping[str, str]) -> None:
        for line in started_lines(self._run, self._config, about):
            self._out.line(line)

    def generation(self, record: Record) -> None:
        now = self._clock()
        evaluated = finite(record.get("eval_mean")) is not None or finite(record.get("confirm_mean")) is not None
        if not evaluated and self._last + LINE_SECONDS > now >= self._last:
            self._unshown = record
            return
        self._last = now
        self._show(record)

    def recall(self, records: Sequence[Record]) -> None:
        for record in records[-1:]:
            self.generation(record)

    def live(self, figures: Record) -> None:
        """A log has no place for what will have changed in a second."""

    def note(self, text: str) -> None:
        self._out.line(text)

    def summary(self, record: Record) -> None:
        self._show_unshown()
        for line in summary_lines(record):
            self._out.line(line)

    def close(self) -> None:
        self._show_unshown()

    def _show_unshown(self) -> None:
        if self._unshown is not None:
            self._show(self._unshown)

    def _show(self, record: Record) -> None:
        self._unshown = None
        expected = expectation(self._config, record.get("env_steps"))
        if expected != self._expected:
            self._out.line(f"expect {expected}")
            self._expected = expected
        self._out.line(generation_line(record, self._config))


class QuietView:
    """Warnings and the end alone."""

    def __init__(self, out: SafeStream) -> None:
        self._out = out

    def started(self, about: Mapping[str, str]) -> None:
        """Nothing: it is no warning."""

    def generation(self, record: Record) -> None:
        """Nothing: it is no warning."""

    def recall(self, records: Sequence[Record]) -> None:
        """Nothing: it is no warning."""

    def live(self, figures: Record) -> None:
        """Nothing: it is no warning."""

    def note(self, text: str) -> None:
        self._out.line(text)

    def summary(self, record: Record) -> None:
        for line in summary_lines(record):
            self._out.line(line)

    def close(self) -> None:
        """There is nothing to put away."""


class JsonView:
    """JSON objects, one a line; ``quiet`` leaves out all but notes and the summary."""

    def __init__(self, out: SafeStream, run: str, quiet: bool) -> None:
        self._out, self._run, self._quiet = out, run, quiet

    def started(self, about: Mapping[str, str]) -> None:
        if not self._quiet:
            self._emit("started", {"run": self._run, **about})

    def generation(self, record: Record) -> None:
        if not self._quiet:
            self._emit("generation", record)

    def recall(self, records: Sequence[Record]) -> None:
        """A program can read the past from Redis or the metrics file."""

    def live(self, figures: Record) -> None:
        """What a program wants between generations it can read from Redis."""

    def note(self, text: str) -> None:
        self._emit("note", {"text": text})

    def summary(self, record: Record) -> None:
        self._emit("summary", record)

    def close(self) -> None:
        """There is nothing to put away."""

    def _emit(self, event: str, record: Mapping[str, Value]) -> None:
        self._out.line(json_line({"event": event, **record}))


def json_line(record: Mapping[str, Value]) -> str:
    """One JSON object in ASCII on one line; what is no finite number is null."""
    sound = {name: None if isinstance(value, float) and finite(value) is None else value for name, value in record.items()}
    return json.dumps(sound, default=_plain, allow_nan=False)


def _plain(value: object) -> Value:
    """A number of numpy's as Python's, with its own NaN made null; anything else as text."""
    try:
        number = value.item()  # type: ignore[attr-defined]
    except (AttributeError, ValueError):
        return str(value)
    return None if isinstance(number, float) and finite(number) is None else number
