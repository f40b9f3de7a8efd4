"""More attacks with a worker's or a viewer's password."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from es_queue.protocol.connection import client_from_url
from tests.abuse.cluster import Cluster, cluster_of
from tests.abuse.lying_strangely import LIE
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


def test_fitness_that_is_no_sum_of_signs_is_refused_where_signs_are_learnt_from(cluster: Cluster) -> None:
    master = cluster.master("signs", {**CARTPOLE, "generations": 5, "strategy": "openai_es", "shaping": "sign", "block": 1})
    liar(cluster, "signs", "tests.abuse.lying_strangely.Worker", **{LIE: "fitness"})
    code = master.wait(60)
    print(code, [(one["fitness_max"], one.get("gradient_norm"), one.get("update_norm"), one.get("return_max")) for one in master.events("generation")], master.err.read_text()[-300:])
    assert code == 0
    assert all((one["fitness_max"] or 0) < 1e9 for one in master.events("generation"))
