"""The RQ job: it opens the next seat first, always returns, and waits after crashes."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import es_queue.protocol.redis_channel as redis_channel
import es_queue.protocol.seats as seats
from es_queue.errors import EsQueueError, RedisError, UsageError
from es_queue.protocol.connection import OUTAGES
from es_queue.protocol.memory_channel import MemoryServer, MemoryWorkerChannel
from tests.ring import QUICK
from workers import seat
from workers.rollout import Watch
from workers.seat import CrashGuard, Seat

JOB = SimpleNamespace(origin="default", worker_name="rq worker/1", timeout=960, id="es-run-abcdef-3")


class Progress:
    """A Redis client that knows the run's state alone."""

    def __init__(self, state: bytes | Exception | None) -> None:
        self.state = state

    def hget(self, key: str, name: str) -> bytes | None:
        assert (key, name) == ("es:run:progress", "state")
        if isinstance(self.state, Exception):
            raise self.state
        return self.state


def seat_on(client: Any) -> Seat:
    return Seat(client, "run", "abcdef", JOB, QUICK)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(seats, "open_seats", lambda client, *rest: calls.append(rest))
    return calls


def test_the_next_seat_is_opened_while_the_run_is_running(opened: list[tuple[Any, ...]]) -> None:
    seat_on(Progress(b"running")).open_next()
    assert opened == [("default", "run", "abcdef", 1, 960)]


@pytest.mark.parametrize("state", [None, b"paused", b"stopping", b"stopped", b"finished", b"failed"])
def test_no_seat_is_opened_for_a_run_that_is_not_running(opened: list[tuple[Any, ...]], state: bytes | None) -> None:
    seat_on(Progress(state)).open_next()
    assert opened == []


@pytest.mark.parametrize("outage", OUTAGES)
def test_a_redis_that_is_away_does_not_end_the_seat(opened: list[tuple[Any, ...]], outage: type[Exception]) -> None:
    seat_on(Progress(outage("away"))).open_next()
    assert opened == []


def test_a_seat_is_an_rq_job(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EsQueueError, match="start it with rq worker"):
        seat.take()
    monkeypatch.setattr("rq.get_current_job", lambda: SimpleNamespace(id="somebody-elses-job"))
    with pytest.raises(UsageError, match="no seat"):
        seat.take()


# --- sitting


@pytest.fixture
def sitting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[Callable[..., None]], MemoryServer]]:
    """Sits with ``serve`` in place of the real work; returns the run's server."""
    server = MemoryServer(config=b"{}")
    monkeypatch.setattr(redis_channel, "RedisWorkerChannel", lambda client, run, worker, name: MemoryWorkerChannel(server, worker, run))
    monkeypatch.setattr(seat, "private_folder", lambda: tmp_path)
    monkeypatch.setattr(seat, "reseed_global_generators", lambda: None)
    before = signal.getsignal(signal.SIGTERM)

    def sit(serve: Callable[..., None]) -> MemoryServer:
        monkeypatch.setattr(Seat, "_serve", lambda self, channel, watch: serve(channel, watch))
        seat_on(Progress(b"running")).sit()
        return server

    yield sit
    signal.signal(signal.SIGTERM, before)


def test_a_seat_that_ends_well_leaves_no_trace(sitting: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def serve(channel: MemoryWorkerChannel, watch: Watch) -> None:
        channel.arrive({}, 60)
        assert [path.name for path in tmp_path.iterdir()] == ["rq_worker_1.seat"]
        watch.leaving = "its lease is over"

    server = sitting(serve)
    assert capsys.readouterr().out == "es-queue run: left: its lease is over\n"
    assert server.lives == {} and server.errors == [] and not list(tmp_path.iterdir())


def test_sigterm_makes_a_forked_horse_leave(sitting: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def serve(channel: MemoryWorkerChannel, watch: Watch) -> None:
        assert watch.leaving == ""
        signal.raise_signal(signal.SIGTERM)

    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sitting(serve)
    assert capsys.readouterr().out.endswith("left: SIGTERM\n")


def test_a_worker_that_runs_jobs_itself_keeps_its_handler_of_sigterm() -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        signal.signal(signal.SIGTERM, lambda *_: None)
        mine = signal.getsignal(signal.SIGTERM)
        seat.install_sigterm(Watch())
        assert signal.getsignal(signal.SIGTERM) is mine and not seat.is_horse()
    finally:
        signal.signal(signal.SIGTERM, before)


def test_whatever_goes_wrong_is_reported_to_the_run_and_not_to_rq(sitting: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def serve(channel: MemoryWorkerChannel, watch: Watch) -> None:
        channel.arrive({}, 60)
        raise ZeroDivisionError("a bug of ours")

    server = sitting(serve)
    told = json.loads(server.errors[0])
    assert "a bug of ours" in told["reason"] and "ZeroDivisionError" in told["trace"]
    assert capsys.readouterr().out.endswith("left: ZeroDivisionError: a bug of ours\n")
    assert server.lives == {} and [path.read_text() for path in tmp_path.iterdir()] == ["1"]


def test_an_error_that_one_sentence_explains_needs_no_report(sitting: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def serve(channel: MemoryWorkerChannel, watch: Watch) -> None:
        raise RedisError("Redis did not answer")

    assert sitting(serve).errors == []
    assert capsys.readouterr().out.endswith("left: Redis did not answer\n")


# --- after crashes


def test_each_seat_that_did_not_end_cleanly_makes_the_next_wait_longer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(seat, "private_folder", lambda: tmp_path)
    assert [CrashGuard("me").enter() for _ in range(9)] == [0, 1, 2, 4, 8, 16, 32, 60, 60]
    assert CrashGuard("somebody").enter() == 0
    guard = CrashGuard("me")
    guard.leave()
    guard.leave()
    assert guard.enter() == 0


@pytest.mark.parametrize("name", ["", "../../etc/passwd", "a/b", "x" * 500])
def test_an_rq_workers_name_cannot_lead_out_of_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    monkeypatch.setattr(seat, "private_folder", lambda: tmp_path)
    CrashGuard(name).enter()
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("content", ["", "many", "1.5"])
def test_a_guard_that_cannot_be_read_or_written_costs_no_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str) -> None:
    monkeypatch.setattr(seat, "private_folder", lambda: tmp_path)
    (tmp_path / "me.seat").write_text(content)
    assert CrashGuard("me").enter() == 0
    monkeypatch.setattr(seat, "private_folder", lambda: None)
    guard = CrashGuard("me")
    assert guard.enter() == 0
    guard.leave()


def test_what_a_worker_says_of_itself_changes_with_its_work() -> None:
    watch = Watch()
    watch.steps = 17
    pace = SimpleNamespace(rate=lambda: 12.6)
    assert seat.figures(None, watch, pace) == {}
    server = SimpleNamespace(generation=None, block="train 0 4", late=1, blocks=5)
    assert seat.figures(server, watch, pace) == {
        "block": "train 0 4", "late": "1", "blocks": "5", "steps": "17", "steps_per_second": "13", "generation": "",
    }  # fmt: skip
    server.generation = 0
    assert seat.figures(server, watch, pace)["generation"] == "generation 0"
