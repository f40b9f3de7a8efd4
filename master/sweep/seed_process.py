"""The es-master of one seed: when it is restarted, and the meaning of its end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from es_queue.errors import EXIT_DONE, EXIT_INTERRUPTED, RedisError, RunBusyError
from es_queue.files import read_end
from es_queue.security.passwords import environment_without_redis
from es_queue.security.sanitize import sanitize
from master.processes import module_command
from master.services.child_process import RestartTimer, signal_name, spawn_bound
from master.sweep.record import FAILED, FINISHED, RUNNING, STOPPED, SeedRun
from master.sweep.view import SeedRow, shown_figures

#: Waits before an es-master that was killed is started again; the longest outlasts the lease of its
#: predecessor.
BACKOFF_SECONDS = (1.0, 4.0, 12.0)
#: The count of restarts begins at zero again after a process has run this long.
LONG_LIFE_SECONDS = 600.0
RESTARTING, STOPPING = "restarting", "stopping"
READ_BYTES = 2**16
#: A longer line is none of es-master's and is left out.
LONGEST_LINE = 2**20
LONGEST_TAIL = 4096


class ChildMaster:
    """``es-master`` with ``words``, with its server's ``url`` in the environment; its errors go to
    the file ``log``.

    Start it from the main thread, so that it ends in order with this process (by SIGTERM from the
    kernel, on Linux). It runs in its own session, so the terminal's Ctrl-C reaches it only through
    this process. Raises RunFolderError.
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
        return self._out

    def read_events(self) -> list[dict[str, Any]]:
        """Never waits."""
        events: list[dict[str, Any]] = []
        with suppress(BlockingIOError):
            while piece := os.read(self._out, READ_BYTES):
                events += self._lines.feed(piece)
        return events

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs. Then read events once more."""
        return self._process.poll()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def close(self) -> None:
        assert self._process.stdout is not None
        self._process.stdout.close()

    def last_error_line(self) -> str:
        """Safe for a terminal; may be empty."""
        try:
            lines = read_end(self._log, LONGEST_TAIL).decode(errors="replace").strip().splitlines()
        except OSError:
            return ""
        return sanitize(lines[-1].removeprefix("es-master: ")) if lines else ""


class JsonLineParser:
    """Parses bytes into JSON objects, one per line; invalid or too long lines are skipped."""

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


class SeedProcess:
    """One seed's part in a sweep.

    entry: its stored record; child: its es-master, None if none runs
    """

    def __init__(self, entry: SeedRun) -> None:
        self.entry = entry
        self.child: ChildMaster | None = None
        self._timer = RestartTimer(BACKOFF_SECONDS, LONG_LIFE_SECONDS)
        self._figures = shown_figures(entry.summary or {})
        self._has_joined = self._is_stopping = False

    @property
    def is_restarting(self) -> bool:
        return self._timer.restart_at is not None

    @property
    def is_active(self) -> bool:
        return self.child is not None or self.is_restarting

    @property
    def is_due(self) -> bool:
        return self._timer.is_due()

    @property
    def row(self) -> SeedRow:
        state = RESTARTING if self.is_restarting else self.entry.state
        if self.child is not None and self._is_stopping:
            state = STOPPING
        return SeedRow(self.entry.seed, state, self._figures)

    def start(self, words: Sequence[str], url: str, log: Path) -> None:
        """Start its es-master. Raises RunFolderError."""
        self.child = ChildMaster(words, url, log)
        self._timer.start()
        self._has_joined = False
        self.entry = replace(self.entry, begun=True, state=RUNNING)

    def postpone(self, seconds: float) -> None:
        self.entry = replace(self.entry, state=RUNNING)
        self._timer.postpone(seconds)

    def read_events(self) -> list[dict[str, Any]]:
        """Never waits."""
        events = [] if self.child is None else self.child.read_events()
        for event in events:
            match event["event"]:
                case "started":
                    self._has_joined = True
                case "generation":
                    self._figures = {**self._figures, **shown_figures(event)}
                case "summary":
                    summary = {name: value for name, value in event.items() if name != "event"}
                    self.entry = replace(self.entry, summary=summary)
        return events

    def stop(self) -> None:
        """Ask its es-master to end; one that waits for its restart is left alone."""
        if self.child is not None:
            self._is_stopping = True
            self.signal(signal.SIGTERM)
        elif self.is_restarting:
            self._timer.cancel()
            self.entry = replace(self.entry, state=STOPPED)

    def signal(self, number: signal.Signals) -> None:
        if self.child is not None:
            with suppress(OSError):
                self.child.signal(number)

    def end(self, code: int) -> str:
        """Returns a note or nothing."""
        child, self.child = self.child, None
        assert child is not None, "a run that ends has an es-master"
        child.close()
        self._timer.end()
        self.entry = replace(self.entry, code=code if code >= 0 else 128 - code)
        state = (self.entry.summary or {}).get("state")
        if code == EXIT_DONE and state in (FINISHED, STOPPED):
            self.entry = replace(self.entry, state=state)
        elif code == EXIT_INTERRUPTED or (code < 0 and self._is_stopping):
            self.entry = replace(self.entry, state=STOPPED)
        elif self._is_passing(code) and not self._timer.is_exhausted:
            pause = self._timer.schedule()
            return f"its es-master ended with code {self.entry.code} and restarts in {pause:.0f} s"
        else:
            killed = f"its es-master was killed by {signal_name(-code)}" if code < 0 else ""
            why = child.last_error_line() or killed
            self.entry = replace(self.entry, state=FAILED, why=why)
            return f"failed with exit code {self.entry.code}{': ' + why if why else ''}"
        return ""

    def _is_passing(self, code: int) -> bool:
        """Whether another start can help: it was killed, the lease of a killed one is still held,
        or Redis was away at the start.
        """
        is_busy = code == RunBusyError.exit_code and self._timer.failures > 0
        return code < 0 or is_busy or (code == RedisError.exit_code and not self._has_joined)
