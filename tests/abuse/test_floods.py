"""Floods with a worker's password: they cost their own run some time, and other runs of the server nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from es_queue import acl
from es_queue.protocol.connection import client_from_url
from es_queue.protocol.keys import RunKeys
from tests.abuse.flooding import Wire, command, push, wire
from tests.abuse.servers import WHEEL, serving
from tests.integration.processes import BIN, CARTPOLE, Processes, Seen, Started, flags, quiet_digest, wait_for
from tests.leaks import simple_password

ADMIN = simple_password("admin")
#: Entries of one flood, all in one command.
ENTRIES = 10_000_000
FORGED = 19_000
VALUES = {**CARTPOLE, "generations": 300}


class Cluster:
    """A server with the project's users, and what the tests start on it."""

    def __init__(self, port: int, folder: Path, processes: Processes) -> None:
        self.port, self.folder, self._processes = port, folder, processes
        self.admin: Any = client_from_url(f"redis://admin:{ADMIN}@127.0.0.1:{port}")

    def url(self, user: str) -> str:
        return f"redis://{user}:{(self.folder / f'{user}.password').read_text().strip()}@127.0.0.1:{self.port}"

    def master(self, run: str, values: dict[str, Any] = VALUES) -> Started:
        return self._processes.start(BIN / "es-master", *flags(values), "--run", run, "--queue", run, "--json", RQ_REDIS_URL=self.url("master"))

    def worker(self, queue: str) -> Started:
        return self._processes.start(self._processes.rq, "worker", queue, RQ_REDIS_URL=self.url("worker"))

    def seen(self, run: str) -> Seen:
        return Seen(self.admin, run)

    def busy(self) -> int:
        """How many commands the server has answered with BUSY."""
        return int(self.admin.info("errorstats").get("errorstat_BUSY", {}).get("count", 0))


@contextmanager
def cluster_of(folder: Path, processes: Processes, *settings: object) -> Iterator[Cluster]:
    acl.write(folder / "keys")
    rules = folder / "keys" / acl.ACL_FILE
    rules.write_text(rules.read_text() + f"user admin on >{ADMIN} ~* &* +@all\n")
    with serving(WHEEL, folder / "server", "--aclfile", rules, *settings) as port:
        found = Cluster(port, folder / "keys", processes)
        try:
            yield found
        finally:
            found.admin.close()


@pytest.fixture
def cluster(tmp_path: Path, processes: Processes) -> Iterator[Cluster]:
    with cluster_of(tmp_path, processes) as found:
        yield found


def flood(line: Wire, key: str) -> None:
    replies = line.send([push(key, b"x", ENTRIES)])
    assert replies[-1].startswith(b":"), replies[-1]


@pytest.mark.parametrize("name", ["todo", "claims"])
def test_ten_million_entries_in_a_list_of_one_run_end_no_master(name: str, cluster: Cluster) -> None:
    masters = {run: cluster.master(run) for run in ("hurt", "other")}
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
