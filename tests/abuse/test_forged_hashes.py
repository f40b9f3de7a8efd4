"""Forged hashes: a worker's password writes what any worker says of itself, and audit and --strict
hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from es_queue.protocol.connection import client_from_url
from tests.abuse.cluster import Cluster, cluster_of
from tests.abuse.lying_strangely import LIE
from tests.integration.processes import BIN, CARTPOLE, Processes, Started, flags, wait_for

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def cluster(tmp_path: Path, processes: Processes) -> Iterator[Cluster]:
    with cluster_of(tmp_path, processes) as found:
        yield found


def liar(cluster: Cluster, processes: Processes, queue: str, program: str, **more: str) -> Started:
    return processes.start(
        processes.rq,
        "worker",
        queue,
        "--name",
        "liar",
        "-w",
        program,
        "--path",
        ROOT,
        RQ_REDIS_URL=cluster.url("worker"),
        **more,
    )


@pytest.mark.parametrize("field", ["refuses", "numerics", "host"])
def test_a_liar_is_found_although_it_overwrites_what_honest_workers_say(
    field: str, cluster: Cluster, processes: Processes
) -> None:
    values = {**CARTPOLE, "population": 32, "generations": 100_000, "block": 1, "audit": 1.0}
    cluster.master("deaf", values)
    seen = cluster.seen("deaf")
    for _ in range(2):
        seen.joined(cluster.worker("deaf"))
    generation = seen.generation()
    wait_for(seen.has_reached(generation + 2), "their results count")
    with client_from_url(cluster.url("worker")) as given:
        client: Any = given
        for name in cluster.admin.smembers(seen.keys.workers):
            client.hset(seen.keys.worker(name.decode()), field, "EnvironmentFailure: false")
    liar(cluster, processes, "deaf", "tests.abuse.lying.Worker")
    wait_for(lambda: '"liar"' in (seen.progress().get("quarantined") or ""), "it is found", 60)


def test_a_strict_run_has_the_masters_fingerprint_whoever_comes_first(
    cluster: Cluster, processes: Processes
) -> None:
    values = {**CARTPOLE, "generations": 20, "block": 1}
    bad = liar(
        cluster, processes, "taken", "tests.abuse.lying_strangely.Worker", **{LIE: "strange"}
    )
    master = processes.start(
        BIN / "es-master",
        *flags(values),
        "--strict",
        "--run",
        "taken",
        "--queue",
        "taken",
        "--json",
        RQ_REDIS_URL=cluster.url("master"),
    )
    seen = cluster.seen("taken")
    wait_for(lambda: cluster.admin.smembers(seen.keys.workers), "the liar has a seat")
    cluster.worker("taken")
    assert master.wait(60) == 0, master.said()
    assert bad.process.poll() is None
    assert all((one["return_max"] or 0) < 900 for one in master.events("generation"))
