"""The thread beside the episodes: beats, and the reasons to leave."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import redis

from es_queue.errors import RedisError
from es_queue.protocol.channel import WorkerFlags
from tests.cases import each_case
from tests.tiny import eventually
from tests.unit.workers.living import CLOCKS, RUNNING, Told, living
from workers import heartbeat as life_module
from workers.episode import EpisodeControl, Leaving
from workers.heartbeat import leave_in_outage, orphan_reason


def test_it_beats_with_what_the_worker_says_at_that_moment() -> None:
    channel, said = Told(), iter(range(1000))
    with living(channel, EpisodeControl(), about=lambda: {"block": str(next(said))}):
        assert eventually(lambda: len(channel.beats) > 3)
    assert channel.beats[:3] == [({"block": str(number)}, CLOCKS.beat_ttl) for number in range(3)]


def test_it_beats_no_more_once_it_has_ended() -> None:
    channel = Told()
    with living(channel, EpisodeControl()):
        assert eventually(lambda: channel.beats)
    before = (len(channel.beats), channel.looks)
    time.sleep(5 * CLOCKS.leave_poll)
    assert (len(channel.beats), channel.looks) == before


@each_case(
    "orders",
    [RUNNING, WorkerFlags("paused"), WorkerFlags(None)],
)
def test_a_worker_stays_while_its_run_is_running_paused_or_out_of_sight(
    orders: WorkerFlags,
) -> None:
    channel, watch = Told(orders), EpisodeControl()
    with living(channel, watch):
        assert eventually(lambda: channel.looks > 5)
    assert watch.leave_reason == ""


@each_case(
    ("orders", "reason"),
    [
        (WorkerFlags("running", shutdown=True), "its RQ worker is stopping"),
        (WorkerFlags("running", suspended=True), "RQ is suspended"),
        (WorkerFlags("running", give_way=True), "another run needs workers"),
        *(
            (WorkerFlags(state), f"the run is {state}")
            for state in ("stopping", "stopped", "finished", "failed")
        ),
    ],
)
def test_a_worker_leaves_for_a_reason(orders: WorkerFlags, reason: str) -> None:
    channel, watch = Told(), EpisodeControl()
    with living(channel, watch):
        assert eventually(lambda: channel.looks > 1) and watch.leave_reason == ""
        channel.told = orders
        assert eventually(lambda: watch.leave_reason)
    assert watch.leave_reason == reason


def test_a_block_whose_publication_has_closed_is_stopped_and_the_worker_stays() -> None:
    watch = EpisodeControl()
    watch.begin_block("3.1-00000000")
    with living(Told(WorkerFlags("running", closed=True)), watch):
        eventually(lambda: watch.closed)
    assert (watch.closed, watch.leave_reason) == ("3.1-00000000", "")
    with pytest.raises(Leaving):
        watch.begin_steps()
    watch.begin_block("4.1-00000000")
    watch.close_publication("3.1-00000000")
    watch.begin_steps()
    watch.leave_reason = "asked"
    watch.begin_block("5.1-00000000")
    with pytest.raises(Leaving):
        watch.begin_steps()


def test_the_first_reason_stays() -> None:
    channel, watch = Told(WorkerFlags("running", suspended=True)), EpisodeControl()
    watch.leave_reason = "SIGTERM"
    with living(channel, watch):
        assert eventually(lambda: len(channel.beats) > 2)
    assert watch.leave_reason == "SIGTERM"


def test_a_run_that_stays_away_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(life_module, "GONE_SECONDS", 0.05)
    channel, watch = Told(WorkerFlags(None)), EpisodeControl()
    with living(channel, watch):
        assert eventually(lambda: watch.leave_reason == "the run is gone")


def test_a_seat_is_for_a_while() -> None:
    channel, watch = Told(), EpisodeControl()
    with living(channel, watch, clocks=replace(CLOCKS, seat_lease=0.05)):
        assert eventually(lambda: watch.leave_reason == "its lease has expired")


def test_an_orphan_leaves_and_a_child_stays() -> None:
    channel, watch, orphan = Told(), EpisodeControl(), EpisodeControl()
    with living(channel, watch, parent=os.getppid()), living(Told(), orphan, parent=os.getpid()):
        assert eventually(lambda: orphan.leave_reason == "its RQ worker is gone")
        assert eventually(lambda: channel.looks > 3)
    assert watch.leave_reason == ""


def test_nobody_who_must_leave_waits_for_redis_to_come_back() -> None:
    watch = EpisodeControl()
    look = leave_in_outage(watch, None)
    look(1.0)
    watch.leave_reason = "SIGTERM"
    with pytest.raises(Leaving):
        look(2.0)


def test_an_orphan_does_not_wait_for_redis_either() -> None:
    watch = EpisodeControl()
    leave_in_outage(watch, os.getppid())(1.0)
    with pytest.raises(Leaving):
        leave_in_outage(watch, os.getppid() + 1)(1.0)
    assert watch.leave_reason == "its RQ worker is gone"


def test_a_guardian_that_is_dead_but_not_waited_for_is_gone() -> None:
    zombie = subprocess.Popen([sys.executable, "-c", ""])
    try:
        assert eventually(lambda: orphan_reason(None, zombie.pid) != "")
    finally:
        zombie.wait()


def test_a_local_worker_leaves_when_the_guardian_that_started_it_is_gone() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert orphan_reason(None, os.getpid()) == "" and orphan_reason(os.getppid(), None) == ""
    assert orphan_reason(None, ended.pid) == "the supervisor that started this worker is gone"
    channel, watch = Told(), EpisodeControl()
    with living(channel, watch, supervisor=ended.pid):
        assert eventually(lambda: "supervisor" in watch.leave_reason)


def test_a_server_that_does_not_answer_is_a_reason_to_leave_and_the_thread_goes_on() -> None:
    class Broken(Told):
        def poll_flags(self, publication: str = "") -> WorkerFlags:
            self.looks += 1
            raise RedisError("Redis did not answer for 60 s")

    channel, watch = Broken(), EpisodeControl()
    with living(channel, watch):
        assert eventually(lambda: len(channel.beats) > 3)
    assert watch.leave_reason == "RedisError: Redis did not answer for 60 s"


@each_case("verb", ["beat", "poll_flags"])
@each_case(
    "error",
    [
        redis.exceptions.ReadOnlyError("READONLY"),
        redis.exceptions.NoPermissionError("NOPERM"),
        redis.exceptions.ResponseError("MISCONF"),
        RuntimeError("x"),
    ],
)
def test_the_thread_outlives_any_error_of_its_channel(
    monkeypatch: pytest.MonkeyPatch, verb: str, error: Exception
) -> None:
    channel, watch, tried = Told(), EpisodeControl(), []

    def fail(*_: object) -> WorkerFlags:
        tried.append(verb)
        raise error

    with living(channel, watch):
        with monkeypatch.context() as patched:
            patched.setattr(channel, verb, fail)
            assert eventually(lambda: tried and watch.leave_reason)
        assert watch.leave_reason == f"{type(error).__name__}: {error}"
        beats = len(channel.beats)
        assert eventually(lambda: len(channel.beats) > beats + 1)
        channel.told, watch.leave_reason = WorkerFlags("finished"), ""
        assert eventually(lambda: watch.leave_reason == "the run is finished")
