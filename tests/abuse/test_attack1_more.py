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


def test_honest_workers_cannot_be_taken_out_of_the_audit_by_a_field_in_their_hashes(cluster: Cluster) -> None:
    """A hash with "refuses" is no worker that could be asked, so nothing is audited; a beat never takes the field away."""
    values = {**CARTPOLE, "population": 32, "generations": 100000, "block": 1, "audit": 1.0}
    master = cluster.master("deaf", values)
    seen = cluster.seen("deaf")
    honest = [cluster.worker("deaf") for _ in range(2)]
    for one in honest:
        seen.joined(one)
    over = threading.Event()

    def mark() -> None:
        with client_from_url(cluster.url("worker")) as given:
            client: Any = given
            while not over.wait(0.02):
                for name in client_names():
                    if name not in own:
                        client.hset(seen.keys.worker(name), "refuses", "Refusal: somebody says so")

    def client_names() -> list[str]:  # who they are stands in todo's claims and in rq:workers; here the easy way
        return [one.decode() for one in cluster.admin.smembers(seen.keys.workers)]

    own: set[str] = set()
    before = set(client_names())
    thread = threading.Thread(target=mark, daemon=True)
    thread.start()
    try:
        time.sleep(2)
        over.set()
        thread.join()
        bad = liar(cluster, "deaf", "tests.abuse.lying.Worker")
        wait_for(lambda: set(client_names()) - before, "the liar has a seat")
        generation, until = seen.generation(), time.monotonic() + 30
        while time.monotonic() < until and seen.generation() < generation + 200:
            time.sleep(0.1)
        progress = seen.progress()
    finally:
        over.set()
    records = [one for one in master.events("generation") if one["generation"] > generation]
    lies = sum((one["return_max"] or 0) > 900 for one in records)
    print("generations with lies:", lies, "of", len(records), "quarantined:", progress.get("quarantined"), "audited:", progress.get("audited"), bad.process.poll())
    assert progress.get("quarantined") not in (None, "", "[]")


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
