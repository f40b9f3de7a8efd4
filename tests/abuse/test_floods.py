"""Floods with a worker's password: they cost their own run some time, and other runs of the server
nothing.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from es_queue.protocol.keys import RunKeys
from tests.abuse.cluster import Cluster, cluster_of
from tests.abuse.flooding import Wire, command, push, wire
from tests.integration.processes import CARTPOLE, Processes, quiet_digest, wait_for

#: Entries of one flood, all in one command.
ENTRIES = 10_000_000
FORGED = 19_000
VALUES = {**CARTPOLE, "generations": 300}
LONG = {**CARTPOLE, "generations": 3000}


@pytest.fixture
def cluster(tmp_path: Path, processes: Processes) -> Iterator[Cluster]:
    with cluster_of(tmp_path, processes) as found:
        yield found


def flood(line: Wire, key: str) -> None:
    replies = line.send([push(key, b"x", ENTRIES)])
    assert replies[-1].startswith(b":"), replies[-1]


@pytest.mark.parametrize("name", ["todo", "claims"])
def test_ten_million_entries_in_a_list_of_one_run_end_no_master(
    name: str, cluster: Cluster
) -> None:
    masters = {run: cluster.master(run, VALUES) for run in ("hurt", "other")}
    workers = {run: cluster.worker(run) for run in masters}
    names = {run: cluster.seen(run).joined(worker) for run, worker in workers.items()}
    for run in masters:
        wait_for(cluster.seen(run).has_reached(2), "generation 2")
    own = RunKeys("hurt")
    with wire(cluster.port, cluster.folder) as line:
        flood(line, own.todo if name == "todo" else own.claims(names["hurt"]))
    assert all(master.process.poll() is None for master in masters.values()), (
        "the flood came in time"
    )
    for run, master in masters.items():
        assert master.wait(120) == 0, f"{run}: {master.err.read_text()}"
        assert master.events("summary")[-1]["digest"] == quiet_digest(VALUES)
    assert cluster.busy() == 0, "a script ran for longer than the server lets scripts run"


class LeaseWatch(threading.Thread):
    """Looks at a run's lease all the time. missed: seconds, by the clock of this process, at which
    nobody held it while the run was running.
    """

    def __init__(self, client: Any, run: str) -> None:
        super().__init__(daemon=True)
        self._client, self._keys = client, RunKeys(run)
        self._over = threading.Event()
        self.looks, self.missed = 0, list[float]()
        self.start()

    def run(self) -> None:
        while not self._over.wait(0.01):
            state, held = (
                self._client.pipeline(transaction=True)
                .hget(self._keys.progress, "state")
                .exists(self._keys.master)
                .execute()
            )
            self.looks += 1
            if state == b"running" and not held:
                self.missed.append(time.monotonic())

    def end(self) -> None:
        self._over.set()
        self.join(20)


def forged(run: str, number: int) -> list[bytes]:
    """A worker that says why it cannot join, each for another reason."""
    name, keys = f"vm-{number}-aaaaaa", RunKeys(run)
    return [
        command(
            "HSET",
            keys.worker(name),
            "host",
            f"host-{number}",
            "refuses",
            f"Refusal: reason {number}",
        ),
        command("PEXPIRE", keys.worker(name), "600000"),
        command("SADD", keys.workers, name),
    ]


def test_thousands_of_forged_refusals_cost_neither_the_lease_nor_the_log(cluster: Cluster) -> None:
    master, worker = cluster.master("hurt", LONG), cluster.worker("hurt")
    seen = cluster.seen("hurt")
    seen.joined(worker)
    wait_for(seen.has_reached(2), "generation 2")
    watch = LeaseWatch(cluster.admin, "hurt")
    with wire(cluster.port, cluster.folder) as line:
        for number in range(0, FORGED, 500):
            line.send_at_once(
                [
                    one
                    for each in range(number, min(FORGED, number + 500))
                    for one in forged("hurt", each)
                ]
            )
        now = seen.generation()
        assert now < LONG["generations"], "the flood came in time"
        began = time.monotonic()
        wait_for(
            lambda: seen.generation() >= LONG["generations"] - 1 or time.monotonic() - began > 20,
            "the run goes on",
            60,
        )
        assert seen.generation() > now + 3, "the run goes on beside them"
        master.signal(signal.SIGINT)
        assert master.wait(60) in (0, 130), master.err.read_text()
    watch.end()
    assert watch.looks > 100 and watch.missed == []
    told = [one["text"] for one in master.events("note") if "cannot join" in one["text"]]
    assert 0 < len(told) <= 10 and all(len(one) < 2000 for one in told), (
        f"{len(told)} lines, the longest of {max(map(len, told))}"
    )
    for record in master.events("generation")[-1:]:
        assert record["digest"] == quiet_digest(
            {**LONG, "generations": record["generation"] + 1}, record["generation"]
        )
