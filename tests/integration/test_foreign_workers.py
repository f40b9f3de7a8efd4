"""Workers that cannot serve are named, and cannot keep those who can from finishing; runs share
those who can.
"""

from __future__ import annotations

import platform
import re
import signal
import sys
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


ENDLESS = {**CARTPOLE, "generations": 100_000}


def foreign_worker(processes: Processes, url: str) -> Started:
    return processes.start(sys.executable, "-c", WITHOUT_ES_QUEUE, url)


def test_a_worker_without_es_queue_is_named_and_a_good_one_finishes_the_run(
    valkey_url: str,
    redis_client: redis.Redis,
    start_master: Callable[..., Master],
    processes: Processes,
) -> None:
    run = start_master("strange", CARTPOLE)
    stranger = foreign_worker(processes, valkey_url)
    wait_for(
        lambda: b"rq:worker:stranger" in redis_client.smembers("rq:workers"),
        "the stranger has enrolled",
    )
    wait_for(lambda: run.heard.notes, "the stranger is named", 5)
    assert run.heard.notes[0] == (
        f"worker stranger on {platform.node()} took a seat but cannot import es-queue: "
        "install it there, stop that worker, or use --queue"
    )
    processes.worker(valkey_url)
    assert run.summary()["digest"] == quiet_digest(CARTPOLE)
    assert stranger.process.poll() is None


def test_a_run_to_which_only_foreign_workers_come_ends(
    valkey_url: str, redis_client: redis.Redis, processes: Processes
) -> None:
    run = processes.master(*flags(CARTPOLE), "--run", "hopeless", url=valkey_url)
    wait_for(lambda: redis_client.llen("rq:queue:default"), "a seat is open")
    foreign_worker(processes, valkey_url)
    assert run.wait() == 3
    error = run.err.read_text()
    assert re.fullmatch(
        r"es-master: (\d+) seats were taken by workers of queue 'default' that cannot serve them: "
        r"the last one cannot import es-queue: install it there, stop that worker, or use "
        r"--queue\n",
        error,
    ), error
    assert Seen(redis_client, "hopeless").progress()["state"] == "failed"


def dead_run(processes: Processes, client: redis.Redis, url: str, name: str) -> Seen:
    """A run whose master was killed: its state says running, its seat waits, its lease
    has lapsed.
    """
    master = processes.master(*flags(ENDLESS), "--run", name, url=url)
    wait_for(lambda: client.llen("rq:queue:default"), "its seat is open")
    kill(client, name, master)
    return Seen(client, name)


def kill(client: redis.Redis, name: str, master: Started) -> None:
    master.signal(signal.SIGKILL)
    wait_for(lambda: not client.exists(f"es:{name}:master"), "its lease has lapsed")
    assert Seen(client, name).progress()["state"] == "running"


def test_a_run_whose_master_was_killed_takes_no_worker_from_a_live_run(
    valkey_url: str,
    redis_client: redis.Redis,
    start_master: Callable[..., Master],
    processes: Processes,
) -> None:
    dead, live = dead_run(processes, redis_client, valkey_url, "dead"), Seen(redis_client, "live")
    start_master("live", ENDLESS)
    for _ in range(3):
        processes.worker(valkey_url)
    wait_for(lambda: len(live.workers()) == 3, "all three serve the live run", 30)
    before = set(live.workers())
    generation = live.generation()
    wait_for(lambda: live.generation() > generation + 20, "the live run goes on")
    assert set(live.workers()) == before and dead.workers() == {}
    assert all(b"-dead-" not in one for one in redis_client.lrange("rq:queue:default", 0, -1))


def test_workers_whose_master_was_killed_go_to_a_run_that_waits_for_them(
    valkey_url: str,
    redis_client: redis.Redis,
    start_master: Callable[..., Master],
    processes: Processes,
) -> None:
    first, second = Seen(redis_client, "first"), Seen(redis_client, "second")
    master = processes.master(*flags(ENDLESS), "--run", "first", url=valkey_url)
    workers = [processes.worker(valkey_url) for _ in range(2)]
    wait_for(lambda: len(first.workers()) == 2, "both serve the first run")
    kill(redis_client, "first", master)
    start_master("second", ENDLESS)
    wait_for(lambda: len(second.workers()) == 2, "both serve the second run", 30)
    assert first.workers() == {}
    assert all("left: the run has no master" in one.out.read_text() for one in workers)
