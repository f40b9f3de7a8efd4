"""SeatManager, with a client that holds RQ's keys in memory."""

from __future__ import annotations

import base64
import time
import zlib
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import redis

import master.fleet.seat_manager as module
from es_queue.errors import EnvironmentFailure, RedisError
from es_queue.protocol.seats import (
    FAILURE_SECONDS,
    is_other_run_waiting,
    is_seat_of,
    waiting_seat_ids,
)
from master.fleet.seat_manager import (
    MOST_FAILED_SEATS,
    MOST_OPEN,
    PAIRS_AFTER_FAILURES,
    SETTLE_SECONDS,
    SeatManager,
    decode_traceback,
    is_import_failure,
)
from tests.cases import each_case
from tests.notes import collect_notes

RUN, NONCE = "mine", "abcdef"
Workers = Mapping[str, Mapping[str, str]]


def seat(number: int, run: str = RUN, nonce: str = NONCE) -> str:
    return f"es-{run}-{nonce}-{number}"


def traceback(text: str) -> bytes:
    return base64.b64encode(zlib.compress(text.encode()))


class Client:
    """The waiting jobs of one queue, its failed jobs newest first, and what RQ stores of them."""

    def __init__(self) -> None:
        self.queue: list[str] = []
        self.failed: list[str] = []
        self.scores: dict[str, float] = {}
        self.led: set[str] = set()
        self.trouble: Exception | None = None
        self.hashes: dict[str, dict[str, bytes]] = {}
        self.traces: dict[str, bytes] = {}
        self.numbers = 0
        self.away = False

    def lrange(self, key: str, start: int, stop: int) -> list[bytes]:
        if self.away:
            raise redis.exceptions.ConnectionError("away")
        if self.trouble is not None:
            raise self.trouble
        assert key == "rq:queue:default"
        return [name.encode() for name in self.queue[start : stop + 1 or None]]

    def zrevrangebyscore(
        self, key: str, most: float, least: float, start: int, num: int
    ) -> list[bytes]:
        assert key == "rq:failed:default"
        found = [
            name
            for name in self.failed
            if least <= self.scores.get(name, time.time() + FAILURE_SECONDS) <= most
        ]
        return [name.encode() for name in found[start : start + num]]

    def type(self, key: str) -> bytes:
        return {"rq:failed:default": b"zset", "rq:queue:default": b"list"}.get(key, b"none")

    def hstrlen(self, key: str, name: str) -> int:
        return len(self.hashes.get(key, {}).get(name, b""))

    def hget(self, key: str, name: str) -> bytes | None:
        return self.hashes.get(key, {}).get(name)

    def xrevrange(self, key: str, count: int) -> list[Any]:
        trace = self.traces.get(key.removeprefix("rq:results:"))
        return [] if trace is None else [(b"1-0", {b"exc_string": trace})]

    def incr(self, key: str) -> int:
        self.numbers += 1
        return self.numbers

    def pipeline(self, transaction: bool) -> Any:
        if not transaction:
            return Look(self)
        return SimpleNamespace(
            lrem=lambda key, count, name: self.queue.remove(name),
            delete=lambda key: None,
            execute=lambda: None,
        )

    def fail(
        self, number: int, worker: str = "w1", text: str = "", host: str = "box", **other: str
    ) -> None:
        name = seat(number, **other)
        self.failed.insert(0, name)
        self.hashes[f"rq:job:{name}"] = {"worker_name": worker.encode()}
        self.hashes[f"rq:worker:{worker}"] = {"hostname": host.encode()}
        if text:
            self.traces[name] = traceback(text)

    def mine(self) -> int:
        return sum(is_seat_of(name, RUN) for name in self.queue)


class Look:
    """A pipeline that reads a run's state and whether its lease is there."""

    def __init__(self, client: Client) -> None:
        self._client, self._has_led = client, False

    def hget(self, key: str, name: str) -> Look:
        return self

    def exists(self, key: str) -> Look:
        self._has_led = key.split(":")[1] in self._client.led
        return self

    def execute(self) -> list[Any]:
        if self._client.away:
            raise redis.exceptions.ConnectionError("away")
        return [b"running", int(self._has_led)]


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    found = Client()

    class Queue:
        def __init__(self, name: str, connection: Any) -> None:
            assert connection is found and name == "default"

        def enqueue_call(self, function: str, job_id: str, **about: Any) -> None:
            assert function == "workers.seat.take" and about["timeout"] == 960
            found.queue.append(job_id)

    monkeypatch.setattr("es_queue.protocol.seats.Queue", Queue)
    return found


def keeper(client: Client) -> SeatManager:
    return SeatManager(client, "default", RUN, NONCE, 960)  # type: ignore[arg-type]


def other_runs(**workers: int | None) -> Any:
    return SimpleNamespace(other_workers=lambda run: workers.get(run))


ALONE = other_runs()


def crowd(count: int, first: int = 0) -> dict[str, dict[str, str]]:
    return {f"worker-{number:03}": {"rq_name": "rq"} for number in range(first, first + count)}


# --- seats stay open


def test_an_idle_run_keeps_one_seat_open(client: Client) -> None:
    mine = keeper(client)
    for _ in range(3):
        assert mine.tick(ALONE, {}, False) == []
    assert client.queue == [seat(1)]


def test_a_seat_that_was_taken_is_followed_by_another(client: Client) -> None:
    mine = keeper(client)
    for count in range(1, 4):
        mine.tick(ALONE, crowd(count - 1), False)
        assert client.queue.pop() == seat(count)


def test_as_many_seats_are_open_as_workers_came_up_to_a_bound(client: Client) -> None:
    mine = keeper(client)
    mine.tick(ALONE, crowd(5), False)
    assert client.mine() == 5
    mine.tick(ALONE, crowd(5), False)
    assert client.mine() == 5  # what waits stays
    mine.tick(ALONE, crowd(200), False)
    assert client.mine() == MOST_OPEN
    client.queue.clear()
    mine.tick(ALONE, crowd(200), False)
    assert client.mine() == 1


def test_other_jobs_of_the_queue_are_nobodys_seats(client: Client) -> None:
    client.queue = ["somebody-elses-job", "es-mine-abcdef-", seat(4, "mine-2")]
    keeper(client).tick(other_runs(), {}, False)
    assert (
        client.queue[:3] == ["somebody-elses-job", "es-mine-abcdef-", seat(4, "mine-2")]
        and client.mine() == 1
    )


def test_a_seat_behind_many_other_jobs_is_seen_and_taken_back(client: Client) -> None:
    client.queue = [f"job-{number}" for number in range(600)]
    mine = keeper(client)
    for _ in range(3):
        mine.tick(ALONE, {}, False)
    assert client.mine() == 1
    mine.close_open_seats()
    assert client.mine() == 0 and len(client.queue) == 600


@each_case("count", [0, 1, 498, 499, 500, 501, 999, 1000, 1500])
def test_seats_are_told_once_and_in_their_order_however_long_the_queue(
    client: Client, count: int
) -> None:
    client.queue = [seat(1), *(f"job-{number}" for number in range(count)), seat(2)]
    assert waiting_seat_ids(client, "default") == [seat(1), seat(2)]  # type: ignore[arg-type]


def test_closing_takes_back_the_own_seats_alone(client: Client) -> None:
    client.queue = ["a-job", seat(1), seat(1, "other"), seat(2, RUN, "123456")]
    keeper(client).close_open_seats()
    assert client.queue == ["a-job", seat(1, "other")]


def test_a_redis_that_is_away_is_looked_at_again_later(client: Client) -> None:
    mine = keeper(client)
    client.away = True
    assert mine.tick(ALONE, {}, False) == []
    client.away = False
    mine.tick(ALONE, {}, False)
    assert client.mine() == 1


REFUSALS = [
    redis.exceptions.ReadOnlyError("READONLY"),
    redis.exceptions.NoPermissionError("NOPERM"),
    redis.exceptions.ResponseError("MISCONF"),
]


@pytest.mark.parametrize("refusal", REFUSALS, ids=str)
def test_a_redis_that_refuses_is_named_once_and_ends_nothing(
    client: Client, refusal: Exception
) -> None:
    said = collect_notes()
    mine = keeper(client)
    client.trouble = refusal
    for _ in range(3):
        assert mine.tick(ALONE, {}, False) == []
    assert said == [f"seats cannot be opened: {refusal}"]
    client.trouble = None
    mine.tick(ALONE, {}, False)
    assert client.mine() == 1


@pytest.mark.parametrize("trouble", [*REFUSALS, redis.exceptions.ConnectionError("away")], ids=str)
def test_seats_that_cannot_be_taken_back_do_not_stop_a_run_from_ending(
    client: Client, trouble: Exception
) -> None:
    client.trouble = trouble
    keeper(client).close_open_seats()


# --- who cannot serve


def test_a_worker_that_cannot_import_us_is_named_once_with_its_host(client: Client) -> None:
    said = collect_notes()
    mine = keeper(client)
    client.fail(1, "rq-7", "Traceback …\nModuleNotFoundError: No module named 'workers'\n", "box-3")
    for _ in range(3):
        mine.tick(ALONE, {}, False)
    assert said == [
        (
            "worker rq-7 on box-3 took a seat but cannot import es-queue: install it there, stop "
            "that worker, or use --queue"
        )
    ]


def test_a_hundred_other_failed_jobs_hide_nobody(client: Client) -> None:
    said = collect_notes()
    client.fail(1, "rq-7", "ModuleNotFoundError: No module named 'workers'")
    others = [f"job-{number}" for number in range(150)]
    client.failed[:0] = others
    client.scores = dict.fromkeys(others, time.time() + 365 * 24 * 3600)
    keeper(client).tick(ALONE, {}, False)
    assert len(said) == 1 and "worker rq-7" in said[0]


def test_a_crashed_horse_is_told_apart(client: Client) -> None:
    said = collect_notes()
    client.fail(1, "rq-7", "Work-horse terminated unexpectedly; waitpid returned 9 (signal 9)")
    keeper(client).tick(ALONE, {}, False)
    assert said == ["worker rq-7 on box lost its seat: its work horse was killed or crashed"]


def test_failures_of_another_run_or_session_are_not_ours(client: Client) -> None:
    said = collect_notes()
    client.fail(1, run="other")
    client.fail(2, nonce="123456")
    client.failed.insert(0, "somebody-elses-job")
    keeper(client).tick(ALONE, {}, False)
    assert said == []


def test_after_a_few_failures_two_seats_are_open(client: Client) -> None:
    mine = keeper(client)
    for number in range(1, PAIRS_AFTER_FAILURES):
        client.fail(number)
    mine.tick(ALONE, {}, False)
    assert client.mine() == 1
    client.fail(PAIRS_AFTER_FAILURES)
    mine.tick(ALONE, {}, False)
    assert client.mine() == 2


def fail_often(client: Client, mine: SeatManager, count: int, served: bool) -> None:
    for number in range(1, count + 1):
        client.fail(number)
    mine.tick(ALONE, {}, served)


def test_the_run_stops_when_nobody_who_comes_can_serve(client: Client) -> None:
    mine = keeper(client)
    fail_often(client, mine, MOST_FAILED_SEATS - 1, served=False)
    client.fail(MOST_FAILED_SEATS)
    with pytest.raises(RedisError, match=r"20 seats.*install es-queue"):
        mine.tick(ALONE, {}, False)


def test_seats_that_end_with_their_process_point_at_the_environment(client: Client) -> None:
    mine = keeper(client)
    for number in range(1, MOST_FAILED_SEATS + 1):
        client.fail(
            number, text="Work-horse terminated unexpectedly; waitpid returned 139 (signal 11)"
        )
    with pytest.raises(EnvironmentFailure, match="20 seats ended without a result"):
        mine.tick(ALONE, {}, False)


def test_a_run_that_was_ever_served_goes_on(client: Client) -> None:
    mine = keeper(client)
    mine.tick(ALONE, {}, True)
    fail_often(client, mine, 3 * MOST_FAILED_SEATS, served=False)
    assert client.mine() == 2


@each_case(
    "packed",
    [b"", b"no base64!", base64.b64encode(b"no zlib"), traceback("all is well"), b"A" * 10**6],
)
def test_a_trace_that_says_nothing_is_no_import_failure(packed: bytes) -> None:
    assert not is_import_failure(decode_traceback(packed))


# --- sharing workers between runs


@each_case(
    ("mine", "other", "leave"),
    [
        (2, 0, 1),
        (3, 1, 1),
        (5, 3, 1),
        (6, 0, 3),
        (9, 2, 3),
        (100, 1, 49),
        (4, 3, 0),
        (1, 0, 0),
        (2, 5, 0),
        (4, None, 0),
    ],
)
def test_half_the_difference_to_a_poorer_run_gives_way(
    client: Client, mine: int, other: int | None, leave: int
) -> None:
    client.queue = [seat(1), seat(9, "other")]
    leaving = keeper(client).tick(other_runs(other=other), crowd(mine), True)
    assert leaving == sorted(crowd(mine))[:leave]
    assert (client.mine() == 0) == (leave > 0)


def test_a_run_without_a_waiting_seat_gets_nobody(client: Client) -> None:
    assert keeper(client).tick(other_runs(other=0), crowd(9), True) == []


def test_a_worker_without_a_master_is_wanted_by_other_runs_that_have_one(client: Client) -> None:
    def wanted() -> bool:
        return is_other_run_waiting(client, "default", RUN)  # type: ignore[arg-type]

    client.queue, client.led = ["a-job", seat(1)], {RUN, "live"}
    assert not wanted()
    client.queue.append(seat(1, "dead"))
    assert not wanted()
    client.queue.append(seat(1, "live"))
    assert wanted()
    client.away = True
    assert not wanted()


def test_the_poorest_run_decides_how_many_leave(client: Client) -> None:
    client.queue = [seat(1, "rich"), seat(1, "poor"), seat(2, "gone")]
    assert len(keeper(client).tick(other_runs(rich=6, poor=2, gone=None), crowd(10), True)) == 4


def test_the_counts_are_given_time_to_settle(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0], time=time.time))
    client.queue = [seat(9, "other")]
    mine = keeper(client)
    assert len(mine.tick(other_runs(other=0), crowd(6), True)) == 3
    now[0] += SETTLE_SECONDS / 2
    assert mine.tick(other_runs(other=0), crowd(6), True) == []
    now[0] += SETTLE_SECONDS / 2
    assert len(mine.tick(other_runs(other=2), crowd(4), True)) == 1
    assert waiting_seat_ids(client, "default") == [seat(9, "other")]  # type: ignore[arg-type]
