"""Hardened workers: they serve as plain ones do, leave at once when told to, and outlast what Redis
goes through.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis

from es_queue.protocol import keys
from es_queue.protocol.connection import client_from_url
from tests.abuse.servers import HARDENED, WHEEL, serving
from tests.faults.servers import free_port
from tests.integration.processes import (
    CARTPOLE,
    CLOCKS,
    Master,
    Processes,
    Seen,
    Started,
    quiet_digest,
    texts,
    wait_for,
)

ENDLESS = {**CARTPOLE, "generations": 100_000}


def hashes(client: redis.Redis) -> dict[str, dict[str, str]]:
    """RQ's hashes of the enrolled workers, by name."""
    found: Any = client.smembers(keys.RQ_WORKERS)
    return {name.decode().removeprefix("rq:worker:"): texts(client.hgetall(name)) for name in found}  # type: ignore[arg-type]


def idle(client: redis.Redis, name: str) -> Callable[[], bool]:
    return lambda: hashes(client).get(name, {}).get("state") == "idle"


def hardened(processes: Processes, url: str, name: str, *more: object) -> Started:
    return processes.worker(url, "--name", name, *more, **HARDENED)


def test_a_hardened_and_a_plain_worker_share_a_queue_and_can_be_told_apart(
    valkey_url: str,
    redis_client: redis.Redis,
    start_master: Callable[..., Master],
    processes: Processes,
) -> None:
    run = start_master("shared", ENDLESS)
    seen = Seen(redis_client, "shared")
    first, second = (
        hardened(processes, valkey_url, "hard"),
        processes.worker(valkey_url, "--name", "plain"),
    )
    for worker in (first, second):
        seen.joined(worker)
    assert {about["rq_name"]: about["hardened"] for about in seen.workers().values()} == {
        "hard": "yes",
        "plain": "no",
    }
    assert (
        hashes(redis_client)["hard"]["hardened"] == "yes"
        and "hardened" not in hashes(redis_client)["plain"]
    )
    listed = processes.start(processes.rq, "info", "--url", valkey_url, **HARDENED)
    assert listed.wait() == 0 and "2 workers" in listed.said() and "hard" in listed.said(), (
        listed.said()
    )
    run.stop()


def test_hardened_workers_give_the_same_parameters(
    valkey_url: str, start_master: Callable[..., Master], processes: Processes
) -> None:
    run = start_master("same", CARTPOLE)
    hardened(processes, valkey_url, "hard")
    assert run.summary()["digest"] == quiet_digest(CARTPOLE)


def test_a_warm_stop_reaches_the_seat_by_a_signal_and_nothing_is_left_behind(
    valkey_url: str,
    redis_client: redis.Redis,
    start_master: Callable[..., Master],
    processes: Processes,
) -> None:
    start_master("warm", ENDLESS)
    worker = hardened(processes, valkey_url, "hard")
    seat = Seen(redis_client, "warm").joined(worker)
    worker.signal(signal.SIGTERM)
    assert worker.wait(10) == 0
    assert "left: SIGTERM" in worker.said()
    assert (
        redis_client.llen(f"es:warm:claims:{seat}") == 0
        and Seen(redis_client, "warm").failed_jobs() == []
    )


def test_a_burst_worker_ends_when_there_is_no_seat_whatever_the_number_of_its_queues(
    valkey_url: str, processes: Processes
) -> None:
    one, several = (
        hardened(processes, valkey_url, name, "--burst", *queues)
        for name, queues in (("one", ()), ("several", ("a", "b")))
    )
    assert one.wait(20) == 0 and several.wait(20) == 0


def test_a_worker_of_several_queues_takes_seats_from_each(
    valkey_url: str,
    redis_client: redis.Redis,
    start_master: Callable[..., Master],
    processes: Processes,
) -> None:
    hardened(processes, valkey_url, "hard", "quiet", "default")
    run = start_master("several", CARTPOLE)
    assert run.summary()["digest"] == quiet_digest(CARTPOLE)


def test_a_suspended_worker_waits_and_comes_back(
    valkey_url: str,
    redis_client: redis.Redis,
    start_master: Callable[..., Master],
    processes: Processes,
) -> None:
    start_master("suspended", ENDLESS)
    worker = hardened(processes, valkey_url, "hard")
    seen = Seen(redis_client, "suspended")
    seen.joined(worker)
    redis_client.set(keys.RQ_SUSPENDED, 1)
    wait_for(lambda: hashes(redis_client)["hard"]["state"] == "suspended", "suspended")
    redis_client.delete(keys.RQ_SUSPENDED)
    seen.joined(worker)


def test_a_worker_enrols_again_when_redis_has_lost_its_data(
    valkey_url: str, redis_client: redis.Redis, processes: Processes
) -> None:
    worker = hardened(processes, valkey_url, "hard")
    wait_for(idle(redis_client, "hard"), "it waits")
    redis_client.flushall()
    wait_for(idle(redis_client, "hard"), "it is enrolled again")
    assert worker.process.poll() is None


# --- outages


class Server:
    """A server that is killed and comes back at its address; ``settings`` say whether it keeps its
    data.
    """

    def __init__(self, folder: Path, *settings: object) -> None:
        self._folder, self._settings, self.port = folder, settings, free_port()
        self.url = f"redis://127.0.0.1:{self.port}"
        self.client = client_from_url(self.url)
        self._running = ExitStack()

    def start(self) -> None:
        self._running.enter_context(serving(WHEEL, self._folder, *self._settings, port=self.port))
        wait_for(self._is_serving, "the server has read what it kept")

    def _is_serving(self) -> bool:
        try:
            return bool(self.client.ping())
        except redis.exceptions.RedisError:
            return False

    def kill(self) -> None:
        self._running.close()

    def away(self, seconds: float) -> None:
        """Killed, and started again after so many seconds: the wait is the fault."""
        self.kill()
        time.sleep(seconds)
        self.start()


KEEPS, FORGETS = ("--appendonly", "yes"), ("--appendonly", "no")


@pytest.fixture
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Server]:
    own = Server(tmp_path / "server", *getattr(request, "param", KEEPS))
    own.start()
    yield own
    own.kill()
    own.client.close()


@pytest.mark.parametrize(
    ("server", "seconds"), [(KEEPS, 2.0), (FORGETS, 2.0), (KEEPS, 6.0)], indirect=["server"]
)
def test_no_hardened_worker_ends_while_redis_is_away(
    server: Server, seconds: float, tmp_path: Path, short_folder: Path, processes: Processes
) -> None:
    """One waits for a seat, one sits, and one changes seats all the time."""
    run = Master(server.url, tmp_path / "away", "away", ENDLESS, noise=short_folder / "noise")
    waiting, sitting = (
        hardened(processes, server.url, "waiting", "quiet"),
        hardened(processes, server.url, "sitting", "--job-monitoring-interval", 3),
    )
    changing = processes.worker(
        server.url,
        "--name",
        "changing",
        "--job-monitoring-interval",
        3,
        clocks=replace(CLOCKS, seat_lease=0.3),
        **HARDENED,
    )
    seen = Seen(server.client, "away")
    for worker in (sitting, changing):
        seen.joined(worker)
    wait_for(idle(server.client, "waiting"), "one waits")
    wait_for(lambda: changing.said().count("left: ") >= 3, "one changes seats")
    server.away(seconds)
    reached, changes = seen.generation(), changing.said().count("left: ")
    wait_for(seen.has_reached(reached + 3), "learning goes on")
    wait_for(lambda: changing.said().count("left: ") >= changes + 3, "seats are changed again")
    seen.joined(sitting)
    wait_for(
        lambda: {"waiting", "sitting", "changing"} <= set(hashes(server.client)), "all are enrolled"
    )
    assert [worker.process.poll() for worker in (waiting, sitting, changing)] == [None, None, None]
    run.stop()


@pytest.mark.parametrize("queue", ["quiet", "default"])
def test_a_worker_that_is_told_to_stop_while_redis_is_away_ends(
    queue: str, server: Server, tmp_path: Path, short_folder: Path, processes: Processes
) -> None:
    run = Master(server.url, tmp_path / "stopped", "stopped", ENDLESS, noise=short_folder / "noise")
    worker = hardened(processes, server.url, "hard", queue)
    if queue == "default":
        Seen(server.client, "stopped").joined(worker)
    else:
        wait_for(idle(server.client, "hard"), "it waits")
    server.kill()
    wait_for(lambda: "unreachable" in worker.said() or queue == "default", "it has noticed")
    worker.signal(signal.SIGTERM)
    assert worker.wait(20) == 0, worker.said()
    server.start()
    run.stop()
