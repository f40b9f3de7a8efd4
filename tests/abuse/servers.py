"""Servers with users, passwords and certificates: Valkey of the wheel, or the operating system's
redis-server.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from master.services.private_server import server_binary
from tests.faults.servers import free_port

WHEEL, SYSTEM = "valkey", "redis"
#: A server that is not there leaves its tests out by name.
needs_system_server = [
    pytest.mark.redis_server,
    pytest.mark.skipif(shutil.which("redis-server") is None, reason="redis-server is not here"),
]
BOTH = [WHEEL, pytest.param(SYSTEM, marks=needs_system_server)]
SECONDS = 20.0


@contextmanager
def serving(
    kind: str, folder: Path, *settings: object, port: int | None = None, file: Path | None = None
) -> Iterator[int]:
    """A server on 127.0.0.1 with ``settings`` and its data in ``folder``; its port.

    port: 0 for TLS alone; file: a configuration file, over which the settings go.
    """
    program = server_binary() if kind == WHEEL else "redis-server"
    folder.mkdir(parents=True, exist_ok=True)
    own = free_port() if port is None else port
    given = [
        "--port",
        own,
        "--bind",
        "127.0.0.1",
        "--dir",
        folder,
        "--save",
        "",
        "--daemonize",
        "no",
    ]
    command = [program, *([file] if file else []), *given, *settings]
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        reached = (
            int(settings[settings.index("--tls-port") + 1]) if "--tls-port" in settings else own
        )  # type: ignore[call-overload]
        answering(reached, process, folder / "server.log")
        yield reached
    finally:
        process.kill()
        process.wait(SECONDS)


def answering(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until something listens there."""
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.01)


def told(port: int, user: str, password: str, *words: str | int) -> object:
    """What a server says to one command on a connection of its own; an error comes back
    as it is.
    """
    connection = redis.Connection(
        host="127.0.0.1",
        port=port,
        username=user or None,
        password=password or None,
        socket_timeout=5,
        protocol=2,
    )
    try:
        connection.connect()
        connection.send_command(*words)
        return connection.read_response()
    except redis.exceptions.RedisError as error:
        return error
    finally:
        connection.disconnect()
