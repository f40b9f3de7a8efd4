"""LocalServices: the private server and the local workers that a master starts for its run."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import sys
from pathlib import Path

import es_queue
from es_queue.credentials import environment_without_redis
from es_queue.numerics.fingerprint import numeric_environment
from master.processes import Child, ProcessGroup, module_command
from master.services.private_server import PrivateServer

LOGGER = logging.getLogger("es_queue.services")
BACKOFF_SECONDS = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
STOP_SECONDS = 10.0


class LocalServices:
    """server: None for a named Redis; count: of the local workers, which ``url`` connects"""

    def __init__(self, server: PrivateServer | None = None) -> None:
        self.server, self.count = server, 0
        self._workers: ProcessGroup | None = None

    def start_server(self) -> None:
        """Raises RedisError."""
        if self.server is not None:
            self.server.start()

    def start_workers(
        self,
        count: int,
        queue: str,
        url: str,
        logs: Path,
        shared: bool = False,
        noise_folder: Path | None = None,
    ) -> None:
        """Start ``count`` workers of ``queue``, with logs in ``logs``: ``rq worker`` processes, or
        one ``es-worker``.

        shared: whether others can write to this Redis. A plain RQ worker would run on this host
        what they put into the queue, so these workers are es-worker's.
        noise_folder: of the noise table, None for the default

        Raises RunFolderError if a log cannot be written.
        """
        if self._workers is None:
            self._workers, self.count = ProcessGroup(STOP_SECONDS), count
            environment = {
                **numeric_environment(),
                **environment_without_redis(os.environ),
                "RQ_REDIS_URL": url,
            }
            if noise_folder is not None:
                # start-up: numpy
                from es_queue.numerics.noise_table import FOLDER_VARIABLE

                environment[FOLDER_VARIABLE] = str(noise_folder.absolute())
            for number in range(1, (min(1, count) if shared else count) + 1):

                def command(number: int = number) -> list[str]:
                    return worker_command(number, queue, logs, count if shared else 0)

                log = logs / ("es-worker.log" if shared else f"worker-{number}.log")
                name = f"local worker {number}"
                child = Child(name, command, log, environment, backoff=BACKOFF_SECONDS)
                child.endless = True  # a Redis that is away for long ends it again and again
                self._workers.start(child)

    def restart_ended(self) -> bool:
        """Report what ended, and start it again; returns whether anything had. Raises RedisError if
        the server cannot be started.
        """
        news = [] if self.server is None else self.server.watch()
        news += [] if self._workers is None else self._workers.watch()
        for text in news:
            LOGGER.warning(text)
        return bool(news)

    def stop(self) -> None:
        """The workers first: they need the server for an orderly end."""
        if self._workers is not None:
            self._workers.__exit__()
            self._workers = None
        if self.server is not None:
            self.server.stop()


def worker_command(number: int, queue: str, logs: Path, seats: int) -> list[str]:
    """``seats``: of an es-worker, 0 for an ``rq worker``."""
    if seats:
        words = ["--workers", str(seats), "--log-dir", str(logs.absolute()), queue]
        return module_command("workers.es_worker", *words)
    # RQ refuses the name of a worker that it still believes to live, so each start has its own.
    host = socket.gethostname().split(".")[0]
    name = f"es-{host}-{os.getpid()}-{number}-{secrets.token_hex(3)}"
    # -P and --path keep the current folder off Python's path. RQ appends the folder of es-queue's
    # packages, which need not be installed.
    home = str(Path(es_queue.__file__).resolve().parent.parent)
    command = [sys.executable, "-P", "-m", "rq.cli", "worker", "--name", name, "--path", home]
    return command if queue == "default" else [*command, queue]
