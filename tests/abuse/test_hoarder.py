"""A client with the worker's password that takes every block, says that it lives, and answers
nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import redis

from es_queue.protocol.connection import client_from_url
from es_queue.protocol.keys import RunKeys
from master.collect.blocks.stragglers import MOST_STRIKES
from tests.abuse.cluster import Cluster, cluster_of
from tests.integration.processes import CARTPOLE, Processes, quiet_digest

VALUES = {**CARTPOLE, "generations": 12, "eval_every": 2, "eval_episodes": 2, "eval_step_limit": 60}
CONNECTIONS = 4


class Hoarder:
    """Claims on several connections at once, each without a pause."""

    def __init__(self, url: str, run: str, name: str) -> None:
        self._url, self.keys, self.name = url, RunKeys(run), name
        self._over = threading.Event()
        self.publications: set[str] = set()
        self._threads = [
            threading.Thread(target=self._take, daemon=True) for _ in range(CONNECTIONS)
        ]
        self._threads.append(threading.Thread(target=self._beat, daemon=True))
        for one in self._threads:
            one.start()

    def _beat(self) -> None:
        about = {"host": "hoarder", "pid": "1", "rq_name": self.name, "numerics": "0" * 32}
        with client_from_url(self._url) as client:
            while not self._over.wait(0.1):
                with suppress(redis.exceptions.RedisError):
                    client.hset(self.keys.worker(self.name), mapping=about)
                    client.pexpire(self.keys.worker(self.name), 5000)
                    client.sadd(self.keys.workers, self.name)

    def _take(self) -> None:
        with client_from_url(self._url) as client:
            connection: Any = client
            while not self._over.is_set():
                with suppress(redis.exceptions.RedisError):
                    entry = connection.blmove(
                        self.keys.todo, self.keys.claims(self.name), 1, "LEFT", "RIGHT"
                    )
                    if entry is not None:
                        self.publications.add(entry.decode().partition(" ")[0])

    def end(self) -> None:
        self._over.set()
        for one in self._threads:
            one.join(20)


@contextmanager
def hoarding(cluster: Cluster, run: str, name: str = "hoarder-1-abcdef") -> Iterator[Hoarder]:
    found = Hoarder(cluster.url("worker"), run, name)
    try:
        yield found
    finally:
        found.end()


@pytest.fixture
def cluster(tmp_path: Path, processes: Processes) -> Iterator[Cluster]:
    with cluster_of(tmp_path, processes) as found:
        yield found


@pytest.mark.parametrize("schedule", ["sync", "async"])
@pytest.mark.parametrize("wall", [300, 1], ids=["trusted", "suspected"])
def test_a_run_ends_beside_somebody_who_takes_every_block_and_answers_none(
    wall: int, schedule: str, cluster: Cluster
) -> None:
    values = {**VALUES, "wall_limit": wall, "schedule": schedule}
    with hoarding(cluster, "held") as hoarder:
        master = cluster.master("held", values)
        worker = cluster.worker("held")
        cluster.seen("held").joined(worker)
        assert master.wait(60) == 0, master.err.read_text()
        assert 0 < len(hoarder.publications) <= MOST_STRIKES + 1, "the others are out of its reach"
    summary = master.events("summary")[-1]
    if schedule == "sync":
        assert summary["digest"] == quiet_digest(VALUES)
    found = [one for one in master.events("note") if "without a result" in one["text"]]
    assert len(found) == (1 if wall == 1 else 0)
