"""Reports of failures, and what workers say of themselves: what the master keeps of them, and what
it says.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from es_queue.protocol.connection import client_from_url
from es_queue.protocol.messages import TRAIN, Task
from es_queue.slots import HOST_FAILED, Shape, spans_from_bytes, worker_mark
from tests.abuse.servers import WHEEL
from tests.abuse.test_least_privilege import Household, guarded
from tests.integration.processes import CARTPOLE, Processes, Seen, flags, wait_for


@pytest.fixture
def household(tmp_path: Path, processes: Processes) -> Iterator[Household]:
    with guarded(WHEEL, tmp_path, processes) as one:
        yield one


def test_the_reason_of_a_failure_that_ends_the_run_is_escaped(household: Household) -> None:
    values = {**CARTPOLE, "generations": 1000, "block": 1}
    master = household.master(*flags(values), "--run", "escaped", "--json")
    seen = Seen(household.client, "escaped")
    publication = wait_for(lambda: seen.progress().get("publication"), "the run has a publication")
    client: Any = client_from_url(household.url("worker"))
    names = [f"forger-{one}-abcdef" for one in (1, 2)]
    for name in names:
        about = {"host": name, "pid": "1", "rq_name": name, "numerics": "0" * 32}
        client.hset(seen.keys.worker(name), mapping=about)
        client.pexpire(seen.keys.worker(name), 600_000)
        client.sadd(seen.keys.workers, name)
    wait_for(lambda: seen.progress().get("workers") == "2", "the master knows both")
    reason = "\x1b]0;owned\x07\x1b[2J\u202e\u0085"
    report = {"generation": 0, "kind": "train", "slot": 0, "reason": reason}
    client.rpush(seen.keys.errors, json.dumps(report))
    record = np.zeros(1, Shape(2, 0, 0).result)
    spans = spans_from_bytes(Task.decode(household.client.get(seen.keys.task)).spans)
    at = [span.kind for span in spans].index(TRAIN)
    record["row"] = sum(span.stop - span.start for span in spans[:at])
    record["failure"] = HOST_FAILED
    for number in range(4):
        record["seconds"], record["worker"] = number, worker_mark(names[number % 2])
        client.append(seen.keys.results(publication, 0), record.tobytes())
    assert master.wait(20) != 0
    said = master.said()
    assert "train slot 0" in said and "owned" in said
    print(ascii(said[-400:]), household.client.hgetall(seen.keys.progress).get(b"why"))
    assert not any(letter in said for letter in "\x1b\x07\u202e\u0085")
