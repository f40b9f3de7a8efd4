"""Starts, restarts and ends the runs of ``--seeds``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from es_queue.errors import RunFolderError
from es_queue.security.private_directory import no_link

POLL_SECONDS = 0.02

#: Runs before the real program: the kernel is to send SIGTERM (15) when the starter dies (1:
#: PR_SET_PDEATHSIG). A preexec_fn would do the same between fork and exec, where a process that has
#: threads can deadlock.
BIND_TO_PARENT = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 15);"
    "os.getppid() == int(sys.argv[1]) or sys.exit('the parent is gone'); os.execv(sys.argv[2], "
    "sys.argv[2:])"
)


def bind_to_parent(command: list[str]) -> list[str]:
    """The command, changed so that SIGTERM ends it with this process; ``command[0]`` is an absolute
    path.

    The kernel binds it to the thread that forks, so this needs the main thread of a Linux process;
    otherwise the command is returned unchanged.
    """
    if (
        not sys.platform.startswith("linux")
        or threading.current_thread() is not threading.main_thread()
    ):
        return command
    return [sys.executable, "-I", "-S", "-c", BIND_TO_PARENT, str(os.getpid()), *command]


def spawn_bound(
    what: str, command: list[str], log: Path, environment: dict[str, str], url: str, **options: Any
) -> subprocess.Popen[bytes]:
    """Start a command that ends with this process. It finds its server at ``url`` in its
    environment, because every user of the host can read a command line.

    what: its name in a sentence; options: of ``spawn``. Raises RunFolderError.
    """
    variables = {**environment, "RQ_REDIS_URL": url}
    try:
        return spawn(bind_to_parent(command), log, variables, **options)
    except OSError as error:
        raise RunFolderError(f"{what} cannot be started with the log {log}: {error}") from error


def spawn(
    command: Sequence[str],
    log: Path,
    environment: dict[str, str] | None = None,
    *,
    log_mode: str = "ab",
    stdout: int | None = None,
) -> subprocess.Popen[bytes]:
    """Start a command in a session of its own, which the terminal's Ctrl-C does not reach.

    Its output goes to ``log``, or only its errors if ``stdout`` is a pipe. Raises OSError.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, log_mode, opener=no_link) as file:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file if stdout is None else stdout,
            stderr=file,
            env=environment,
            start_new_session=True,
        )


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not (holds := condition()) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    return holds


def end_in_order(
    send: Callable[[signal.Signals], None],
    is_gone: Callable[[], bool],
    steps: Iterable[tuple[signal.Signals, float]],
) -> bool:
    """Send each signal, and wait so many seconds; returns whether the process is gone."""
    for number, seconds in steps:
        send(number)
        if wait_until(is_gone, seconds):
            return True
    return False


@dataclass
class RestartTimer:
    """Decides when a process that has ended is started again.

    backoff:    seconds to wait, by the number of failures in a row
    long_life:  seconds; a process that lived longer resets the count
    restart_at: when to start again, None for never (seconds, monotonic clock)
    """

    backoff: Sequence[float]
    long_life: float
    failures: int = 0
    started: float = 0.0
    restart_at: float | None = None

    @property
    def is_exhausted(self) -> bool:
        return self.failures >= len(self.backoff)

    def start(self) -> None:
        self.started, self.restart_at = time.monotonic(), None

    def end(self) -> None:
        if time.monotonic() - self.started > self.long_life:
            self.failures = 0

    def schedule(self) -> float:
        """Schedule the next start; returns the seconds until then."""
        seconds = self.backoff[min(self.failures, len(self.backoff) - 1)]
        self.failures += 1
        self.postpone(seconds)
        return seconds

    def postpone(self, seconds: float) -> None:
        self.restart_at = time.monotonic() + seconds

    def cancel(self) -> None:
        self.restart_at = None

    def is_due(self) -> bool:
        return self.restart_at is not None and time.monotonic() >= self.restart_at


def signal_name(number: int) -> str:
    with suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"
