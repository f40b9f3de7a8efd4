"""Workers that cannot serve are named, and cannot keep those who can from finishing; runs share those who can."""

from __future__ import annotations

import platform
import re
import sys
import time
from collections.abc import Callable

import redis

from tests.integration.processes import (
    CARTPOLE,
    Master,
    Processes,
    Seen,
    Started,
    flags,
    quiet_digest,
    wait_for,
)

#: An RQ worker on a host without es-queue: RQ is there, our packages cannot be imported.
WITHOUT_ES_QUEUE = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("workers", "es_queue", "master"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
from rq.cli import main
sys.argv = ["rq", "worker", "--name", "stranger", "--url", sys.argv[1]]
main()
"""


def foreign_worker(processes: Processes, url: str) -> Started:
    return processes.start(sys.executable, "-c", WITHOUT_ES_QUEUE, url)


def test_a_worker_without_es_queue_is_named_and_a_good_one_finishes_the_run(
    valkey_url: str, redis_client: redis.Redis, start_master: Callable[..., Master], processes: Processes
) -> None:
    run = start_master("strange", CARTPOLE)
    stranger = foreign_worker(processes, valkey_url)
    wait_for(lambda: b"rq:worker:stranger" in redis_client.smembers("rq:workers"), "the stranger has enrolled")
    wait_for(lambda: run.heard.notes, "the stranger is named", 5)
    assert run.heard.notes[0] == (
        f"worker stranger on {platform.node()} took a seat but cannot import es-queue "
        "(ValueError: Invalid attribute name: workers.seat.take): install it there, stop that worker, or use --queue"
    )
    processes.worker(valkey_url)
    assert run.summary()["digest"] == quiet_digest(CARTPOLE)
    assert stranger.process.poll() is None


def test_a_run_to_which_only_foreign_workers_come_ends(valkey_url: str, redis_client: redis.Redis, processes: Processes) -> None:
    run = processes.master(*flags(CARTPOLE), "--run", "hopeless", url=valkey_url)
    wait_for(lambda: redis_client.llen("rq:queue:default"), "a seat is open")
    foreign_worker(processes, valkey_url)
    assert run.wait() == 3
    error = run.err.read_text()
    assert re.fullmatch(
        r"es-master: (\d+) seats were taken by workers that cannot serve them and no result came: install es-queue "
        r"where the workers of queue 'default' run, or use --queue with a queue of your own\n",
        error,
    ), error
    assert Seen(redis_client, "hopeless").progress()["state"] == "failed"


def test_a_run_that_begins_later_gets_half_of_the_workers(
    valkey_url: str, redis_client: redis.Redis, start_master: Callable[..., Master], processes: Processes
) -> None:
    first, second = Seen(redis_client, "first"), Seen(redis_client, "second")
    endless = {**CARTPOLE, "generations": 100_000}
    start_master("first", endless)
    for _ in range(4):
        processes.worker(valkey_url)
    wait_for(lambda: len(first.workers()) == 4, "all four serve the first run")
    start_master("second", endless)
    began = time.monotonic()
    wait_for(lambda: (len(first.workers()), len(second.workers())) == (2, 2), "two and two", 30)
    print(f"{time.monotonic() - began:.1f} s to two and two")
    assert first.failed_jobs() == []
