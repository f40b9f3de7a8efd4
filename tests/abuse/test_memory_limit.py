"""A server with docker/redis.conf survives workers that fill its memory. Limits are
smaller here.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from es_queue import acl
from es_queue.protocol.connection import client_from_url
from es_queue.protocol.keys import RunKeys
from tests.abuse.servers import BOTH, serving
from tests.integration.processes import wait_for
from tests.leaks import simple_password

CONF = Path(__file__).resolve().parents[2] / "docker" / "redis.conf"
PASSWORDS = {user: simple_password(user) for user in acl.USERS}
MB = 2**20
LIMIT, CLIENTS = 48 * MB, 16 * MB


def command(*words: str | bytes) -> bytes:
    """A command as Redis reads it."""
    parts = [word if isinstance(word, bytes) else word.encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(
        b"$%d\r\n%b\r\n" % (len(part), part) for part in parts
    )


@pytest.fixture(params=BOTH)
def port(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[int]:
    """A server with docker/redis.conf and its users; limits that it has are made smaller."""
    (tmp_path / "users.acl").write_text(acl.format_acl(PASSWORDS))
    settings = tmp_path / "redis.conf"
    text = CONF.read_text()
    for name, value in (
        ("maxmemory ", str(LIMIT)),
        ("maxmemory-clients ", str(CLIENTS)),
        ("client-output-buffer-limit normal ", f"{CLIENTS} 0 0"),
    ):
        text = re.sub(rf"^{name}.*$", f"{name}{value}", text, flags=re.MULTILINE)
    settings.write_text(f"{text}appendonly no\naclfile {tmp_path / 'users.acl'}\n")
    with serving(request.param, tmp_path, file=settings) as own:
        yield own


def client_of(user: str, port: int) -> Any:
    return client_from_url(f"redis://{user}:{PASSWORDS[user]}@127.0.0.1:{port}")


def used(port: int) -> int:
    with client_of(acl.VIEWER, port) as viewer:
        return int(viewer.info("memory")["used_memory"])


def test_a_worker_that_sends_and_sends_is_refused_and_the_master_reads_and_removes(
    port: int,
) -> None:
    own = RunKeys("a-run")
    results, answer = own.results("0.1-00000000", 0), b"x" * (4 * MB)
    with client_of(acl.MASTER, port) as master, client_of(acl.WORKER, port) as worker:
        master.set(own.config, "{}")
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            for _ in range(3 * LIMIT // len(answer)):
                worker.append(results, answer)
        assert used(port) < LIMIT + 2 * len(answer)
        assert master.get(own.config) == b"{}", "no key is lost"
        master.unlink(results)
        wait_for(lambda: used(port) < LIMIT, "the memory is free again")
        assert master.set(own.task, "x")


# --- replies

PARAMETERS = RunKeys("a-run").parameters("0.1-00000000")
TIMES = 300
#: Who sends it, and a request of some kilobytes whose reply is 600 MB.
REQUESTS = {
    "HMGET by a worker": (acl.WORKER, command("HMGET", "rq:h", *["f"] * TIMES)),
    "a packet of GET": (acl.WORKER, command("GET", PARAMETERS) * TIMES),
}


def connected(port: int, user: str) -> socket.socket:
    found = socket.create_connection(("127.0.0.1", port), 60)
    found.sendall(command("AUTH", user, PASSWORDS[user]))
    assert found.recv(100) == b"+OK\r\n"
    return found


@pytest.mark.parametrize("name", REQUESTS)
def test_one_request_for_the_same_large_value_again_and_again_takes_bounded_memory(
    name: str, port: int
) -> None:
    """maxmemory-clients is compared between commands only."""
    user, request = REQUESTS[name]
    with client_of(acl.MASTER, port) as master:
        master.set(PARAMETERS, bytes(2 * MB))
        master.hset("rq:h", "f", bytes(2 * MB))
        with connected(port, user) as raw:
            raw.sendall(request)
            raw.shutdown(socket.SHUT_WR)
            # The server answers after the request: it serves one packet whole.
            master.ping()
        peak = int(master.info("memory")["used_memory_peak"])
    print(f"{name}: {len(request):,} bytes, used_memory_peak {peak / MB:.0f} MB")
    assert peak < LIMIT + 2 * CLIENTS
