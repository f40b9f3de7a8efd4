"""Names of failed seats in RQ's registry, which anybody with the worker's password may write."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from es_queue.protocol import keys
from es_queue.protocol.connection import client_from_url
from tests.abuse.cluster import Cluster, cluster_of
from tests.integration.processes import CARTPOLE, Processes, wait_for


@pytest.fixture
def cluster(tmp_path: Path, processes: Processes) -> Iterator[Cluster]:
    with cluster_of(tmp_path, processes) as found:
        yield found


def nonce_of(client: Any, queue: str) -> str:
    """The nonce of the master's session, from the seat that it keeps open."""
    seat = wait_for(lambda: client.lrange(keys.rq_queue(queue), 0, -1), "a seat is open")[
        0
    ].decode()
    match = keys.SEAT_ID.fullmatch(seat)
    assert match is not None
    return match["nonce"]


def test_seats_that_failed_do_not_fill_the_log(cluster: Cluster) -> None:
    """The run's nonce stands in its seats' names; each forged name is a line of the log and stays
    in the master's memory.
    """
    values = {**CARTPOLE, "generations": 100000}
    master = cluster.master("noted", values)
    worker = cluster.worker("noted")
    seen = cluster.seen("noted")
    seen.joined(worker)
    wait_for(seen.has_reached(1), "it has served")
    with client_from_url(cluster.url("worker")) as given:
        client: Any = given
        nonce, number = nonce_of(client, "noted"), 0
        until = time.monotonic() + 15
        notes = len(master.events("note"))
        while time.monotonic() < until:
            pipeline = client.pipeline(transaction=True).delete("rq:failed:noted")
            for _ in range(100):
                number += 1
                name = keys.seat_id("noted", nonce, number)
                pipeline.hset(keys.rq_job(name), "worker_name", f"{number} " + "w" * 70).expire(
                    keys.rq_job(name), 5
                )
                pipeline.zadd("rq:failed:noted", {name: time.time() + number})
            pipeline.execute()
            time.sleep(0.2)
    lines = len(master.events("note")) - notes
    print(f"{lines} lines")
    assert lines < 60


def test_a_run_that_waits_for_its_first_worker_is_not_ended_by_names_in_rqs_registry(
    cluster: Cluster,
) -> None:
    """Twenty names end a run, of anybody, before its first answer."""
    master = cluster.master("waits", CARTPOLE)
    with client_from_url(cluster.url("worker")) as given:
        client: Any = given
        nonce = nonce_of(client, "waits")
        client.zadd(
            "rq:failed:waits",
            {
                keys.seat_id("waits", nonce, 1000 + number): time.time() + 100
                for number in range(25)
            },
        )
    worker = cluster.worker("waits")
    assert master.wait(120) == 0, master.said()
    assert worker.process.poll() is None
