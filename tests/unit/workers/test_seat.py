"""The RQ job: it opens the next seat first, always returns, and waits after crashes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis

import es_queue.protocol.seats as seats
from es_queue.errors import EsQueueError, RedisError, RunFolderError, UsageError
from es_queue.protocol.channel import WorkerFlags
from es_queue.protocol.connection import OUTAGE_ERRORS
from tests.cases import each_case
from tests.memory_channel import MemoryServer, MemoryWorkerChannel
from tests.ring import QUICK, quick_config
from tests.unit.workers.living import replace_heartbeat, replace_serving, serve_seat
from workers import join, open_seat, parameter_cache, seat, serving
from workers.episode import EpisodeControl
from workers.heartbeat import Heartbeat, ProcessLimits
from workers.open_seat import CrashGuard, is_horse
from workers.serving import Seat

JOB = SimpleNamespace(
    origin="default", worker_name="rq worker/1", timeout=960, id="es-run-abcdef-3"
)


RQ = "rq worker/1"


class Progress:
    """A Redis client that knows the run's state, and whether its lease is there, alone."""

    def __init__(self, state: bytes | Exception | None, led: bool = True) -> None:
        self.state, self.led = state, led

    def pipeline(self, transaction: bool) -> Progress:
        return self

    def hget(self, key: str, name: str) -> Progress:
        assert (key, name) == ("es:run:progress", "state")
        return self

    def exists(self, key: str) -> Progress:
        assert key == "es:run:master"
        return self

    def execute(self) -> list[Any]:
        if isinstance(self.state, Exception):
            raise self.state
        return [self.state, int(self.led)]


def open_next(client: Any) -> str:
    return open_seat.open_next(client, "default", "run", "abcdef", 960)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(seats, "open_seats", lambda client, *rest: calls.append(rest))
    return calls


def test_the_next_seat_is_opened_while_the_run_is_running(opened: list[tuple[Any, ...]]) -> None:
    assert open_next(Progress(b"running")) == ""
    assert opened == [("default", "run", "abcdef", 1, 960)]


@each_case("state", [None, b"paused", b"stopping", b"stopped", b"finished", b"failed"])
def test_no_seat_is_opened_for_a_run_that_is_not_running(
    opened: list[tuple[Any, ...]], state: bytes | None
) -> None:
    assert open_next(Progress(state)) == ""
    assert opened == []


REFUSALS = [
    redis.exceptions.ResponseError,
    redis.exceptions.ReadOnlyError,
    redis.exceptions.NoPermissionError,
]


@each_case("error", [*OUTAGE_ERRORS, *REFUSALS])
def test_a_redis_that_is_away_or_refuses_does_not_end_the_seat(
    opened: list[tuple[Any, ...]], error: type[Exception]
) -> None:
    assert open_next(Progress(error("away"))) == ""
    assert opened == []


@each_case("refusal", REFUSALS)
def test_a_seat_that_may_not_be_opened_does_not_end_this_one(
    monkeypatch: pytest.MonkeyPatch, refusal: type[Exception]
) -> None:
    def refuse(*_: object) -> None:
        raise refusal("READONLY")

    monkeypatch.setattr(seats, "open_seats", refuse)
    assert open_next(Progress(b"running")) == ""


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (b"running", "the run has no master"),
        (b"paused", "the run has no master"),
        (None, "the run has no master"),
        (b"finished", "the run is finished"),
    ],
)
def test_a_seat_of_a_run_without_a_master_ends_at_once_and_opens_no_other(
    monkeypatch: pytest.MonkeyPatch,
    opened: list[tuple[Any, ...]],
    capsys: pytest.CaptureFixture[str],
    state: bytes | None,
    reason: str,
) -> None:
    monkeypatch.setattr("rq.get_current_job", lambda: SimpleNamespace(**vars(JOB), connection=None))
    monkeypatch.setattr(
        "es_queue.protocol.connection.clone_client", lambda _: Progress(state, led=False)
    )
    monkeypatch.setattr(Seat, "join_and_serve", lambda self: pytest.fail("it sat down"))
    seat.take()
    assert opened == [] and capsys.readouterr().out == f"es-queue run: left: {reason}\n"


def test_a_seat_is_an_rq_job(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EsQueueError, match="start it with rq worker"):
        seat.take()
    monkeypatch.setattr("rq.get_current_job", lambda: SimpleNamespace(id="somebody-elses-job"))
    with pytest.raises(UsageError, match="not a seat"):
        seat.take()


# --- sitting


@pytest.fixture
def sitting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Callable[[Callable[..., None]], MemoryServer]]:
    """Sits with ``serve`` in place of the real work; returns the run's server."""
    server = MemoryServer(config=b"{}")
    monkeypatch.setattr(
        serving,
        "RedisWorkerChannel",
        lambda client, run, worker, name, again: MemoryWorkerChannel(server, worker, run),
    )
    monkeypatch.setattr(open_seat, "host_private_directory", lambda: tmp_path)
    monkeypatch.setattr(serving, "reseed_global_generators", lambda: None)
    before = signal.getsignal(signal.SIGTERM)

    def sit(serve: Callable[..., None]) -> MemoryServer:
        replace_serving(monkeypatch, lambda _, channel, watch: serve(channel, watch))
        Seat(
            Progress(b"running"), "run", QUICK, RQ, rq_name=RQ, owns_process=is_horse()
        ).join_and_serve()
        return server

    yield sit
    signal.signal(signal.SIGTERM, before)


def test_a_seat_that_ends_well_leaves_no_trace(
    sitting: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def serve(channel: MemoryWorkerChannel, watch: EpisodeControl) -> None:
        channel.arrive({}, 60)
        assert [path.name for path in tmp_path.iterdir()] == ["rq_worker_1.seat"]
        watch.leave_reason = "its lease has expired"

    server = sitting(serve)
    assert capsys.readouterr().out == "es-queue run: left: its lease has expired\n"
    assert server.lives == {} and server.errors == [] and not list(tmp_path.iterdir())


def test_sigterm_makes_a_forked_horse_leave(
    sitting: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def serve(channel: MemoryWorkerChannel, watch: EpisodeControl) -> None:
        assert watch.leave_reason == ""
        signal.raise_signal(signal.SIGTERM)

    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sitting(serve)
    assert capsys.readouterr().out.endswith("left: SIGTERM\n")


def test_a_worker_that_runs_jobs_itself_keeps_its_handler_of_sigterm(sitting: Any) -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        signal.signal(signal.SIGTERM, lambda *_: None)
        mine = signal.getsignal(signal.SIGTERM)
        assert not is_horse()
        sitting(lambda channel, watch: watch.leave("it is over"))
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, before)


def test_whatever_goes_wrong_is_reported_to_the_run_and_not_to_rq(
    sitting: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def serve(channel: MemoryWorkerChannel, watch: EpisodeControl) -> None:
        channel.arrive({}, 60)
        raise ZeroDivisionError("a bug of ours")

    server = sitting(serve)
    told = json.loads(server.errors[0])
    assert "a bug of ours" in told["reason"] and "ZeroDivisionError" in told["trace"]
    assert capsys.readouterr().out.endswith("left: ZeroDivisionError: a bug of ours\n")
    assert server.lives == {} and [path.read_text() for path in tmp_path.iterdir()] == ["1"]


def test_an_error_that_one_sentence_explains_needs_no_report(
    sitting: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def serve(channel: MemoryWorkerChannel, watch: EpisodeControl) -> None:
        raise RedisError("Redis did not answer")

    assert sitting(serve).errors == []
    assert capsys.readouterr().out.endswith("left: Redis did not answer\n")


@pytest.mark.parametrize("fault", ["answers with an error", "does not answer"])
def test_sigterm_makes_a_worker_leave_whatever_ails_its_life_thread(
    sitting: Any, capsys: pytest.CaptureFixture[str], fault: str
) -> None:
    looked, release = threading.Event(), threading.Event()

    class Ailing(MemoryWorkerChannel):
        def poll_flags(self, publication: str = "") -> WorkerFlags:
            looked.set()
            release.wait(20)
            if fault == "does not answer":
                return WorkerFlags("running")
            raise redis.exceptions.ReadOnlyError(
                "READONLY You can't write against a read only replica."
            )

    def serve(channel: MemoryWorkerChannel, watch: EpisodeControl) -> None:
        life = Heartbeat(
            Ailing(channel.server, channel.worker),
            watch,
            dict,
            QUICK,
            ProcessLimits(60.0, lambda: None),
        )
        life.start()
        try:
            assert looked.wait(20) and not watch.leave_reason
            signal.raise_signal(signal.SIGTERM)
            assert watch.leave_reason == "SIGTERM"
        finally:
            release.set()
            life.stop()

    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sitting(serve)
    assert capsys.readouterr().out.endswith("left: SIGTERM\n")


# --- serving


class Ending:
    """In place of the heartbeat thread: says what the worker's hash would show, and how the
    run ended.
    """

    def __init__(self, about: Callable[[], dict[str, str]], ended: bool) -> None:
        self.about, self.has_run_ended = about, ended

    def start(self) -> None: ...

    def stop(self) -> None: ...


@pytest.fixture
def serving_as(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., dict[str, str]]:
    """Serves while ``joining`` stands in place of join; returns what the worker's hash showed at
    the end.
    """
    monkeypatch.setattr(parameter_cache, "host_private_directory", lambda: tmp_path)

    def serve(joining: Callable[[], None], ended: bool = False) -> dict[str, str]:
        lives: list[Ending] = []

        def life(
            self: Seat, channel: Any, watch: EpisodeControl, config: Any, about: Any
        ) -> Ending:
            lives.append(Ending(about, ended))
            return lives[0]

        watch = EpisodeControl()

        def joined(config: Any, given: EpisodeControl) -> None:
            watch.leave_reason = "the test is over"
            joining()

        replace_heartbeat(monkeypatch, life)
        monkeypatch.setattr(serving, "join", joined)
        channel = MemoryWorkerChannel(
            MemoryServer(config=quick_config().to_json().encode()), "host-1-abcdef"
        )
        seat = Seat(Progress(b"running"), "run", QUICK, RQ, rq_name=RQ, owns_process=is_horse())  # type: ignore[arg-type]
        serve_seat(seat, channel, watch)
        return lives[0].about()

    return serve


def test_a_worker_whose_noise_table_cannot_be_made_refuses_and_says_why(
    serving_as: Callable[..., dict[str, str]],
) -> None:
    def full() -> None:
        raise RunFolderError("the noise table takes 1000 MB and /tmp has 3 MB free")

    assert serving_as(full)["refuses"] == "the noise table takes 1000 MB and /tmp has 3 MB free"


@pytest.mark.parametrize("ended", [True, False])
def test_the_hosts_file_of_a_run_goes_when_the_run_has_ended(
    serving_as: Callable[..., dict[str, str]], tmp_path: Path, ended: bool
) -> None:
    def refuse() -> None:
        raise join.Refusal("another table")

    (tmp_path / "run-7.1-00000000").touch()
    serving_as(refuse, ended=ended)
    assert list(tmp_path.iterdir()) == ([] if ended else [tmp_path / "run-7.1-00000000"])


def test_what_an_exception_says_cannot_act_on_the_workers_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    open_seat.print_line("run", "cannot join: \x1b[2J\x9b1m\nes-queue run: joined \u202eover")
    assert (
        capsys.readouterr().out
        == "es-queue run: cannot join: \\x1b[2J\\x9b1m\\nes-queue run: joined \\u202eover\n"
    )
    open_seat.print_line("run", "x" * 10**6)
    assert len(capsys.readouterr().out) < 3000


# --- after crashes


def test_each_seat_that_did_not_end_cleanly_makes_the_next_wait_longer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(open_seat, "host_private_directory", lambda: tmp_path)
    assert [CrashGuard("me").begin_seat() for _ in range(9)] == [0, 1, 2, 4, 8, 16, 32, 60, 60]
    assert CrashGuard("somebody").begin_seat() == 0
    guard = CrashGuard("me")
    guard.end_seat()
    guard.end_seat()
    assert guard.begin_seat() == 0


def test_the_wait_after_crashes_is_said_and_ends_when_the_worker_is_told_to_leave(
    sitting: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    slept: list[float] = []

    def told_to_leave(seconds: float) -> None:
        slept.append(seconds)
        signal.raise_signal(signal.SIGTERM)

    (tmp_path / "rq_worker_1.seat").write_text("7")
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with monkeypatch.context() as patched:
        patched.setattr(time, "sleep", told_to_leave)
        sitting(lambda *_: None)
    assert capsys.readouterr().out == (
        "es-queue run: joins in 60 s: the last seat on worker rq worker/1 crashed or was "
        "killed\nes-queue run: left: SIGTERM\n"
    )
    assert slept == [QUICK.leave_poll]


def test_counts_of_workers_that_were_killed_long_ago_go(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(open_seat, "host_private_directory", lambda: tmp_path)
    for name, hours in (
        ("old.seat", 25),
        ("fresh.seat", 23),
        ("run-0.1-00000000", 25),
        ("me.seat", 25),
    ):
        (tmp_path / name).write_text("5")
        os.utime(tmp_path / name, (time.time() - hours * 3600,) * 2)
    assert CrashGuard("me").begin_seat() == 0
    assert {path.name for path in tmp_path.iterdir()} == {
        "fresh.seat",
        "run-0.1-00000000",
        "me.seat",
    }


@each_case("name", ["", "../../etc/passwd", "a/b", "x" * 500])
def test_an_rq_workers_name_cannot_lead_out_of_the_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    monkeypatch.setattr(open_seat, "host_private_directory", lambda: tmp_path)
    CrashGuard(name).begin_seat()
    assert len(list(tmp_path.iterdir())) == 1


@each_case("content", ["", "many", "1.5"])
def test_a_guard_that_cannot_be_read_or_written_costs_no_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str
) -> None:
    monkeypatch.setattr(open_seat, "host_private_directory", lambda: tmp_path)
    (tmp_path / "me.seat").write_text(content)
    assert CrashGuard("me").begin_seat() == 0
    monkeypatch.setattr(open_seat, "host_private_directory", lambda: None)
    guard = CrashGuard("me")
    assert guard.begin_seat() == 0
    guard.end_seat()


def test_what_a_worker_says_of_itself_changes_with_its_work() -> None:
    watch = EpisodeControl()
    watch.steps = 17
    pace, busy = SimpleNamespace(rate=lambda: 12.6), SimpleNamespace(share=lambda: None)
    assert serving.worker_figures(None, watch, pace, busy) == {}
    server = SimpleNamespace(generation=None, block="train 0 4", late=1, blocks=5)
    assert serving.worker_figures(server, watch, pace, busy) == {
        "block": "train 0 4",
        "late": "1",
        "blocks": "5",
        "steps": "17",
        "steps_per_second": "13",
        "generation": "",
        "busy": "",
    }
    server.generation, busy.share = 0, lambda: 0.25
    figures = serving.worker_figures(server, watch, pace, busy)
    assert (figures["generation"], figures["busy"]) == ("generation 0", "0.250")


CRASHING = """
import ctypes, sys
from workers import open_seat
from pathlib import Path
open_seat.host_private_directory = lambda: Path(sys.argv[1])
print(open_seat.CrashGuard("me").start_trace(sys.argv[2]), flush=True)
if sys.argv[3] == "crash":
    ctypes.string_at(0)
else:
    guard = open_seat.CrashGuard("me")
    guard.end_seat()
"""


def test_a_crash_is_told_by_the_next_seat_of_that_run_on_that_rq_worker(tmp_path: Path) -> None:
    def seated(run: str, end: str) -> str:
        return subprocess.run(
            [sys.executable, "-c", CRASHING, tmp_path, run, end],
            capture_output=True,
            text=True,
            check=False,
        ).stdout.strip()

    assert seated("mine", "crash") == ""
    told = seated("mine", "crash")
    assert "Segmentation fault" in told and "string_at" in told
    assert seated("other", "leave") == "", "it is no matter of another run"
    assert seated("mine", "leave") == "" and not list(tmp_path.glob("*.crash"))
