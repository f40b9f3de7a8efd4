"""LocalWorkers: ``rq worker`` processes on the master's host, restarted when they end.
LocalServices: these and a private server together.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import es_queue
from es_queue.numerics.fingerprint import numeric_environment
from es_queue.protocol.timing import SUPERVISOR_PID
from es_queue.security.passwords import environment_without_redis
from master.services.child_process import (
    RestartTimer,
    end_in_order,
    module_command,
    spawn_bound,
    wait_until,
)
from master.services.private_server import PrivateServer

LOGGER = logging.getLogger("es_queue.services")
#: Waits before a worker that keeps ending is started again; one that lived longer than the last
#: begins anew.
BACKOFF_SECONDS = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
STOP_SECONDS = 10.0
#: RQ ignores a second signal within one second of the first; later it ends its work horse and
#: itself at once.
SECOND_SIGNAL_SECONDS = 1.2

#: A process for certain: its pid and its start time in clock ticks, for pids come back.
ProcessId = tuple[int, str]


@dataclass
class WorkerProcess:
    number: int
    process: subprocess.Popen[bytes] | None = None
    timer: RestartTimer = field(
        default_factory=lambda: RestartTimer(BACKOFF_SECONDS, BACKOFF_SECONDS[-1])
    )

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self, command: list[str], log: Path, environment: dict[str, str], url: str) -> None:
        """Raises RunFolderError."""
        self.process = spawn_bound("a local worker", command, log, environment, url)
        self.timer.start()

    def has_newly_ended(self) -> bool:
        """True the first time: it also schedules the next process."""
        if self.process is None or self.is_running or self.timer.restart_at is not None:
            return False
        self.timer.end()
        self.timer.schedule()
        return True


class LocalWorkers:
    """``count`` workers of ``queue``, each with a log ``worker-<n>.log`` in ``log_folder``: plain
    ``rq worker`` processes, or one ``es-worker``.

    They get the connection by RQ_REDIS_URL, because every user of the host can read a command line.
    Start them from the main thread, so that the kernel sends them SIGTERM when this process dies
    (Linux). They run in their own sessions, so the terminal's Ctrl-C does not reach them. All
    methods are for one thread.

    shared: whether others can write to this Redis; a plain RQ worker would run on this host what
    they put into the queue, so the workers are es-worker's
    noise_folder: of the noise table, None for the default
    """

    def __init__(
        self,
        count: int,
        queue: str,
        redis_url: str,
        log_folder: Path,
        shared: bool = False,
        noise_folder: Path | None = None,
    ) -> None:
        self._queue = queue
        self._redis_url = redis_url
        self._log_folder = log_folder
        self._noise_folder = noise_folder
        self._count, self._shared = count, shared
        self._processes = self._new_processes()
        host = socket.gethostname().split(".")[0]
        self._name_prefix = f"es-{host}-{os.getpid()}"
        self._orphans: set[ProcessId] = set()

    def _new_processes(self) -> list[WorkerProcess]:
        count = min(1, self._count) if self._shared else self._count
        return [WorkerProcess(number) for number in range(1, count + 1)]

    def start(self) -> None:
        """Raises RunFolderError if a log cannot be written."""
        for worker in self._processes:
            if worker.process is None:
                self._spawn(worker)

    def supervise(self) -> list[int]:
        """Restart ended workers after 1, 2, 4 … 30 s; returns the numbers of those started."""
        self._collect_ended()
        restarted = [worker for worker in self._processes if worker.timer.is_due()]
        for worker in restarted:
            self._spawn(worker)
        return [worker.number for worker in restarted]

    def stop(self, deadline: float = STOP_SECONDS) -> None:
        """SIGTERM and up to ``deadline`` seconds, a second SIGTERM, then SIGKILL to the rest."""
        self._collect_ended()
        doomed = self._orphans | self._running_members()
        steps = (
            (signal.SIGTERM, max(deadline, SECOND_SIGNAL_SECONDS)),
            (signal.SIGTERM, SECOND_SIGNAL_SECONDS),
        )
        end_in_order(self._signal, self._are_gone, steps)
        doomed |= self._running_members()
        self._signal(signal.SIGKILL)
        signal_all(doomed, signal.SIGKILL)
        wait_until(self._are_gone, STOP_SECONDS)
        self._processes = self._new_processes()
        self._orphans = set()

    def kill(self) -> None:
        """Waits for nothing."""
        doomed = self._orphans | self._running_members()
        self._signal(signal.SIGKILL)
        signal_all(doomed, signal.SIGKILL)

    def _collect_ended(self) -> None:
        # RQ leaves its work horse behind when it loses Redis; SIGTERM lets the seat hand back its
        # work.
        left = set().union(
            *(
                session_members(worker.process.pid)
                for worker in self._processes
                if worker.process and worker.has_newly_ended()
            )
        )
        signal_all(left, signal.SIGTERM)
        self._orphans |= left

    def _running_members(self) -> set[ProcessId]:
        return set().union(*(session_members(process.pid) for process in self._running()))

    def _running(self) -> list[subprocess.Popen[bytes]]:
        return [
            worker.process
            for worker in self._processes
            if worker.process is not None and worker.is_running
        ]

    def _are_gone(self) -> bool:
        return not self._running()

    def _signal(self, number: signal.Signals) -> None:
        for process in self._running():
            process.send_signal(number)

    def _spawn(self, worker: WorkerProcess) -> None:
        # RQ refuses the name of a worker that it still believes to live, so each start has its own.
        name = f"{self._name_prefix}-{worker.number}-{secrets.token_hex(3)}"
        log = "es-worker.log" if self._shared else f"worker-{worker.number}.log"
        path = self._log_folder / log
        worker.start(self._command(name), path, self._environment(), self._redis_url)

    def _command(self, name: str) -> list[str]:
        if self._shared:
            words = ["--workers", str(self._count), "--log-dir", str(self._log_folder.absolute())]
            return module_command("workers.es_worker", *words, self._queue)
        # -P and --path keep the current folder off Python's path. RQ appends the folder of our
        # packages, which need not be installed.
        home = str(Path(es_queue.__file__).resolve().parent.parent)
        command = [sys.executable, "-P", "-m", "rq.cli", "worker", "--name", name]
        command += ["--path", home]
        return command if self._queue == "default" else [*command, self._queue]

    def _environment(self) -> dict[str, str]:
        noise = {}
        if self._noise_folder is not None:
            # start-up: numpy, which the supervisor does not need
            from es_queue.numerics.noise_table import FOLDER_VARIABLE

            noise = {FOLDER_VARIABLE: str(self._noise_folder.absolute())}
        return {
            **numeric_environment(),
            **environment_without_redis(os.environ),
            **noise,
            SUPERVISOR_PID: str(os.getpid()),
        }


class LocalServices:
    """``server``: None for a named Redis."""

    def __init__(self, server: PrivateServer | None) -> None:
        self.server = server
        self._workers: LocalWorkers | None = None

    def start_server(self) -> None:
        """Raises RedisError."""
        if self.server is not None:
            self.server.start()

    def start_workers(self, workers: LocalWorkers) -> None:
        """Raises RunFolderError."""
        self._workers = workers
        workers.start()

    def restart_ended(self) -> None:
        """Raises RedisError if the server cannot restart."""
        if self.server is not None and self.server.ensure():
            LOGGER.warning("the private server ended and was restarted")
        for number in self._workers.supervise() if self._workers is not None else ():
            LOGGER.warning(f"local worker {number} ended and was restarted")

    def stop(self) -> None:
        if self._workers is not None:
            self._workers.stop()
        if self.server is not None:
            self.server.stop()

    def kill(self) -> None:
        if self._workers is not None:
            self._workers.kill()
        if self.server is not None:
            self.server.kill()


def session_members(session: int) -> set[ProcessId]:
    """The living processes of a session; none without Linux's /proc.

    A worker leads its own session. Its horse leaves the process group, but not the session. An
    environment variable could not mark it, because setproctitle (which RQ uses if it is installed)
    overwrites the environment.
    """
    members = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        fields = stat_fields(path)
        if fields and fields[3] == str(session) and fields[0] != "Z":
            members.add((int(path.parent.name), fields[19]))
    return members


def stat_fields(path: Path) -> list[str]:
    """The fields of /proc/<pid>/stat from the state on: proc(5); empty if the process is gone."""
    with suppress(OSError):
        return path.read_text(errors="replace").rpartition(")")[2].split()
    return []


def signal_all(processes: set[ProcessId], number: signal.Signals) -> None:
    for pid, started in processes:
        fields = stat_fields(Path(f"/proc/{pid}/stat"))
        if fields and fields[19] == started:
            with suppress(OSError):
                os.kill(pid, number)
