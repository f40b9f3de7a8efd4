"""Attacks on the server with docker/redis.conf (smaller limits): one command, or one packet, by who may only read or work."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from es_queue import acl
from es_queue.protocol.keys import RunKeys
from tests.abuse.flooding import command
from tests.abuse.servers import BOTH, serving
from tests.abuse.test_memory_limit import CLIENTS, CONF, LIMIT, MB, PASSWORDS, client_of


@pytest.fixture(params=BOTH)
def port(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[int]:
    (tmp_path / "users.acl").write_text(acl.acl_text(PASSWORDS))
    settings = tmp_path / "redis.conf"
    text = CONF.read_text()
    for name, value in (("maxmemory ", LIMIT), ("maxmemory-clients ", CLIENTS)):
        text = re.sub(rf"^{name}.*$", f"{name}{value}", text, flags=re.MULTILINE)
    settings.write_text(f"{text}appendonly no\naclfile {tmp_path / 'users.acl'}\n")
    with serving(request.param, tmp_path, file=settings) as own:
        yield own


def raw(port: int, user: str) -> socket.socket:
    found = socket.create_connection(("127.0.0.1", port), 60)
    found.sendall(command("AUTH", user, PASSWORDS[user]))
    assert found.recv(100) == b"+OK\r\n"
    return found


@pytest.mark.parametrize("user", [acl.VIEWER, acl.WORKER])
@pytest.mark.parametrize("how", ["mget", "pipeline"])
def test_one_command_that_asks_for_the_same_parameters_again_and_again_is_bounded(how: str, user: str, port: int) -> None:
    """MGET builds its whole reply before maxmemory-clients is looked at, and normal clients have no output limit."""
    own, size, times = RunKeys("a-run"), 2 * MB, 300
    name = own.parameters("0.1-00000000")
    with client_of(acl.MASTER, port) as master:
        master.set(name, bytes(size))
        before = int(master.info("memory")["used_memory_peak"])
        asking = raw(port, user)
        words = command("MGET", *[name] * times) if how == "mget" else command("GET", name) * times
        asking.sendall(words)
        peak = 0
        until = time.monotonic() + 15
        while time.monotonic() < until:
            peak = max(peak, int(master.info("memory")["used_memory_peak"]))
            if peak > 4 * LIMIT:
                break
            time.sleep(0.1)
        asking.close()
    print(f"{user} {how}: {len(words):,} bytes sent; used_memory_peak {before / MB:.0f} -> {peak / MB:.0f} MB; limits {LIMIT // MB} + {CLIENTS // MB}")
    assert peak < LIMIT + CLIENTS + 32 * MB


def test_one_packet_of_slow_commands_does_not_keep_the_server_from_all_others(port: int) -> None:
    """16 kB of LPOS on a list of a worker's own: a server serves all that it has read of one client before any other."""
    entries, times = 4_000_000, 300
    with client_of(acl.WORKER, port) as worker:
        client: Any = worker
        for _ in range(entries // 100_000):
            client.rpush("rq:x", *["1"] * 100_000)
        began = time.monotonic()
        client.lpos("rq:x", "2")
        one = time.monotonic() - began
        took = client.memory_usage("rq:x", samples=0)
    attacker = raw(port, acl.WORKER)
    words = command("LPOS", "rq:x", "2") * times
    with client_of(acl.MASTER, port) as master:
        master.set("es:a-run:task", "x")
        attacker.sendall(words)
        time.sleep(0.05)
        began, longest = time.monotonic(), 0.0
        while time.monotonic() - began < 40:
            asked = time.monotonic()
            try:
                master.get("es:a-run:task")
                waited = time.monotonic() - asked
                longest = max(longest, waited)
                if waited < 0.05:
                    break
            except redis.exceptions.RedisError as error:
                longest = max(longest, time.monotonic() - asked)
                print(f"the master's GET failed after {time.monotonic() - asked:.1f} s: {error}")
    attacker.close()
    print(f"a list of {took:,} bytes, {one * 1000:.0f} ms each; {len(words):,} bytes sent; the server was away for {time.monotonic() - began:.1f} s")
    assert longest < 2
