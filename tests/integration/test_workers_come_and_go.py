"""Workers join and leave as they please: the run goes on, its bits stay, nothing is left behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

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
    state_of,
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


def test_a_work_horse_whose_worker_was_killed_gives_its_block_back_and_ends(
    valkey_url: str,
    redis_client: redis.Redis,
    start_master: Callable[..., Master],
    processes: Processes,
) -> None:
    seen = Seen(redis_client, "orphan")
    run = start_master("orphan", {**WALKER, "block": 2})
    worker = processes.worker(valkey_url)
    seat = seen.joined(worker)
    horse = seen.horse(seat)
    worker.signal(
        signal.SIGKILL
    )  # while the horse runs: the kernel would end one that is stopped (SIGHUP)
    worker.wait()
    wait_for(lambda: state_of(horse) in ("", "Z"), "the orphan has ended", 5)
    assert seen.progress()["state"] == "running"
    assert seen.claims(seat) == []
    processes.worker(valkey_url)
    assert run.summary()["digest"] == quiet_digest(WALKER)
    assert run.total("recovered") == 0


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


def test_a_seat_that_ended_with_an_error_is_not_called_a_crash(
    valkey_url: str,
    redis_client: redis.Redis,
    start_master: Callable[..., Master],
    processes: Processes,
) -> None:
    seen = Seen(redis_client, "error")
    start_master("error", {**WALKER, "block": 2, "generations": 10_000})
    worker = processes.worker(valkey_url)
    seat = seen.joined(worker)
    redis_client.set(seen.keys.claims(seat), "no list")
    wait_for(lambda: "joins in 1 s: the last seat" in worker.said(), "the next seat waits")
    assert "crashed" not in worker.said()
    assert "ended with an error: " in worker.said() and "WRONGTYPE" in worker.said()


def test_a_worker_that_cannot_read_the_runs_settings_reads_them_again(
    valkey_url: str,
    redis_client: redis.Redis,
    start_master: Callable[..., Master],
    processes: Processes,
) -> None:
    seen = Seen(redis_client, "unread")
    start_master("unread", {**WALKER, "generations": 10_000})
    wait_for(lambda: seen.todo(), "a publication is open")
    config = redis_client.get(seen.keys.config)
    redis_client.set(seen.keys.config, "no settings")
    worker = processes.worker(valkey_url)
    wait_for(lambda: "cannot join: settings: " in worker.said(), "it cannot read them")
    redis_client.set(seen.keys.config, config)
    seen.joined(worker)


def test_a_seat_of_a_day_that_is_killed_delays_the_next_although_another_worker_has_cleaned_up(
    valkey_url: str,
    redis_client: redis.Redis,
    start_master: Callable[..., Master],
    processes: Processes,
    tmp_path: Path,
) -> None:
    seen = Seen(redis_client, "day")
    start_master("day", {**WALKER, "block": 2, "generations": 10_000})
    worker = processes.worker(valkey_url, TMPDIR=str(tmp_path))
    seat = seen.joined(worker)
    for path in tmp_path.glob("*/*.seat"):
        os.utime(path, (0, 0))  # it began long ago
    seen.joined(processes.worker(valkey_url, TMPDIR=str(tmp_path)))
    os.kill(seen.horse(seat), signal.SIGKILL)
    told = "joins in 1 s: the last seat on worker"
    wait_for(lambda: told in worker.said(), "the next seat waits")
    name = next(line for line in worker.said().splitlines() if told in line)
    assert name.endswith("crashed or was killed")
