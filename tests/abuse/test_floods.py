"""Floods with a worker's password: they cost their own run some time, and other runs of the server nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from es_queue.protocol.keys import RunKeys
from tests.abuse.cluster import Cluster, cluster_of
from tests.abuse.flooding import Wire, push, wire
from tests.integration.processes import CARTPOLE, Processes, quiet_digest, wait_for

#: Entries of one flood, all in one command.
ENTRIES = 10_000_000
FORGED = 19_000
VALUES = {**CARTPOLE, "generations": 300}


@pytest.fixture
def cluster(tmp_path: Path, processes: Processes) -> Iterator[Cluster]:
    with cluster_of(tmp_path, processes) as found:
        yield found


def flood(line: Wire, key: str) -> None:
    replies = line.send([push(key, b"x", ENTRIES)])
    assert replies[-1].startswith(b":"), replies[-1]


@pytest.mark.parametrize("name", ["todo", "claims"])
def test_ten_million_entries_in_a_list_of_one_run_end_no_master(name: str, cluster: Cluster) -> None:
    masters = {run: cluster.master(run, VALUES) for run in ("hurt", "other")}
    workers = {run: cluster.worker(run) for run in masters}
    names = {run: cluster.seen(run).joined(worker) for run, worker in workers.items()}
    for run in masters:
        wait_for(cluster.seen(run).reached(2), "generation 2")
    own = RunKeys("hurt")
    with wire(cluster.port, cluster.folder) as line:
        flood(line, own.todo if name == "todo" else own.claims(names["hurt"]))
    assert all(master.process.poll() is None for master in masters.values()), "the flood came in time"
    for run, master in masters.items():
        assert master.wait(120) == 0, f"{run}: {master.err.read_text()}"
        assert master.events("summary")[-1]["digest"] == quiet_digest(VALUES)
    assert cluster.busy() == 0, "a script ran for longer than the server lets scripts run"
