"""The supervisor: a process that keeps a run's private server and local workers, and outlives a
killed master for a while.

``SupervisorClient`` starts it. They communicate by the files of ``supervisor_files`` and by
signals: SIGTERM ends workers and server in order, SIGINT at once. If the supervisor is killed, both
end with it (see ``private_server``).
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from es_queue.errors import EXIT_INTERRUPTED, EsQueueError
from es_queue.protocol.timing import Clocks
from master.display.notes import NoteHandler
from master.services.local_workers import LocalServices, LocalWorkers
from master.services.private_server import PrivateServer
from master.services.supervisor_files import ENDING, FAILED, READY, SupervisorFiles, SupervisorSpec
from master.services.tcp_access import parse_address

CHECK_SECONDS = 1.0
#: Redis may be away; an order to end must not wait for it much longer than a look lasts.
ANSWER_SECONDS = 2.0
LONGEST_HOLDER = 200


class SignalFlags:
    """Signals as flags, and a wait that any signal ends, including the end of a child, which is
    then handled at once.
    """

    def __init__(self, at_once: Callable[[], None]) -> None:
        self.end_requested = False
        self._kill_children = at_once
        self._read, write = os.pipe()
        os.set_blocking(write, False)
        os.set_blocking(self._read, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        for number, handler in (
            (signal.SIGTERM, self.request_end),
            (signal.SIGINT, self.kill_and_exit),
            (signal.SIGCHLD, lambda *_: None),
            (signal.SIGHUP, lambda *_: None),
        ):
            signal.signal(number, handler)

    def wait(self, seconds: float) -> None:
        if select.select([self._read], [], [], seconds)[0]:
            os.read(self._read, 4096)

    def request_end(self, *_: object) -> None:
        """Handler: end in order."""
        self.end_requested = True

    def kill_and_exit(self, *_: object) -> None:
        """Handler: end at once."""
        self._kill_children()
        os._exit(EXIT_INTERRUPTED)


class OrphanTimer:
    """Polled by a supervisor, with its own monotonic clock (seconds)."""

    def __init__(self, clocks: Clocks) -> None:
        self._clocks = clocks
        self._owner = 0
        self._has_led = False
        self._orphaned_since: float | None = None

    def is_expired(self, now: float, lease: str | None, owner: int) -> bool:
        """Whether the supervisor should end.

        lease: the holder in the lease; empty if there is none, None if Redis did not respond
        owner: pid of the living master on this host, 0 if there is none

        A living master can need minutes until its first lease, and waits for an unreachable Redis.
        A living master whose lease has lapsed is suspended (Ctrl-Z), and counts as gone.
        """
        if owner != self._owner:
            self._owner, self._has_led = owner, False
        self._has_led = self._has_led or bool(owner and lease and f" pid {owner} " in lease)
        if lease or (owner and (lease is None or not self._has_led)):
            self._orphaned_since = None
            return False
        if self._orphaned_since is None:
            self._orphaned_since = now
        patience = self._clocks.grace + (self._clocks.lease if lease is None else 0.0)
        return now - self._orphaned_since > patience


class Supervisor:
    """Keeps the processes of ``spec`` until it is asked to end, or the run has had no master for
    long.
    """

    def __init__(self, files: SupervisorFiles, spec: SupervisorSpec) -> None:
        self._files, self._spec = files, spec
        self._clocks = Clocks(**spec.clocks)
        self._signals = SignalFlags(lambda: self._services.kill())
        self._orphan_timer = OrphanTimer(self._clocks)
        server = None
        if spec.server is not None:
            listen = None if spec.listen is None else parse_address(spec.listen)
            server = PrivateServer(
                Path(spec.server),
                spec.binary,
                listen,
                lambda: self._signals.end_requested,
                spec.queue,
            )
        self._services = LocalServices(server)

    def run(self) -> None:
        """Start, report readiness, keep, and end in order. Raises EsQueueError if the start fails
        or a server cannot be restarted.
        """
        try:
            self._start()
            self._files.write_state(READY)
            lease, pause = (
                LeaseReader(self._url(), self._spec.run),
                min(CHECK_SECONDS, self._clocks.grace / 4),
            )
            next_check = time.monotonic() + max(
                pause, self._clocks.lease / 2
            )  # early enough to see any lease that was taken
            while not self._signals.end_requested:
                self._signals.wait(pause)
                if not self._signals.end_requested:
                    self._services.restart_ended()
                now = time.monotonic()
                if now < next_check:
                    continue
                next_check = now + pause
                if self._orphan_timer.is_expired(now, lease.holder(), self._files.owner_pid()):
                    log(
                        f"run {self._spec.run} has had no master for {self._clocks.grace:g} "
                        "s: it ends now"
                    )
                    break
        finally:
            self._stop()

    def _url(self) -> str:
        server = self._services.server
        return os.environ["RQ_REDIS_URL"] if server is None else server.url

    def _start(self) -> None:
        self._services.start_server()
        if self._spec.workers:
            self._services.start_workers(
                LocalWorkers(
                    self._spec.workers,
                    self._spec.queue,
                    self._url(),
                    Path(self._spec.logs),
                    shared=self._spec.server is None or self._spec.listen is not None,
                )
            )

    def report(self, text: str) -> None:
        log(text)
        self._files.append_news(text)

    def _stop(self) -> None:
        with suppress(EsQueueError):  # a full disk keeps nobody from ending
            self._files.write_state(ENDING)
        self._services.stop()


class LeaseReader:
    """Reads the run's lease. The client library is loaded for the first read, because other
    processes need the processor before.
    """

    def __init__(self, url: str, run: str) -> None:
        self._url, self._run = url, run
        self._read_holder: Callable[[], bytes] | None = None

    def holder(self) -> str | None:
        """Empty for nobody, None if Redis did not answer."""
        # start-up: redis; the supervisor must be ready soon and stay small
        from es_queue.protocol.connection import ANY_ERROR

        try:
            if self._read_holder is None:
                self._read_holder = self._connect()
            return self._read_holder().decode(errors="replace")
        except (ANY_ERROR, OSError):
            return None

    def _connect(self) -> Callable[[], bytes]:
        # start-up: redis; the supervisor must be ready soon and stay small
        from es_queue.protocol.connection import client_from_url
        from es_queue.protocol.keys import RunKeys

        client: Any = client_from_url(self._url)
        key = RunKeys(self._run).master
        client.connection_pool.connection_kwargs.update(
            socket_timeout=ANSWER_SECONDS, socket_connect_timeout=ANSWER_SECONDS
        )
        return lambda: bytes(client.getrange(key, 0, LONGEST_HOLDER - 1))  # may be sent twice


def log(text: str) -> None:
    print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}", flush=True)


def main() -> NoReturn:
    """``… FOLDER DESCRIPTOR``: the supervisor's folder, and the descriptor that holds its lock.
    Ends the process.
    """
    files, lock = SupervisorFiles(Path(sys.argv[-2])), int(sys.argv[-1])
    os.set_inheritable(lock, False)
    code = run_supervisor(files)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # its master waits for this: the interpreter has nothing left to put away


def run_supervisor(files: SupervisorFiles) -> int:
    try:
        supervisor = Supervisor(files, files.read_spec())
        with NoteHandler(supervisor.report):
            supervisor.run()
    except EsQueueError as error:
        log(f"failed: {error}")
        with suppress(EsQueueError):
            files.write_state(FAILED, error)
        return error.exit_code
    except Exception:
        traceback.print_exc()
        return 1
    return 0
