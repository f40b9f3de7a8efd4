"""A packet of slow commands on a worker's own key ends runs of others on the server."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

import pytest

from es_queue.protocol.connection import client_from_url
from tests.abuse.cluster import cluster_of
from tests.abuse.flooding import command
from tests.integration.processes import CARTPOLE, Processes


@pytest.mark.slow
def test_sixteen_kilobytes_by_a_worker_do_not_end_the_runs_of_a_server(tmp_path: Path, processes: Processes) -> None:
    """600 times LPOS of 12 million entries (24 MB), which the server does one after the other before it serves anybody else."""
    with cluster_of(tmp_path, processes) as cluster:
        master = cluster.master("others", {**CARTPOLE, "generations": 100_000})
        worker = cluster.worker("others")
        cluster.seen("others").joined(worker)
        with client_from_url(cluster.url("worker")) as given:
            client: Any = given
            for _ in range(120):
                client.rpush("rq:x", *["1"] * 100_000)
        password = (cluster.folder / "worker.password").read_text().strip()
        with socket.create_connection(("127.0.0.1", cluster.port), 10) as raw:
            raw.sendall(command("AUTH", "worker", password))
            assert raw.recv(100) == b"+OK\r\n"
            words = command("LPOS", "rq:x", "2") * 500
            raw.sendall(words)
            began, until = time.monotonic(), time.monotonic() + 190
            while time.monotonic() < until and master.process.poll() is None:
                time.sleep(0.5)
            ended = master.process.poll()
            print(f"{len(words):,} bytes; the master of another run ended with {ended} after {time.monotonic() - began:.0f} s: {master.err.read_text()[-300:]}")
            assert ended is None
