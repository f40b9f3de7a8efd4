"""LocalServices: the private server and the local workers that a master starts for its run; and
the lines that tell people how to watch it and to join.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import Any

import redis

import es_queue
from es_queue.command_line import format_command
from es_queue.credentials import FLAG, PASSWORD_FILE, environment_without_redis, password_of
from es_queue.host import default_workers
from es_queue.numerics.fingerprint import numeric_environment
from es_queue.protocol import keys
from es_queue.protocol.connection import (
    ANY_ERROR,
    RedisWithPassword,
    client_from_url,
    has_secret,
    redacted_url,
    validate_server,
)
from es_queue.protocol.seats import waiting_seat_ids
from es_queue.run_folder import NamedRun
from es_queue.user_code import ALLOW, INSTALLED
from master.display.notes import TERMINAL
from master.processes import Child, ProcessGroup, module_command
from master.run.launch import Launch
from master.services.leader import public_url
from master.services.private_server import PrivateServer
from master.services.redis_url import format_warning, is_same_terminal, network_warnings
from master.services.tcp_access import join_instructions, resolve_listen_address

LOGGER = logging.getLogger("es_queue.services")
BACKOFF_SECONDS = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
STOP_SECONDS = 10.0


class LocalServices:
    """server: None for a named Redis; count: of the local workers"""

    def __init__(self, launch: Launch) -> None:
        self.launch, self.count = launch, 0
        self.server: PrivateServer | None = None
        self._workers: ProcessGroup | None = None

    @property
    def requested(self) -> int:
        """How many local workers the launch has."""
        default = 0 if self.launch.redis_url else default_workers()
        return default if self.launch.workers is None else self.launch.workers

    def connect(self, folder: Path) -> tuple[str, redis.Redis]:
        """The URL of the named Redis, or of a private one that is started in ``folder``, and its
        client. Warns about a named one that others can reach. Raises RedisError or RunFolderError.
        """
        launch, url = self.launch, self.launch.redis_url
        if url is None:
            home, listen = folder / "redis", launch.listen
            address = None if listen is None else resolve_listen_address(listen, home)
            self.server = PrivateServer(home, listen=address, queue=launch.queue)
            self.server.start()
            url = self.server.url
        client, name = client_from_url(url), redacted_url(url)
        if launch.redis_source == "REDIS_URL":
            LOGGER.info(
                f"REDIS_URL names {name}, so no private server is started; --redis-url private "
                "starts one"
            )
        if launch.redis_source.endswith("REDIS_URL"):
            name += f", which {launch.redis_source} names,"
        validate_server(client, name)
        if self.server is None and (others := count_other_jobs(client, launch.queue)):
            LOGGER.warning(
                f"queue {launch.queue!r} of this Redis holds {others} jobs of other programs, and "
                "an rq worker of this run would run them: give the run its own queue (--queue "
                "NAME, rq worker NAME), or use es-worker, which runs no jobs"
            )
        if self.server is None and not launch.insecure:
            for text in network_warnings(client, name):
                TERMINAL.warning(format_warning(text))
                if not is_same_terminal():
                    LOGGER.warning(text)
        return url, client

    def start_workers(self, logs: Path, url: str) -> None:
        """Start the local workers, if the launch has some and none runs yet: ``rq worker``
        processes, or one ``es-worker``.

        A plain RQ worker would run on this host what others put into its queue. If others can write
        to this Redis, the workers are es-worker's.

        Raises RunFolderError if a log cannot be written.
        """
        launch, count, is_private = self.launch, self.requested, self.server is not None
        if not count or self._workers is not None:
            return
        self._workers, self.count = ProcessGroup(STOP_SECONDS), count
        environment = {
            **numeric_environment(),
            **environment_without_redis(os.environ),
            "RQ_REDIS_URL": url,
        }
        if launch.noise_dir is not None:
            # start-up: numpy
            from es_queue.numerics.noise_table import FOLDER_VARIABLE

            environment[FOLDER_VARIABLE] = str(launch.noise_dir.absolute())
        is_shared = not is_private or launch.listen is not None
        for number in range(1, (1 if is_shared else count) + 1):

            def command(number: int = number) -> list[str]:
                return worker_command(number, launch.queue, logs, count if is_shared else 0)

            log = logs / ("es-worker.log" if is_shared else f"worker-{number}.log")
            child = Child(f"local worker {number}", command, log, environment)
            child.backoff, child.endless = BACKOFF_SECONDS, True  # Redis can be away for long
            self._workers.start(child)

    def restart_ended(self) -> bool:
        """Report what ended, and start it again; returns whether anything had. Raises RedisError if
        the server cannot be started.
        """
        news = [text for part in (self.server, self._workers) if part for text in part.watch()]
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


def count_other_jobs(client: redis.Redis, queue: str) -> int:
    """Jobs that wait in the queue and are no seats."""
    with suppress(ANY_ERROR):
        waiting: Any = client.llen(keys.rq_queue(queue))
        return max(0, int(waiting) - len(waiting_seat_ids(client, queue)))
    return 0


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


# --- the lines that es-master prints at the start: how to watch the run, and how workers join

#: With it, rq takes the password from the same variables as es-queue's commands.
CONNECTION_CLASS = f"{RedisWithPassword.__module__}.{RedisWithPassword.__name__}"

#: After a command for a URL with a secret, which belongs in no command.
BY_VARIABLE = "  # RQ_REDIS_URL must hold this server's URL"


def start_lines(
    url: str,
    queue: str,
    run: NamedRun,
    server: PrivateServer | None,
    modules: Sequence[str] = (),
    password_file: str | None = None,
) -> dict[str, str]:
    """Commands by name, for the server at ``url``.

    run:           the run or study to watch
    server:        the private server, None for a named Redis
    modules:       those of the run's own code that a worker must allow by name
    password_file: file with the password of a named Redis, as the command line names it
    """
    allowed = f"{ALLOW}={','.join((INSTALLED, *modules))} " if modules else ""
    queue_name = "" if queue == "default" else f" {queue}"
    if server is not None:
        return {
            "watch": f"{format_command('es-status')} {run.word}",
            "join": f"{allowed}{format_command('rq')} worker --url {redacted_url(url)}{queue_name}",
            **join_instructions(server.folder, queue, allowed),
        }
    variables, flag, named = "", f" --url {url}", redis_flags(url, password_file)
    stay = f"{allowed}es-worker{queue_name}{named}"
    if shown := url_without_password(url, password_file):
        path = quote(password_path(password_file))
        variables = f"{PASSWORD_FILE}={path} RQ_CONNECTION_CLASS={CONNECTION_CLASS} "
        flag = f" --url {shown}"
    elif has_secret(url):
        flag, queue_name = "", f"{queue_name}{BY_VARIABLE}"
    return {
        "watch": f"{format_command('es-status')} {run.word}{named}",
        "join": f"{variables}{allowed}rq worker{flag}{queue_name}",
        "stay": stay,
    }


def run_words(run: NamedRun, url: str | None, password_file: str | None) -> str:
    """The words by which a command of es-queue finds a run. url: None for its private server"""
    return run.word + ("" if url is None else redis_flags(url, password_file))


def redis_flags(url: str, password_file: str | None) -> str:
    """The flags by which a command of es-queue finds a named server; a comment if the URL has a
    secret that is in no file.
    """
    if shown := url_without_password(url, password_file):
        return f" --redis-url {shown} {FLAG} {quote(password_path(password_file))}"
    return BY_VARIABLE if has_secret(url) else f" --redis-url {url}"


def url_without_password(url: str, password_file: str | None) -> str:
    """Empty if the password is in no file."""
    if not password_path(password_file) or password_of(url) is None or "?" in url:
        return ""
    return public_url(url)


def password_path(password_file: str | None) -> str:
    """The absolute path that the command line or the environment names, or nothing."""
    file = password_file or os.environ.get(PASSWORD_FILE)
    return str(Path(file).absolute()) if file else ""
