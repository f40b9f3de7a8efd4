"""Reports of failures, and what workers say of themselves: what the master keeps of them, and what
it says.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from es_queue.protocol.connection import client_from_url
from es_queue.protocol.messages import TRAIN, Task
from es_queue.slots import HOST_FAILED, result_type, spans_from_bytes, worker_mark
from tests.abuse.cluster import Cluster, cluster_of
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


def test_the_reason_of_a_failure_that_ends_the_run_is_escaped(cluster: Cluster) -> None:
    master = cluster.master("escaped", {**CARTPOLE, "generations": 1000, "block": 1})
    seen = cluster.seen("escaped")
    publication = wait_for(lambda: seen.progress().get("publication"), "the run has a publication")
    clients = [enrolled(cluster, "escaped", f"forger-{one}-abcdef") for one in (1, 2)]
    time.sleep(1.5)
    reason = "\x1b]0;owned\x07\x1b[2J\u202e\u0085"
    report = {"generation": 0, "kind": "train", "slot": 0, "reason": reason}
    clients[0].rpush(seen.keys.errors, json.dumps(report))
    record = np.zeros(1, result_type(2, 0, 0))
    spans = spans_from_bytes(Task.decode(cluster.admin.get(seen.keys.task)).spans)
    at = [span.kind for span in spans].index(TRAIN)
    record["row"] = sum(span.stop - span.start for span in spans[:at])
    record["failure"] = HOST_FAILED
    for number in range(4):
        record["seconds"], worker = number, f"forger-{1 + number % 2}-abcdef"
        record["worker"] = worker_mark(worker)
        clients[0].append(seen.keys.results(publication, 0), record.tobytes())
    assert master.wait(20) != 0
    said = master.said()
    assert "train slot 0" in said and "owned" in said
    print(ascii(said[-400:]), cluster.admin.hgetall(seen.keys.progress).get(b"why"))
    assert not any(letter in said for letter in "\x1b\x07\u202e\u0085")
