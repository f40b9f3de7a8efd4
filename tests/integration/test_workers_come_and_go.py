"""Workers join and leave as they please: the run goes on, its bits stay, nothing is left behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace

import pytest
import redis
from rq.suspension import resume, suspend

from tests.integration.processes import (
    CLOCKS,
    WALKER,
    Master,
    Processes,
    Seen,
    Started,
    quiet_digest,
    wait_for,
)

Leave = Callable[[redis.Redis, Started, str], None]


def by_sigterm(client: redis.Redis, worker: Started, name: str) -> None:
    worker.signal(signal.SIGTERM)
    wait_for(lambda: stopping(client, name), "RQ has noticed")


def by_suspension(client: redis.Redis, worker: Started, name: str) -> None:
    suspend(client)


def stopping(client: redis.Redis, name: str) -> bool:
    return bool(client.hexists(f"rq:worker:{name}", "shutdown_requested_date"))


@pytest.mark.parametrize(
    "leave",
    [by_sigterm, by_suspension],
)
def test_a_worker_that_leaves_gives_its_block_back_and_another_finishes_the_run(
    leave: Leave,
    valkey_url: str,
    redis_client: redis.Redis,
    start_master: Callable[..., Master],
    processes: Processes,
) -> None:
    seen = Seen(redis_client, "leave")
    run = start_master("leave", {**WALKER, "block": 2})
    worker = processes.worker(valkey_url)
    seat = seen.joined(worker)
    name = seen.workers()[seat]["rq_name"]
    horse = seen.freeze_holding(seat)
    leave(redis_client, worker, name)
    os.kill(horse, signal.SIGCONT)
    wait_for(lambda: not redis_client.exists(seen.keys.worker(seat)), "the worker has left", 5)
    assert seen.progress()["state"] == "running"  # it did not stay to the end
    assert seen.claims(seat) == []
    if leave is by_suspension:
        resume(redis_client)
    else:
        assert worker.wait() == 0
        processes.worker(valkey_url)
    assert run.summary()["digest"] == quiet_digest(WALKER)
    assert run.total("recovered") == 0  # nothing had to be taken from the dead
    assert_nothing_is_left(seen)


def test_a_worker_process_is_replaced_when_it_is_old_and_the_bits_stay(
    valkey_url: str,
    redis_client: redis.Redis,
    start_master: Callable[..., Master],
    processes: Processes,
) -> None:
    run = start_master("aged", {**WALKER, "block": 2})
    worker = processes.worker(valkey_url, clocks=replace(CLOCKS, seat_lease=0.2))
    assert run.summary()["digest"] == quiet_digest(WALKER)
    assert worker.said().count("left: its lease has expired") >= 2
    assert worker.process.poll() is None and run.total("recovered") == 0
    assert_nothing_is_left(Seen(redis_client, "aged"))


def assert_nothing_is_left(seen: Seen) -> None:
    """Of a finished run: no claim, no block, no failed job, no open seat."""
    assert seen.all_claims() == {}
    assert seen.todo() == []
    assert seen.failed_jobs() == []
    wait_for(lambda: seen.client.llen("rq:queue:default") == 0, "no seat is open", 10)


def test_a_worker_that_comes_while_the_run_goes_on_takes_part(
    valkey_url: str,
    redis_client: redis.Redis,
    start_master: Callable[..., Master],
    processes: Processes,
) -> None:
    seen = Seen(redis_client, "late")
    run = start_master("late", {**WALKER, "block": 1})
    first = seen.joined(processes.worker(valkey_url))
    wait_for(seen.has_reached(1), "generation 1")
    horse = seen.freeze_holding(first)
    second = seen.joined(processes.worker(valkey_url))
    wait_for(lambda: seen.claims(second), "the newcomer has a block")
    os.kill(horse, signal.SIGCONT)
    assert run.summary()["digest"] == quiet_digest(WALKER)
    assert max(record["workers"] for record in run.heard.records) == 2
    assert_nothing_is_left(seen)


def test_a_worker_that_does_not_fork_serves_and_leaves_cleanly(
    valkey_url: str,
    redis_client: redis.Redis,
    start_master: Callable[..., Master],
    processes: Processes,
) -> None:
    seen = Seen(redis_client, "simple")
    run = start_master("simple", WALKER)
    simple = processes.worker(valkey_url, "-w", "rq.SimpleWorker")
    seat = seen.joined(simple)
    assert seen.horse(seat) == simple.pid
    seen.freeze_holding(seat)
    simple.signal(signal.SIGTERM)
    simple.signal(signal.SIGCONT)
    assert simple.wait() == 0
    assert seen.progress()["state"] == "running"
    assert seen.claims(seat) == []
    processes.worker(valkey_url)
    assert run.summary()["digest"] == quiet_digest(WALKER)
    assert run.total("recovered") == 0
    assert_nothing_is_left(seen)


def test_a_worker_whose_seat_has_ended_no_longer_shows_life_for_it(
    valkey_url: str,
    redis_client: redis.Redis,
    start_master: Callable[..., Master],
    processes: Processes,
) -> None:
    seen = Seen(redis_client, "over")
    run = start_master("over", {**WALKER, "generations": 1})
    simple = processes.worker(valkey_url, "-w", "rq.SimpleWorker")
    seat = seen.joined(simple)
    run.summary()
    wait_for(lambda: not redis_client.exists(seen.keys.worker(seat)), "the seat is gone", 10)
    assert simple.process.poll() is None  # it waits for another seat
    # While it serves another run, a heartbeat that had not ended would show the seat again.
    start_master("next", {**WALKER, "generations": 1}).summary()
    assert not redis_client.exists(seen.keys.worker(seat))
