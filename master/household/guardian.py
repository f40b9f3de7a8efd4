"""The guardian: a process that keeps a run's private server and local workers, and outlives a killed master for a while.

``GuardianClient`` starts it; they speak by the files of ``guardian_files`` and by signals: SIGTERM ends workers and
server in order, SIGINT at once. Killed itself, it takes both with it, for they are bound to it (see ``embedded``).
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
from es_queue.protocol.clocks import Clocks
from master.household.embedded import EmbeddedServer
from master.household.files import ENDING, FAILED, READY, Files, Spec
from master.household.listen import parse
from master.household.local_workers import LocalWorkers
from master.household.locks import write_pid
from master.household.vigil import Vigil

LOOK_SECONDS = 1.0
#: Redis may be away; an order to end must not wait for it much longer than a look lasts.
ANSWER_SECONDS = 2.0
LONGEST_HOLDER = 200


class Orders:
    """Signals as flags, and a wait that a signal ends: also the end of a child, which is then looked after at once."""

    def __init__(self, at_once: Callable[[], None]) -> None:
        self.told = False
        self._at_once = at_once
        self._read, write = os.pipe()
        os.set_blocking(write, False)
        os.set_blocking(self._read, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        for number, handler in (
            (signal.SIGTERM, self._end), (signal.SIGINT, self._kill), (signal.SIGCHLD, lambda *_: None), (signal.SIGHUP, lambda *_: None),
        ):  # fmt: skip
            signal.signal(number, handler)

    def wait(self, seconds: float) -> None:
        if select.select([self._read], [], [], seconds)[0]:
            os.read(self._read, 4096)

    def _end(self, *_: object) -> None:
        self.told = True

    def _kill(self, *_: object) -> None:
        self._at_once()
        os._exit(EXIT_INTERRUPTED)


class Guardian:
    """Keeps what ``spec`` names until it is told to end, or the run has had no master for long."""

    def __init__(self, files: Files, spec: Spec) -> None:
        self._files, self._spec = files, spec
        self._clocks = Clocks(**spec.clocks)
        self._orders = Orders(self._kill)
        self._vigil = Vigil(self._clocks)
        self._server: EmbeddedServer | None = None
        self._workers: LocalWorkers | None = None
        if spec.server is not None:
            listen = None if spec.listen is None else parse(spec.listen)
            self._server = EmbeddedServer(Path(spec.server), spec.binary, listen, lambda: self._orders.told)

    def run(self) -> None:
        """Start, say so, keep, and end in order. Raises EsQueueError when the start fails or a server cannot come back."""
        try:
            self._start()
            self._files.write_state(READY)
            lease, pause = Lease(self._url(), self._spec.run), min(LOOK_SECONDS, self._clocks.grace / 4)
            due = time.monotonic() + max(pause, self._clocks.lease / 2)  # early enough to see any lease that was taken
            while not self._orders.told:
                self._orders.wait(pause)
                self._keep()
                now = time.monotonic()
                if now < due:
                    continue
                due = now + pause
                if self._vigil.over(now, lease.holder(), self._files.owner()):
                    say(f"run {self._spec.run} has had no master for {self._clocks.grace:g} s: the end")
                    break
        finally:
            self._stop()

    def _url(self) -> str:
        return os.environ["RQ_REDIS_URL"] if self._server is None else self._server.url

    def _start(self) -> None:
        if self._server is not None:
            self._server.start()
            if self._server.refused:
                self._tell(self._server.refused)
        if self._spec.workers:
            self._workers = LocalWorkers(self._spec.workers, self._spec.queue, self._url(), Path(self._spec.logs), modules=self._spec.modules)
            self._workers.start()

    def _keep(self) -> None:
        """Start again what has ended."""
        if self._orders.told:
            return
        if self._server is not None and self._server.ensure():
            self._tell("the private server had ended and was started again")
            if self._server.refused:
                self._tell(self._server.refused)
        for number in self._workers.supervise() if self._workers is not None else ():
            self._tell(f"local worker {number} had ended and was started again")

    def _tell(self, text: str) -> None:
        say(text)
        self._files.tell(text)

    def _stop(self) -> None:
        with suppress(EsQueueError):  # a full disk keeps nobody from ending
            self._files.write_state(ENDING)
        if self._workers is not None:
            self._workers.stop()
        if self._server is not None:
            self._server.stop()

    def _kill(self) -> None:
        if self._workers is not None:
            self._workers.kill()
        if self._server is not None:
            self._server.kill()


class Lease:
    """A look at the run's lease. The client library is loaded for the first look: until then others need the processor."""

    def __init__(self, url: str, run: str) -> None:
        self._url, self._run = url, run
        self._ask: Callable[[], bytes] | None = None

    def holder(self) -> str | None:
        """Who holds it; empty for nobody, None when Redis did not answer."""
        from es_queue.protocol.connection import ANY_ERROR

        try:
            if self._ask is None:
                self._ask = self._connected()
            return self._ask().decode(errors="replace")
        except (ANY_ERROR, OSError):
            return None

    def _connected(self) -> Callable[[], bytes]:
        from es_queue.protocol.connection import client_from_url
        from es_queue.protocol.keys import RunKeys

        client: Any = client_from_url(self._url)
        key = RunKeys(self._run).master
        client.connection_pool.connection_kwargs.update(socket_timeout=ANSWER_SECONDS, socket_connect_timeout=ANSWER_SECONDS)
        return lambda: bytes(client.getrange(key, 0, LONGEST_HOLDER - 1))  # may be sent twice


def say(text: str) -> None:
    """A line of the guardian's log."""
    print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}", flush=True)


def main() -> NoReturn:
    """``… FOLDER DESCRIPTOR``: the guardian's folder, and the descriptor that holds its lock. Ends the process."""
    files, lock = Files(Path(sys.argv[-2])), int(sys.argv[-1])
    os.set_inheritable(lock, False)
    write_pid(lock, os.getpid())
    code = kept(files)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # its master waits for this: the interpreter has nothing left to put away


def kept(files: Files) -> int:
    """Be the guardian that the folder's spec describes, to the end; returns the exit code."""
    try:
        Guardian(files, files.read_spec()).run()
    except EsQueueError as error:
        say(f"failed: {error}")
        with suppress(EsQueueError):
            files.write_state(FAILED, error)
        return error.exit_code
    except Exception:
        traceback.print_exc()
        return 1
    return 0
