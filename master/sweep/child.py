"""One es-master of a study: a child process, its JSON events and its log file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from es_queue.security.passwords import environment_without_redis
from es_queue.security.private_directory import read_end
from es_queue.security.sanitize import sanitize
from master.services.child_process import module_command, spawn_bound

READ_BYTES = 2**16
#: A longer line is none of es-master's and is left out.
LONGEST_LINE = 2**20
LONGEST_TAIL = 4096


class ChildMaster:
    """``es-master`` with ``words``, told its server by ``url`` in the environment; complaints go to
    the file ``log``.

    Start it from the main thread, so that it ends in order with this process (SIGTERM by the
    kernel, on Linux). It runs in a session of its own: the terminal's Ctrl-C reaches it only as we
    forward it. Raises RunFolderError.
    """

    def __init__(self, words: Sequence[str], url: str, log: Path) -> None:
        self._log = log
        self._process = spawn_bound(
            "the es-master of a seed",
            module_command("master.cli.main", *words),
            log,
            environment_without_redis(os.environ),
            url,
            log_mode="wb",
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        self._out = self._process.stdout.fileno()
        os.set_blocking(self._out, False)
        self._lines = JsonLineParser()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def output(self) -> int:
        """A descriptor that can be read when there is something to hear."""
        return self._out

    def read_events(self) -> list[dict[str, Any]]:
        """The events that came since the last call; never waits."""
        events: list[dict[str, Any]] = []
        with suppress(BlockingIOError):
            while piece := os.read(self._out, READ_BYTES):
                events += self._lines.feed(piece)
        return events

    def poll(self) -> int | None:
        """The exit code, minus the signal's number for one that was killed; None while it runs.
        Hear once more after it.
        """
        return self._process.poll()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def close(self) -> None:
        """Let go of its output."""
        assert self._process.stdout is not None
        self._process.stdout.close()

    def last_error_line(self) -> str:
        """The last line of its complaints, fit for a terminal; empty for none."""
        try:
            lines = read_end(self._log, LONGEST_TAIL).decode(errors="replace").strip().splitlines()
        except OSError:
            return ""
        return sanitize(lines[-1].removeprefix("es-master: ")) if lines else ""


class JsonLineParser:
    """Bytes into JSON objects, one a line; what is none, or is too long, is left out."""

    def __init__(self) -> None:
        self._rest = b""
        self._skipping = False

    def feed(self, piece: bytes) -> list[dict[str, Any]]:
        *whole, self._rest = (self._rest + piece).split(b"\n")
        if whole and self._skipping:
            self._skipping = False
            whole = whole[1:]
        if self._skipping or len(self._rest) > LONGEST_LINE:
            self._rest, self._skipping = b"", True
        return [event for line in whole if (event := _parse_event(line)) is not None]


def _parse_event(line: bytes) -> dict[str, Any] | None:
    try:
        event = (
            json.loads(line, parse_constant=_reject_constant) if len(line) <= LONGEST_LINE else None
        )
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) and isinstance(event.get("event"), str) else None


def _reject_constant(constant: str) -> Any:
    raise ValueError(constant)  # NaN and Infinity are Python's additions to JSON
