"""More attacks with a worker's or a viewer's password."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from es_queue import acl
from es_queue.protocol.connection import client_from_url
from tests.abuse.cluster import Cluster, cluster_of
from tests.abuse.flooding import command
from tests.abuse.lying_strangely import LIE
from tests.abuse.servers import BOTH, serving
from tests.abuse.test_attack1_server import port, raw  # noqa: F401
from tests.abuse.test_memory_limit import CLIENTS, LIMIT, MB, client_of
from tests.integration.processes import CARTPOLE, Processes, Started, wait_for

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def cluster(tmp_path: Path, processes: Processes) -> Iterator[Cluster]:
    with cluster_of(tmp_path, processes) as found:
        yield found


def liar(cluster: Cluster, queue: str, program: str, **more: str) -> Started:
    processes = cluster._processes
    return processes.start(processes.rq, "worker", queue, "--name", "liar", "-w", program, "--path", ROOT, RQ_REDIS_URL=cluster.url("worker"), **more)


def test_one_command_on_a_workers_own_hash_is_bounded(port: int) -> None:  # noqa: F811
    """HMGET of one field of 2 MB, 300 times; Valkey copies these too."""
    with client_of(acl.WORKER, port) as worker, client_of(acl.MASTER, port) as master:
        worker.hset("rq:h", "f", bytes(2 * MB))
        before = int(master.info("memory")["used_memory_peak"])
        asking = raw(port, acl.WORKER)
        asking.sendall(command("HMGET", "rq:h", *["f"] * 300))
        time.sleep(3)
        peak = int(master.info("memory")["used_memory_peak"])
        asking.close()
    print(f"used_memory_peak {before / MB:.0f} -> {peak / MB:.0f} MB; limits {LIMIT // MB} + {CLIENTS // MB}")
    assert peak < LIMIT + CLIENTS + 32 * MB


@pytest.mark.parametrize("pattern", ["*?" * 400_000, "*a" * 400_000], ids=["any", "letters"])
def test_a_pattern_of_a_viewer_neither_ends_nor_stops_the_server(pattern: str, port: int) -> None:  # noqa: F811
    with client_of(acl.MASTER, port) as master:
        master.set("es:a-run:task", "x")
        for number in range(20):
            master.set("es:" + "a" * 1000 + f":{number}", "x")
        asking = raw(port, acl.VIEWER)
        asking.sendall(command("SCAN", "0", "MATCH", pattern, "COUNT", "1000"))
        time.sleep(1)
        began = time.monotonic()
        try:
            master.get("es:a-run:task")
            print(f"the server answered after {time.monotonic() - began:.2f} s")
        finally:
            asking.close()
        assert time.monotonic() - began < 2


def test_one_packet_of_a_viewer_does_not_keep_the_server_from_all_others(port: int) -> None:  # noqa: F811
    """MGET of parameters again and again: the reply is copied each time. 2 MB x 100, 13 times in 60 kB."""
    with client_of(acl.MASTER, port) as master:
        name = "es:a-run:history"
        for number in range(10_000):
            master.xadd(name, {"a": "b" * 20, "c": str(number)})
        asking = raw(port, acl.VIEWER)
        words = command("XRANGE", name, "(0-1", "+", "COUNT", "0") + command("LPOS", "es:a-run:none", "x")
        words = command("XREVRANGE", name, "+", "-") * 300
        asking.sendall(words)
        time.sleep(0.05)
        began = time.monotonic()
        try:
            master.get("es:a-run:task")
        except redis.exceptions.RedisError as error:
            print(error)
        waited, peak = time.monotonic() - began, int(master.info("memory")["used_memory_peak"])
        asking.close()
    print(f"{len(words):,} bytes; waited {waited:.2f} s, peak {peak / MB:.0f} MB")
    assert waited < 2
