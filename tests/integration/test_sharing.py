"""Several runs on one set of workers: each gets its share, what one leaves goes to the others, and
queues keep teams apart.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
import redis

from es_queue.protocol.keys import Clocks
from es_queue.protocol.seats import close_seats, is_seat_of, waiting_seat_ids
from tests.integration.processes import (
    CARTPOLE,
    Processes,
    Seen,
    Started,
    flags,
    parent_of,
    wait_for,
)

ENDLESS = flags({**CARTPOLE, "generations": 100_000})
#: What people have, not the quicker ones of most tests: how soon a run has its share depends on
#: them.
CLOCKS = Clocks()
#: A share takes about two seconds on an idle machine, one to notice and one to move; a busy one may
#: need longer.
SHARED_SECONDS = 30.0


class Team:
    """Masters and plain workers on one server, with the clocks that people have."""

    def __init__(self, processes: Processes, client: redis.Redis, url: str) -> None:
        self._processes, self._client, self._url = processes, client, url

    def run(self, name: str, *more: object) -> Started:
        master = self._processes.master(
            *ENDLESS, "--run", name, *more, url=self._url, clocks=CLOCKS
        )
        wait_for(lambda: self._client.exists(f"es:{name}:master"), f"{name} has begun")
        return master

    def workers(self, count: int, *more: object) -> list[Started]:
        return [self._processes.worker(self._url, *more, clocks=CLOCKS) for _ in range(count)]

    def seen(self, name: str) -> Seen:
        return Seen(self._client, name)

    def counts(self, *names: str) -> list[int]:
        return [len(self.seen(name).workers()) for name in names]

    def update(self, name: str, queue: str = "default") -> None:
        """Wait until the run's master has looked after its seats three times, by what it does about
        a missing one.
        """
        for _ in range(3):
            close_seats(self._client, queue, name)
            wait_for(
                lambda: any(
                    is_seat_of(seat, name) for seat in waiting_seat_ids(self._client, queue)
                ),
                f"{name} has a seat open",
                10,
            )

    def known(self, name: str) -> set[str]:
        """Ids of workers that joined a run and have not left it in order."""
        return {one.decode() for one in self._client.smembers(f"es:{name}:workers")}


@pytest.fixture
def team(valkey_url: str, redis_client: redis.Redis, processes: Processes) -> Iterator[Team]:
    yield Team(processes, redis_client, valkey_url)


def test_each_of_several_runs_soon_has_its_share_and_what_one_leaves_goes_to_the_others(
    team: Team,
) -> None:
    team.run("first")
    team.workers(4)
    wait_for(lambda: team.counts("first") == [4], "all four serve the only run")
    second = team.run("second")
    wait_for(lambda: team.counts("first", "second") == [2, 2], "two and two", SHARED_SECONDS)
    team.run("third")
    shares = ([2, 1, 1], [1, 2, 1], [1, 1, 2])
    wait_for(
        lambda: team.counts("first", "second", "third") in shares,
        "the third run has one",
        SHARED_SECONDS,
    )
    second.signal(signal.SIGTERM)
    assert second.wait() == 130
    wait_for(
        lambda: team.counts("first", "second", "third") == [2, 0, 2],
        "two and two again",
        SHARED_SECONDS,
    )
    before = [set(team.seen(name).workers()) for name in ("first", "third")]
    for name in ("first", "third"):
        team.update(name)
    assert [
        set(team.seen(name).workers()) for name in ("first", "third")
    ] == before  # equal shares stay where they are
    assert team.seen("first").failed_jobs() == []


def test_a_queue_keeps_a_teams_runs_and_workers_apart(team: Team) -> None:
    a = team.run("run-a", "--queue", "team-a")
    team.run("run-b", "--queue", "team-b")
    (worker_a,), (worker_b,) = team.workers(1, "team-a"), team.workers(1, "team-b")
    seats = team.seen("run-a").joined(worker_a), team.seen("run-b").joined(worker_b)
    wait_for(team.seen("run-b").has_reached(5), "run b goes on")
    assert (team.known("run-a"), team.known("run-b")) == ({seats[0]}, {seats[1]})
    a.signal(signal.SIGTERM)
    assert a.wait() == 130
    wait_for(lambda: team.counts("run-a") == [0], "worker a has left its run")
    team.update("run-b", "team-b")
    assert worker_a.process.poll() is None  # it is there, and idle
    assert team.known("run-b") == {seats[1]}
    assert parent_of(team.seen("run-b").horse(seats[1])) == worker_b.pid
