"""Reports of failures, and what workers say of themselves: what the master keeps of them, and what
it says.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from es_queue.protocol.connection import client_from_url
from es_queue.protocol.messages import Answer
from tests.abuse.cluster import Cluster, cluster_of
from tests.faults.scenarios.answers import most_held
from tests.integration.processes import CARTPOLE, Processes, wait_for

NAME = "forger-1-abcdef"


@pytest.fixture
def cluster(tmp_path: Path, processes: Processes) -> Iterator[Cluster]:
    with cluster_of(tmp_path, processes) as found:
        yield found


def enrolled(cluster: Cluster, run: str, name: str = NAME, **about: str) -> Any:
    client: Any = client_from_url(cluster.url("worker"))
    keys = cluster.seen(run).keys
    client.hset(
        keys.worker(name),
        mapping={"host": name, "pid": "1", "rq_name": name, "numerics": "0" * 32, **about},
    )
    client.pexpire(keys.worker(name), 600_000)
    client.sadd(keys.workers, name)
    return client


def test_failures_of_one_slot_that_are_told_again_and_again_are_not_remembered_for_ever(
    cluster: Cluster,
) -> None:
    """Each with another reason counts: its id and its digest stay in the master, its entry in
    Redis.
    """
    master = cluster.master("told", {**CARTPOLE, "generations": 1000, "block": 1})
    seen = cluster.seen("told")
    publication = wait_for(lambda: seen.progress().get("publication"), "the run has a publication")
    client = enrolled(cluster, "told")
    time.sleep(1.5)
    key, sent = seen.keys.results(publication), 0
    before = most_held(master)
    while sent < 200_000 and master.process.poll() is None and most_held(master) < 256:
        pipeline = client.pipeline(transaction=False)
        for _ in range(2000):
            sent += 1
            pipeline.xadd(
                key,
                {"answer": Answer(publication, "train", NAME, 0.1, (), ((0, f"{sent}"),)).encode()},
                nomkstream=True,
            )
        pipeline.execute()
    wait_for(
        lambda: master.process.poll() is not None or cluster.admin.xlen(key) < 1000,
        "the reports are read, and deleted",
        120,
    )
    held, stays = most_held(master), cluster.admin.xlen(key)
    print(
        f"{sent:,} reports; the master held {before:.0f} -> {held:.0f} MB, {stays:,} entries "
        f"of the stream stay ({cluster.admin.memory_usage(key) / 2**20:.0f} MB); ended: "
        f"{master.process.poll()}"
    )
    assert stays < 1000


def test_the_reason_of_a_failure_that_ends_the_run_is_escaped(cluster: Cluster) -> None:
    master = cluster.master("escaped", {**CARTPOLE, "generations": 1000, "block": 1})
    seen = cluster.seen("escaped")
    publication = wait_for(lambda: seen.progress().get("publication"), "the run has a publication")
    clients = [enrolled(cluster, "escaped", f"forger-{one}-abcdef") for one in (1, 2)]
    time.sleep(1.5)
    for at in range(4):
        reason = f"host: \x1b]0;owned\x07\x1b[2J\u202e\u0085 {at}"
        answer = Answer(
            publication, "train", f"forger-{1 + at % 2}-abcdef", 0.1, (), ((0, reason),)
        )
        clients[0].xadd(
            seen.keys.results(publication), {"answer": answer.encode()}, nomkstream=True
        )
    assert master.wait(20) != 0
    said = master.said()
    print(ascii(said[-400:]), cluster.admin.hgetall(seen.keys.progress).get(b"why"))
    assert not any(letter in said for letter in "\x1b\x07\u202e\u0085")


def test_late_answers_that_a_worker_only_claims_are_not_counted_without_end(
    cluster: Cluster,
) -> None:
    """The run's own statistics: 'late' is what workers say, up to 10**12 - 1 each."""
    master = cluster.master("late", {**CARTPOLE, "generations": 30, "block": 1})
    seen = cluster.seen("late")
    wait_for(lambda: seen.progress().get("publication"), "the run has a publication")
    for number in range(30):
        enrolled(cluster, "late", f"forger-{number}-abcdef", late="9" * 12)
    time.sleep(1)
    worker = cluster.worker("late")
    assert master.wait(60) == 0, master.said()
    assert worker.process.poll() is None
    late = max(one["late"] for one in master.events("generation"))
    print("late answers:", late)
    assert late < 10**6
