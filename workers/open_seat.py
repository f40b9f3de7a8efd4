"""The start of a seat, before numpy is loaded: opens the next seat, and counts crashed ones."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from es_queue.protocol.keys import PAUSED, RUNNING
from es_queue.protocol.timing import SUPERVISOR_PID
from es_queue.security.private_directory import host_private_directory
from es_queue.security.sanitize import sanitize

FORGET_SECONDS = 24 * 3600.0
MAX_TRACE = 4000
#: Letters of one line on the worker's terminal.
MAX_LINE = 2000


def open_next(client: Any, queue: str, run: str, nonce: str, timeout: int) -> str:
    """Open the next seat, while the run is running; if that fails, the master's SeatManager opens
    one.

    Returns why this worker should not take this seat; usually empty. Seats outlive a killed
    master, and would keep workers from live runs. A master takes its lease before it opens seats.
    """
    # start-up: redis
    from es_queue.protocol.connection import ANY_ERROR
    from es_queue.protocol.seats import open_seats, run_status

    try:
        state, led = run_status(client, run)
        if not led:
            has_ended = state not in (None, RUNNING, PAUSED)
            return f"the run is {state}" if has_ended else "the run has no master"
        if state == RUNNING:
            open_seats(client, queue, run, nonce, 1, timeout)
    except ANY_ERROR:
        return ""
    return ""


def print_line(run: str, text: str) -> None:
    """One line on the worker's terminal, without control characters, because ``text`` can come
    from Redis or a run's code.
    """
    with suppress(OSError, ValueError):  # nobody may be there to read it any more
        print(f"es-queue {run}: {sanitize(text, MAX_LINE)}", file=sys.stdout, flush=True)


def supervisor_of_local_worker() -> int | None:
    """The supervisor that started this local worker: the worker leaves if it is killed."""
    pid = os.environ.get(SUPERVISOR_PID, "")
    return int(pid) if pid.isdigit() else None


def is_horse() -> bool:
    """Whether RQ forked this process for the job. If so, SIGTERM has its default effect, and this
    process may end itself.
    """
    return signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


class CrashGuard:
    """Counts, per worker, seats that did not end cleanly; each makes the next one wait longer, up
    to a minute.
    """

    def __init__(self, name: str) -> None:
        safe = "".join(letter if letter.isalnum() else "_" for letter in name)[:80] or "worker"
        folder = host_private_directory()
        self._path = folder / f"{safe}.seat" if folder else None
        self._traces: TextIO | None = None  # open as long as the process may crash

    def begin_seat(self) -> float:
        """Note that a seat begins; returns seconds to wait first."""
        if self._path is None:
            return 0.0
        remove_stale_counts(self._path.parent)
        try:
            count = int(self._path.read_text()) if self._path.exists() else 0
            self._path.write_text(str(count + 1))
        except (OSError, ValueError):
            return 0.0
        return float(min(60, 2 ** (count - 1))) if count > 0 else 0.0

    def start_trace(self, run: str) -> str:
        """From now on, a crash of this process writes Python's traceback to a file. Returns the
        traceback that the last seat of ``run`` left there.
        """
        if self._path is None or faulthandler.is_enabled():
            return ""
        path, trace = self._path.with_suffix(".crash"), ""
        with suppress(OSError):
            if path.exists():
                owner, _, trace = path.read_text(errors="replace")[:MAX_TRACE].partition("\n")
                trace = trace if owner == run else ""
            self._traces = path.open("w")
            self._traces.write(f"{run}\n")
            self._traces.flush()
            faulthandler.enable(self._traces)
        return trace

    def end_seat(self) -> None:
        if self._path is not None:
            self._path.unlink(missing_ok=True)
            self._path.with_suffix(".crash").unlink(missing_ok=True)


def remove_stale_counts(folder: Path) -> None:
    """Remove the counts of workers that were killed long ago."""
    with suppress(OSError):
        for path in (*folder.glob("*.seat"), *folder.glob("*.crash")):
            if time.time() - path.stat().st_mtime > FORGET_SECONDS:
                path.unlink(missing_ok=True)
