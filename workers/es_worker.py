"""es-worker: the workers of this host, one per core, for every run of a Redis.

Its process looks for runs that train and have a master, and forks a process for each seat in one of
them. numpy is loaded before the fork, so a seat begins within milliseconds; nothing of a run's code
or memory reaches the next seat. It speaks no RQ and unpickles nothing. A free worker goes to the
run with the fewest workers. The seat is that of an RQ worker (``workers.serving.Seat``).
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import re
import select
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from es_queue.command_line import (
    PASSWORD_FILE_OPTION,
    CommandParser,
    add_options,
    add_version,
)
from es_queue.config.settings import COMMAND_LINE
from es_queue.credentials import token_from_environment
from es_queue.errors import EXIT_DONE, EXIT_INTERRUPTED, EsQueueError, RunFolderError, UsageError
from es_queue.host import checked_workers, default_workers, process_limit_hint
from es_queue.numerics.fingerprint import fix_numeric_environment
from es_queue.private_files import no_link
from es_queue.protocol import keys
from es_queue.protocol.connection import (
    ANY_ERROR,
    UnreachableError,
    client_from_url,
    first_line,
    is_outage,
    named_url,
    redacted_url,
    runs_in_training,
    validate_server,
)
from es_queue.protocol.keys import clocks_from_environment
from es_queue.text import sanitize
from workers.heartbeat import metrics_endpoint

EPILOG = """examples:
  es-worker --redis-url redis://host:6379           one worker per core, for every run there
  RQ_REDIS_URL="$(cat es-queue-url)" es-worker      a private server that listens (--listen)
  es-worker --redis-url redis://host --workers 2 gpu
                                                    two, for runs with --queue gpu

Workers wait while Redis is away, and one that ends is started again. Ctrl-C or SIGTERM ends them in
order: they hand back the work that they have not finished. A second one ends them at once."""

OPTIONS = f"""
queue QUEUE
    serve the runs of this queue, see es-master --queue [default: default]
--redis-url URL
    server of the runs; put a password in RQ_REDIS_URL, not here [default: RQ_REDIS_URL, then
    REDIS_URL]{PASSWORD_FILE_OPTION.format("")}--workers N
    number of workers [default: one per core of this host]
--max-seconds SECONDS
    end in order after this time [default: no limit]
--log-dir PATH
    folder for worker-1.log and so on [default: a temporary folder, removed at the end]
"""

LOOK_SECONDS = 0.5
#: Of the newest runs so many are looked at.
MOST_RUNS = 1000
#: How long a run counts a worker that was sent to it, before the master does.
SETTLE_SECONDS = 3.0
#: How long a worker stays away from a run, by the seats in a row that ended its process.
BACKOFF_SECONDS = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
#: A run that a worker left for another one gets that worker back only after this time.
AVOID_SECONDS = 3.0
REFUSED_SECONDS = 60.0
#: A seat that ended sooner than this did nothing, so the next one in that run waits as long.
SHORTEST_SECONDS = 1.0
#: Exit codes of a seat's process.
LEFT, GAVE_WAY, REFUSED = 0, 10, 11
STOP_SECONDS = 10.0
STOPPING = {signal.SIGTERM, signal.SIGINT}


def main(words: Sequence[str] | None = None) -> int:
    parser = CommandParser(
        "es-worker", "Run workers on this host, for all runs of a Redis.", epilog=EPILOG
    )
    add_options(parser, OPTIONS, queue={"nargs": "?", "default": "default"}, log_dir={"type": Path})
    add_version(parser)
    try:
        work_until_told(parser.parse_words(words))
    except EsQueueError as error:
        print(f"es-worker: {sanitize(error, 2000)}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:  # before the first worker
        return EXIT_INTERRUPTED
    return EXIT_DONE


def work_until_told(given: argparse.Namespace) -> None:
    is_given = given.workers is not None
    count = checked_workers(given.workers, COMMAND_LINE) if is_given else default_workers()
    if count == 0:
        raise UsageError("--workers is 0, so nothing would be done: use 1 or more")
    seconds = float("inf")
    if given.max_seconds is not None:
        with suppress(ValueError):
            seconds = float(given.max_seconds)
        if not 0 < seconds < float("inf"):
            raise UsageError(f"--max-seconds is {given.max_seconds[:40]}: use a number above 0")
    endpoint = metrics_endpoint()
    if endpoint is not None:
        token_from_environment(warn)
    url, _ = named_url(given.redis_url, given.redis_password_file, warn)
    if url is None:
        raise UsageError("no Redis is named: give --redis-url or set RQ_REDIS_URL")
    try:
        validate_server(client_from_url(url), redacted_url(url), scripts=False)
    except UnreachableError:
        warn(f"Redis at {redacted_url(url)} does not answer yet: the workers wait")
    with TemporaryDirectory(prefix="es-worker-", ignore_cleanup_errors=True) as temporary:
        logs = given.log_dir or Path(temporary)
        workers = f"{count} worker{'s' * (count > 1)}"
        text = f"es-worker: {workers} for {redacted_url(url)}, queue {given.queue}; logs in {logs}"
        if endpoint is not None:
            last = f" to {endpoint[1] + count - 1}" if count > 1 else ""
            text += f"; metrics on {endpoint[0]}, ports {endpoint[1]}{last}"
        Host(url, given.queue, count, logs, time.monotonic() + seconds).work(text)


def warn(text: str) -> None:
    print(f"es-worker: WARNING: {sanitize(text, 1000)}", file=sys.stderr, flush=True)


# --- what there is to do


def runs_of_queue(client: Any, queue: str) -> dict[str, int]:
    """The number of workers of each run of a queue that trains. Raises redis-py's errors."""
    names = [name.decode("ascii", "replace") for name in client.zrange(keys.RUNS, -MOST_RUNS, -1)]
    runs = [name for name in names if keys.RUN_ID.fullmatch(name)]
    found = runs_in_training(client, runs)
    return {run: workers for run, (of_queue, workers) in found.items() if of_queue == queue}


@dataclass
class Worker:
    """One of the host's workers, and the process of its seat, if it has one.

    run: that it serves, or served last; begun: when
    failures: processes in a row that ended out of order; avoid: run → until when it stays away
    """

    number: int
    pid: int = 0
    run: str = ""
    begun: float = 0.0
    failures: int = 0
    avoid: dict[str, float] = field(default_factory=dict)

    def choose(self, loads: Mapping[str, int]) -> str:
        """The run with the fewest workers; empty if there is none for this worker."""
        now = time.monotonic()
        self.avoid = {run: until for run, until in self.avoid.items() if until > now}
        open_runs = {run: load for run, load in loads.items() if run not in self.avoid}
        least = min(open_runs.values(), default=0)
        fewest = [run for run, load in open_runs.items() if load == least]
        return random.choice(fewest) if fewest else ""

    def note_end(self, code: int) -> str:
        """Note how its process ended (an exit code, or minus a signal); returns what people should
        read, empty for an ordinary end.
        """
        now = time.monotonic()
        self.pid, lasted = 0, now - self.begun
        if code in (LEFT, GAVE_WAY, REFUSED):
            away = {GAVE_WAY: AVOID_SECONDS, REFUSED: REFUSED_SECONDS}.get(code, 0.0)
            if lasted < SHORTEST_SECONDS:
                away = max(away, SHORTEST_SECONDS)
            self.failures, self.avoid[self.run] = 0, now + away
            return ""
        if lasted > BACKOFF_SECONDS[-1]:
            self.failures = 0
        self.avoid[self.run] = now + BACKOFF_SECONDS[self.failures]
        self.failures = min(self.failures + 1, len(BACKOFF_SECONDS) - 1)
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        return f"worker {self.number} {how} while it served {self.run}, and is started again"


class Host:
    """All workers of this host. ``deadline``: when to end, on the monotonic clock."""

    def __init__(self, url: str, queue: str, count: int, logs: Path, deadline: float) -> None:
        self._url, self._queue, self._logs, self._deadline = url, queue, logs, deadline
        self._workers = [Worker(number) for number in range(1, count + 1)]
        self._client = client_from_url(url)
        self._trouble, self._is_fit = "", False
        self._told = Counter[str]()
        self._signals = 0
        self._wake_read, self._wake_write = os.pipe()
        #: Lines of the seats for this terminal, each written at once.
        self._lines_read, self._lines_write = os.pipe()
        for end in (self._wake_read, self._wake_write, self._lines_read):
            os.set_blocking(end, False)

    def work(self, start_line: str) -> None:
        """Serve runs until a signal or the deadline. Raises RunFolderError."""
        for worker in self._workers:
            self._open_log(worker, "wb")
        signal.set_wakeup_fd(self._wake_write)
        for number in (signal.SIGCHLD, *STOPPING):
            signal.signal(number, self._note_signal)
        fix_numeric_environment()
        # start-up: numpy, whose threads must be fixed before it loads; forked seats share it
        import workers.serving  # noqa: F401

        print(start_line, flush=True)
        try:
            while not self._signals and time.monotonic() < self._deadline:
                self._reap()
                self._assign()
                self._wait(LOOK_SECONDS)
        finally:
            self._stop()

    def _note_signal(self, number: int, frame: object) -> None:
        self._signals += number in STOPPING

    def _wait(self, seconds: float) -> None:
        """Until a signal, or so many seconds; shows what the seats say meanwhile."""
        until = time.monotonic() + max(0.0, min(seconds, self._deadline - time.monotonic()))
        while (left := until - time.monotonic()) > 0:
            readable, _, _ = select.select([self._wake_read, self._lines_read], [], [], left)
            self._show_lines()
            if self._wake_read in readable:
                with suppress(BlockingIOError):
                    os.read(self._wake_read, 4096)
                return

    def _show_lines(self) -> None:
        """Each line once, whichever worker says it."""
        with suppress(BlockingIOError):
            for line in os.read(self._lines_read, 2**16).decode("utf-8", "replace").splitlines():
                self._told[line] += 1
                if self._told[line] == 1:
                    print(f"es-worker: {line}", flush=True)
                if len(self._told) > MOST_RUNS:
                    self._told.clear()

    # --- seats

    def _assign(self) -> None:
        """Send each free worker to the run with the fewest workers."""
        free = [worker for worker in self._workers if not worker.pid]
        if not free:
            return
        try:
            if not self._is_fit:  # a server that was away at the start
                validate_server(self._client, redacted_url(self._url), scripts=False)
            self._is_fit = True
            loads = Counter(runs_of_queue(self._client, self._queue))
        except UnreachableError:
            return
        except ANY_ERROR as error:
            text = f"Redis refuses to list the runs: {first_line(error)}; check this user's rights"
            if is_outage(error):
                text = f"Redis at {redacted_url(self._url)} does not answer: the workers wait"
            if text != self._trouble:  # once
                self._trouble = text
                warn(text)
            return
        self._trouble = ""
        now = time.monotonic()
        for worker in self._workers:  # those that the master does not count yet
            if worker.pid and worker.run in loads and now - worker.begun < SETTLE_SECONDS:
                loads[worker.run] += 1
        for worker in free:
            if run := worker.choose(loads):
                loads[run] += 1
                self._begin(worker, run)

    def _begin(self, worker: Worker, run: str) -> None:
        """Fork the process of a seat. It holds back SIGTERM until it can leave in order."""
        worker.run, worker.begun = run, time.monotonic()
        former = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
        try:
            try:
                worker.pid = os.fork()
            except OSError as error:  # the next look tries again
                text = f"worker {worker.number} cannot start: {error.strerror}"
                self._told[text] += 1
                if self._told[text] == 1:
                    warn(f"{text}{process_limit_hint(str(error))}")
                return
            if not worker.pid:
                code = 1
                try:
                    code = self._sit(worker)
                except BaseException:  # whatever it is, this process must not go on as its parent
                    traceback.print_exc()
                finally:
                    with suppress(OSError, ValueError):
                        sys.stdout.flush()
                        sys.stderr.flush()
                    os._exit(code)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, former)

    def _sit(self, worker: Worker) -> int:
        """In the process of a seat: serve the run; returns the exit code."""
        parent = os.getppid()
        os.setpgrp()  # away from the terminal's Ctrl-C; its session is what ends together
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, *STOPPING):
            signal.signal(number, signal.SIG_DFL)
        log = self._open_log(worker, "ab")
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        # start-up: loaded before the fork
        from workers.serving import CANNOT_JOIN, Seat, print_line

        def show(run: str, text: str) -> None:
            print_line(run, text)
            if text.startswith(("joined", "cannot join", "left: ")):
                # The worker's name would make every line a new one.
                shown = sanitize(re.sub("^joined as [^:]*", "joined", text), 500)
                with suppress(OSError):
                    os.write(self._lines_write, f"{run}: {shown}\n".encode())

        def has_other_work(client: object) -> bool:
            with suppress(ANY_ERROR):
                return bool(runs_of_queue(client, self._queue).keys() - {worker.run})
            return False

        reason = Seat(
            client_from_url(self._url),
            worker.run,
            clocks_from_environment(),
            f"es-worker-{platform.node()}-{parent}-{worker.number}",
            owns_process=True,
            parent=parent,
            has_other_work=has_other_work,
            print_line=show,
        ).join_and_serve()
        return {keys.GIVE_WAY: GAVE_WAY, CANNOT_JOIN: REFUSED}.get(reason, LEFT)

    def _open_log(self, worker: Worker, mode: str) -> int:
        path = self._logs / f"worker-{worker.number}.log"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, mode, opener=no_link) as file:
                return os.dup(file.fileno())
        except OSError as error:
            raise RunFolderError(f"the log {path} cannot be written: {error}") from error

    # --- ends

    def _reap(self) -> None:
        for worker in self._workers:
            if not worker.pid:
                continue
            pid, status = os.waitpid(worker.pid, os.WNOHANG)
            if pid and (text := worker.note_end(os.waitstatus_to_exitcode(status))):
                with suppress(OSError):  # what the seat's environment has started
                    os.killpg(pid, signal.SIGKILL)
                warn(f"{text}; see {self._logs / f'worker-{worker.number}.log'}")

    def _stop(self) -> None:
        """SIGTERM, so that seats hand back their work; SIGKILL after a second signal or in time."""
        self._send(signal.SIGTERM)
        until = time.monotonic() + STOP_SECONDS
        begun = self._signals
        while any(worker.pid for worker in self._workers):
            self._deadline = until
            self._wait(0.1)
            self._reap()
            if self._signals > begun or time.monotonic() > until:
                self._send(signal.SIGKILL)
        self._show_lines()

    def _send(self, number: signal.Signals) -> None:
        for worker in self._workers:
            if worker.pid:
                with suppress(OSError):
                    (os.killpg if number == signal.SIGKILL else os.kill)(worker.pid, number)


if __name__ == "__main__":
    sys.exit(main())
