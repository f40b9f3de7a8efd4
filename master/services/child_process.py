"""Starts, watches, restarts and ends es-master's own processes: private server, local workers,
supervisor, and the runs of ``--seeds``.
"""

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
from es_queue.files import read_end
from es_queue.security.private_directory import no_link
from es_queue.util.file_lock import is_locked, read_pid, write_pid

POLL_SECONDS = 0.02
REAP_SECONDS = 10.0
LOG_BYTES = 16 * 1024

#: Runs before the real program: the kernel is to send SIGTERM (15) when the starter dies (1:
#: PR_SET_PDEATHSIG). A preexec_fn would do the same between fork and exec, where a process that has
#: threads can deadlock.
BIND_TO_PARENT = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 15);"
    "os.getppid() == int(sys.argv[1]) or sys.exit('the parent is gone'); os.execv(sys.argv[2], "
    "sys.argv[2:])"
)

RUN_MODULE = (
    "import sys; home, module = sys.argv[1:3]; del sys.argv[1:3];"
    "home in sys.path or sys.path.insert(0, home);"
    "sys.exit(__import__(module, fromlist=['main']).main())"
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


def module_command(module: str, *words: str) -> list[str]:
    """The command that runs ``main`` of an es-queue module. With -P, packages of the current folder
    cannot replace es-queue's own, which need not be installed.
    """
    home = str(Path(__file__).resolve().parents[2])
    return [sys.executable, "-P", "-c", RUN_MODULE, home, module, *words]


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
    pass_fds: Sequence[int] = (),
    folder: Path | None = None,
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
            cwd=folder,
            pass_fds=pass_fds,
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


class LockedProcess:
    """A process that holds the lock of a file with its pid for its whole life.

    It is this process's child, or that of another process that has died. A pid can belong to a
    stranger; the lock shows that it does not.
    """

    def __init__(self, lock: Path) -> None:
        self._lock = lock
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_child(self) -> bool:
        return self._process is not None

    def start(
        self,
        lock: int,
        command: Sequence[str],
        log: Path,
        environment: dict[str, str] | None = None,
        folder: Path | None = None,
    ) -> None:
        """Start a command that inherits ``lock``, which is closed here. Raises OSError."""
        try:
            self._process = spawn(command, log, environment, pass_fds=[lock], folder=folder)
            write_pid(lock, self._process.pid)
        finally:
            os.close(lock)

    def exit_code(self) -> int | None:
        """The child's exit code; None while it runs, or if there is none."""
        return None if self._process is None else self._process.poll()

    def is_gone(self) -> bool:
        return not is_locked(self._lock)

    def reap(self) -> None:
        """Wait for the child, whose lock is free shortly before its exit code can be read."""
        if self._process is not None:
            self._process.wait(REAP_SECONDS)
            self._process = None

    def signal(self, number: signal.Signals) -> None:
        with suppress(OSError):
            if self._process is not None:
                self._process.send_signal(number)
            elif not self.is_gone() and (pid := self.read_pid()):
                os.kill(pid, number)

    def read_pid(self) -> int | None:
        return read_pid(self._lock)


def signal_name(number: int) -> str:
    with suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"


def log_tail(log: Path) -> str:
    lines: list[str] = []
    with suppress(OSError):
        lines = read_end(log, LOG_BYTES).decode(errors="replace").splitlines()
    return f"{log} ends: {' | '.join(lines[-3:])}" if lines else f"{log} is empty"
