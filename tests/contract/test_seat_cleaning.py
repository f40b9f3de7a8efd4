"""Abandoned seats in RQ's own structures, made by RQ's own classes: what is cleared, and what is
left alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import redis
from rq import Queue
from rq.executions import Execution
from rq.job import Job
from rq.registry import FailedJobRegistry, StartedJobRegistry

from es_queue.protocol.store import MasterStore
from master.run.open_seats import CHECK_SECONDS, LOCK_SECONDS, STUCK_SECONDS, Seats
from tests.notes import collect_notes

RUN, BEAT = "mine", 90


class Rq:
    """RQ's side: jobs as a worker leaves them when it is killed."""

    def __init__(self, client: redis.Redis) -> None:
        self.client: Any = client
        self.queue = Queue("default", connection=client)
        self.begun = StartedJobRegistry(queue=self.queue)

    def job(self, name: str) -> Job:
        return self.queue.enqueue_call(
            "workers.seat.take", job_id=name, timeout=960, result_ttl=0, failure_ttl=3600
        )

    def pop(self, name: str) -> Job:
        """A worker has taken the job from the queue, and no more."""
        job = self.job(name)
        assert self.client.lmove(self.queue.key, self.queue.intermediate_queue_key) == name.encode()
        return job

    def begin(self, name: str) -> str:
        """A worker has begun the job; the entry of the registry."""
        job = self.pop(name)
        with self.client.pipeline() as pipeline:
            execution = Execution.create(job, BEAT, pipeline=pipeline, worker_name="w")
            job.prepare_for_execution("w", pipeline=pipeline)
            pipeline.lrem(self.queue.intermediate_queue_key, 1, name)
            pipeline.execute()
        return str(execution.composite_key)

    def abandon(self, name: str) -> str:
        """A worker that had begun the job was killed, a while ago by the server's clock."""
        entry = self.begin(name)
        self.client.delete(f"rq:execution:{entry}")
        return entry

    def fail(self, name: str) -> None:
        job = self.pop(name)
        self.client.lrem(self.queue.intermediate_queue_key, 1, name)
        FailedJobRegistry(queue=self.queue).add(job, 3600, "its horse was killed")

    def keys_of(self, name: str) -> list[bytes]:
        return sorted(self.client.keys(f"*{name}*"))

    def entries(self) -> list[str]:
        return [entry.decode() for entry in self.client.zrange(self.begun.key, 0, -1)]

    def popped(self) -> list[str]:
        return [
            name.decode() for name in self.client.lrange(self.queue.intermediate_queue_key, 0, -1)
        ]


class Hands:
    """A clock that is moved by hand, in seconds."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def rq(redis_client: redis.Redis) -> Rq:
    return Rq(redis_client)


@pytest.fixture
def hands() -> Hands:
    return Hands()


def seats(rq: Rq, clock: Callable[[], float] = time.monotonic) -> Seats:
    return Seats(MasterStore(rq.client, RUN), rq.client, "default", "abcdef", 960, clock)


@pytest.fixture
def clean(rq: Rq, hands: Hands) -> Callable[[], int]:
    """Looks after a quarter of a minute."""
    cleaner = seats(rq, hands)

    def later() -> int:
        hands.now += CHECK_SECONDS
        return cleaner.clear_abandoned()

    return later


def seat(number: int, run: str = RUN) -> str:
    return f"es-{run}-abcdef-{number}"


def test_an_abandoned_seat_leaves_nothing_behind(rq: Rq, clean: Callable[[], int]) -> None:
    entry = rq.abandon(seat(1))
    assert rq.entries() == [entry]
    assert clean() == 1
    assert rq.entries() == [] and rq.keys_of(seat(1)) == []
    assert clean() == 0


def test_a_seat_whose_worker_beats_stays_whatever_its_clock_says(
    rq: Rq, clean: Callable[[], int]
) -> None:
    entry = rq.begin(seat(1))
    rq.client.zadd(rq.begun.key, {entry: 1.0})  # its worker's clock is fifty years behind
    before = rq.keys_of(seat(1))
    assert clean() == 0
    assert rq.entries() == [entry] and rq.keys_of(seat(1)) == before


def test_an_abandoned_seat_goes_although_the_clock_of_its_worker_was_ahead(
    rq: Rq, clean: Callable[[], int]
) -> None:
    entry = rq.abandon(seat(1))
    rq.client.zadd(rq.begun.key, {entry: 4e9})
    assert clean() == 1
    assert rq.entries() == []


def test_jobs_and_seats_of_others_are_left_alone(rq: Rq, clean: Callable[[], int]) -> None:
    others = [
        rq.abandon(name)
        for name in (
            "report-7",
            seat(1, "mine-too"),
            seat(1, "yours"),
            f"es-{RUN}-not-a-seat",
            f"x{seat(3)}",
        )
    ]
    before = {name: rq.keys_of(name.partition(":")[0]) for name in others}
    rq.abandon(seat(2))
    assert clean() == 1
    assert sorted(rq.entries()) == sorted(others)
    assert {name: rq.keys_of(name.partition(":")[0]) for name in others} == before


def test_nothing_is_cleared_while_another_cleaner_holds_the_lock(
    rq: Rq, clean: Callable[[], int]
) -> None:
    entry = rq.abandon(seat(1))
    assert rq.queue.acquire_maintenance_lock()
    assert clean() == 0
    assert rq.entries() == [entry]
    assert rq.client.ttl(rq.queue.registry_cleaning_key) > LOCK_SECONDS, (
        "the lock is the other's still"
    )
    rq.client.delete(rq.queue.registry_cleaning_key)
    assert clean() == 1


def test_a_seat_that_was_popped_and_never_begun_goes_after_a_minute(
    rq: Rq, clean: Callable[[], int], hands: Hands
) -> None:
    rq.pop(seat(1))
    rq.pop("report-7")
    assert clean() == 0
    assert set(rq.popped()) == {seat(1), "report-7"}
    hands.now += STUCK_SECONDS
    assert clean() == 1
    assert rq.popped() == ["report-7"] and rq.keys_of(seat(1)) == []


def test_looks_are_a_quarter_of_a_minute_apart(rq: Rq, hands: Hands) -> None:
    rq.abandon(seat(1))
    cleaner = seats(rq, hands)
    hands.now += CHECK_SECONDS - 1
    assert cleaner.clear_abandoned() == 0
    hands.now += 1
    assert cleaner.clear_abandoned() == 1
    rq.abandon(seat(2))
    assert cleaner.clear_abandoned() == 0


def test_at_the_end_of_the_run_nothing_of_it_stays_in_any_registry(rq: Rq) -> None:
    for number, leave in enumerate((rq.begin, rq.abandon, rq.pop, rq.fail)):
        leave(seat(number))
        leave(seat(number, "yours"))
    before = {number: rq.keys_of(seat(number, "yours")) for number in range(4)}
    said = collect_notes()
    seats(rq).close()
    assert rq.client.keys(f"*es-{RUN}-*") == []
    assert not [name for name in (*rq.entries(), *rq.popped()) if RUN in name]
    assert rq.client.zcard("rq:failed:default") == 1
    assert {number: rq.keys_of(seat(number, "yours")) for number in range(4)} == before
    assert said == ["RQ still listed 3 seats of workers that are gone: they were removed"]


def test_a_redis_that_refuses_is_told_of_once_and_ends_nothing(rq: Rq) -> None:
    rq.client.set("rq:wip:default", "what is no registry")
    said = collect_notes()
    keeper = seats(rq)
    keeper.close()
    keeper.close()
    assert len(said) == 1 and said[0].startswith("seats cannot be cleared: ")
