"""The thread beside the episodes: beats, reasons to leave, and the end of an episode that hangs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import redis

from es_queue.errors import RedisError
from es_queue.protocol.channel import Orders
from es_queue.protocol.memory_channel import MemoryServer, MemoryWorkerChannel
from tests.ring import QUICK
from tests.tiny import eventually
from workers import life as life_module
from workers.life import Life, Pace, leave_in_outage, orphaned
from workers.rollout import Leaving, Watch

CLOCKS = replace(QUICK, leave_poll=0.01, beat=0.02)
RUNNING = Orders("running")


class Told(MemoryWorkerChannel):
    """A channel that is told its orders, and counts beats and looks."""

    def __init__(self, orders: Orders = RUNNING) -> None:
        super().__init__(MemoryServer(), "host-1-abcdef")
        self.told, self.looks = orders, 0
        self.beats: list[tuple[dict[str, str], float]] = []

    def beat(self, about: Mapping[str, str], ttl: float) -> None:
        self.beats.append((dict(about), ttl))

    def orders(self, publication: str = "") -> Orders:
        self.looks += 1
        return self.told


@contextmanager
def living(channel: Told, watch: Watch, **changes: Any) -> Iterator[list[float]]:
    """A Life at work; yields the moments at which it called ``expire``."""
    expired: list[float] = []
    clocks = changes.pop("clocks", CLOCKS)
    about = changes.pop("about", lambda: {"host": "here"})
    life = Life(channel, watch, about, clocks, **{"wall_limit": 60.0, "expire": lambda: expired.append(time.monotonic()), **changes})
    life.start()
    try:
        yield expired
    finally:
        life.end()
        assert not life.is_alive()


def test_it_beats_with_what_the_worker_says_at_that_moment() -> None:
    channel, said = Told(), iter(range(1000))
    with living(channel, Watch(), about=lambda: {"block": str(next(said))}):
        assert eventually(lambda: len(channel.beats) > 3)
    assert channel.beats[:3] == [({"block": str(number)}, CLOCKS.beat_ttl) for number in range(3)]


def test_it_beats_no_more_once_it_has_ended() -> None:
    channel = Told()
    with living(channel, Watch()):
        assert eventually(lambda: channel.beats)
    before = (len(channel.beats), channel.looks)
    time.sleep(5 * CLOCKS.leave_poll)
    assert (len(channel.beats), channel.looks) == before


@pytest.mark.parametrize("orders", [RUNNING, Orders("paused"), Orders(None)], ids=["running", "paused", "unknown"])
def test_a_worker_stays_while_its_run_is_running_paused_or_out_of_sight(orders: Orders) -> None:
    channel, watch = Told(orders), Watch()
    with living(channel, watch):
        assert eventually(lambda: channel.looks > 5)
    assert watch.leaving == ""


@pytest.mark.parametrize(
    ("orders", "reason"),
    [
        (Orders("running", shutdown=True), "its RQ worker is stopping"),
        (Orders("running", suspended=True), "RQ is suspended"),
        (Orders("running", give_way=True), "another run needs workers"),
        *((Orders(state), f"the run is {state}") for state in ("stopping", "stopped", "finished", "failed")),
    ],
)
def test_a_worker_leaves_for_a_reason(orders: Orders, reason: str) -> None:
    channel, watch = Told(), Watch()
    with living(channel, watch):
        assert eventually(lambda: channel.looks > 1) and watch.leaving == ""
        channel.told = orders
        assert eventually(lambda: watch.leaving)
    assert watch.leaving == reason


def test_a_block_whose_publication_has_closed_is_stopped_and_the_worker_stays() -> None:
    watch = Watch()
    watch.serve("3.1-00000000")
    with living(Told(Orders("running", closed=True)), watch):
        eventually(lambda: watch.halt)
    assert (watch.closed, watch.leaving) == ("3.1-00000000", "")
    watch.serve("4.1-00000000")
    watch.close("3.1-00000000")
    assert (watch.halt, watch.closed) == (False, "")
    watch.leaving = "asked"
    watch.serve("5.1-00000000")
    assert watch.halt


def test_the_first_reason_stays() -> None:
    channel, watch = Told(Orders("running", suspended=True)), Watch()
    watch.leaving = "SIGTERM"
    with living(channel, watch):
        assert eventually(lambda: len(channel.beats) > 2)
    assert watch.leaving == "SIGTERM"


def test_a_run_that_stays_away_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(life_module, "GONE_SECONDS", 0.05)
    channel, watch = Told(Orders(None)), Watch()
    with living(channel, watch):
        assert eventually(lambda: watch.leaving == "the run is gone")


def test_a_seat_is_for_a_while() -> None:
    channel, watch = Told(), Watch()
    with living(channel, watch, clocks=replace(CLOCKS, seat_lease=0.05)):
        assert eventually(lambda: watch.leaving == "its lease is over")


def test_an_orphan_leaves_and_a_child_stays() -> None:
    channel, watch, orphan = Told(), Watch(), Watch()
    with living(channel, watch, parent=os.getppid()), living(Told(), orphan, parent=os.getpid()):
        assert eventually(lambda: orphan.leaving == "its RQ worker is gone")
        assert eventually(lambda: channel.looks > 3)
    assert watch.leaving == ""


def test_nobody_who_must_leave_waits_for_redis_to_come_back() -> None:
    watch = Watch()
    look = leave_in_outage(watch, None)
    look(1.0)
    watch.leaving = "SIGTERM"
    with pytest.raises(Leaving):
        look(2.0)


def test_an_orphan_does_not_wait_for_redis_either() -> None:
    watch = Watch()
    leave_in_outage(watch, os.getppid())(1.0)
    with pytest.raises(Leaving):
        leave_in_outage(watch, os.getppid() + 1)(1.0)
    assert watch.leaving == "its RQ worker is gone"


def test_a_guardian_that_is_dead_but_not_waited_for_is_gone() -> None:
    zombie = subprocess.Popen([sys.executable, "-c", ""])
    try:
        assert eventually(lambda: orphaned(None, zombie.pid) != "")
    finally:
        zombie.wait()


def test_a_local_worker_leaves_when_the_guardian_that_started_it_is_gone() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert orphaned(None, os.getpid()) == "" and orphaned(os.getppid(), None) == ""
    assert orphaned(None, ended.pid) == "the guardian that started this worker is gone"
    channel, watch = Told(), Watch()
    with living(channel, watch, guardian=ended.pid):
        assert eventually(lambda: "guardian" in watch.leaving)


def test_a_server_that_does_not_answer_is_a_reason_to_leave_and_the_thread_goes_on() -> None:
    class Broken(Told):
        def orders(self, publication: str = "") -> Orders:
            self.looks += 1
            raise RedisError("Redis did not answer for 60 s")

    channel, watch = Broken(), Watch()
    with living(channel, watch):
        assert eventually(lambda: len(channel.beats) > 3)
    assert watch.leaving == "RedisError: Redis did not answer for 60 s"


@pytest.mark.parametrize("verb", ["beat", "orders"])
@pytest.mark.parametrize(
    "error",
    [redis.exceptions.ReadOnlyError("READONLY"), redis.exceptions.NoPermissionError("NOPERM"), redis.exceptions.ResponseError("MISCONF"), RuntimeError("x")],
    ids=lambda error: str(error),
)
def test_the_thread_outlives_any_error_of_its_channel(monkeypatch: pytest.MonkeyPatch, verb: str, error: Exception) -> None:
    channel, watch, tried = Told(), Watch(), []

    def fail(*_: object) -> Orders:
        tried.append(verb)
        raise error

    with living(channel, watch):
        with monkeypatch.context() as patched:
            patched.setattr(channel, verb, fail)
            assert eventually(lambda: tried and watch.leaving)
        assert watch.leaving == f"{type(error).__name__}: {error}"
        beats = len(channel.beats)
        assert eventually(lambda: len(channel.beats) > beats + 1)
        channel.told, watch.leaving = Orders("finished"), ""
        assert eventually(lambda: watch.leaving == "the run is finished")


# --- a run without a master


class Masterless:
    """A life that is asked for its reasons at chosen moments."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, waits: bool = False, grace: float = 60.0) -> None:
        self.now, self.waits, self.asked = 1000.0, waits, 0
        monkeypatch.setattr(life_module.time, "monotonic", lambda: self.now)
        self.channel = Told(Orders("running", led=False))
        clocks = replace(CLOCKS, lease=10.0, beat=1.0, beat_ttl=5.0, seat_lease=1000.0, grace=grace)
        self.life = Life(self.channel, Watch(), dict, clocks, wall_limit=60.0, expire=lambda: None, elsewhere=self.elsewhere)

    def elsewhere(self) -> bool:
        self.asked += 1
        return self.waits

    def left_after(self, seconds: int) -> int | None:
        """Look each second; after how many it must leave."""
        for second in range(seconds + 1):
            reason = self.life._reason(self.now)
            self.now += 1.0
            if reason:
                assert reason == "the run has no master"
                return second
        return None


@pytest.mark.parametrize("grace", [60, 30])
def test_a_run_without_a_master_keeps_its_workers_for_the_grace(monkeypatch: pytest.MonkeyPatch, grace: int) -> None:
    run = Masterless(monkeypatch, grace=grace)
    assert run.left_after(600) == grace + 1


def test_a_run_without_a_master_loses_its_workers_sooner_when_another_run_wants_them(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Masterless(monkeypatch, waits=True)
    assert run.left_after(600) == 21 and run.asked == 1


def test_a_master_that_came_back_has_all_the_time_again(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Masterless(monkeypatch, waits=True)
    assert run.left_after(15) is None
    run.channel.told = Orders("running")
    assert run.left_after(100) is None
    run.channel.told = Orders("running", led=False)
    assert run.left_after(600) == 21


def test_a_lease_that_lapsed_while_redis_was_away_says_nothing_of_the_master(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Masterless(monkeypatch, waits=True)
    assert run.left_after(15) is None
    assert run.life._reason(run.now - 30.0) == ""  # the answer came thirty seconds after the question
    assert run.left_after(20) is None


def test_it_asks_no_more_than_once_a_beat_who_else_wants_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Masterless(monkeypatch)
    assert run.left_after(20) is None
    for _ in range(10):
        run.now += 0.1
        run.life._reason(run.now)
    assert run.asked == 1


def test_an_ended_run_is_told_from_one_that_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Masterless(monkeypatch)
    for orders, ended in ((Orders("running"), False), (Orders("paused", led=False), False), (Orders(None), False), (Orders("stopped"), True)):
        run.channel.told = orders
        run.life._reason(run.now)
        assert run.life.run_ended == ended
    run.channel.told = Orders(None)
    run.life._reason(run.now + 2 * life_module.GONE_SECONDS)
    assert run.life.run_ended


# --- the wall limit


def test_an_episode_that_outlasts_its_limit_is_ended_once() -> None:
    channel, watch = Told(), Watch()
    watch.began = time.monotonic() - 100
    with living(channel, watch) as expired:
        assert eventually(lambda: expired)
        seen = len(channel.beats)
        assert eventually(lambda: len(channel.beats) > seen + 5)
    assert len(expired) == 1 and watch.leaving == "an episode outlasted the wall limit"


def test_the_next_episode_has_the_whole_limit_again() -> None:
    channel, watch = Told(), Watch()
    watch.began = time.monotonic() - 100
    with living(channel, watch) as expired:
        assert eventually(lambda: expired)
        watch.began = time.monotonic()
        seen = len(channel.beats)
        assert eventually(lambda: len(channel.beats) > seen + 3) and len(expired) == 1
        watch.began = time.monotonic() - 100
        assert eventually(lambda: len(expired) == 2)


def test_between_episodes_and_within_the_limit_nothing_expires() -> None:
    channel, watch = Told(), Watch()
    with living(channel, watch) as expired:
        assert eventually(lambda: len(channel.beats) > 3)
        watch.began = time.monotonic() - 30
        seen = len(channel.beats)
        assert eventually(lambda: len(channel.beats) > seen + 3)
    assert expired == [] and watch.leaving == ""


def test_a_report_that_cannot_be_sent_does_not_end_the_thread() -> None:
    def expire() -> None:
        raise RedisError("no answer")

    channel, watch = Told(), Watch()
    watch.began = time.monotonic() - 100
    with living(channel, watch, expire=expire):
        assert eventually(lambda: len(channel.beats) > 3)


# --- how often it looks


def test_it_looks_as_often_as_the_open_task_asks() -> None:
    channel, watch = Told(), Watch()
    watch.poll = 0.01
    with living(channel, watch, clocks=replace(CLOCKS, leave_poll=2.0, beat_ttl=5.0)):
        assert eventually(lambda: channel.looks > 20, 5)


def test_however_seldom_it_is_asked_to_look_no_beat_lapses() -> None:
    channel, watch = Told(), Watch()
    watch.poll = 60.0
    began = time.monotonic()
    with living(channel, watch, clocks=replace(CLOCKS, beat_ttl=0.2)):
        assert eventually(lambda: len(channel.beats) >= 3)
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("poll", [0.2, 0.99, 1.24, 2.2, 2.4, 2.5, 2.8, 60.0])
def test_beats_are_never_further_apart_than_half_of_what_they_last(monkeypatch: pytest.MonkeyPatch, poll: float) -> None:
    channel, watch, now = Told(), Watch(), [1000.0]
    watch.poll = poll
    beats: list[float] = []
    monkeypatch.setattr(life_module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(channel, "beat", lambda *_: beats.append(now[0]))
    life = Life(channel, watch, dict, replace(CLOCKS, leave_poll=0.2, beat=1.0, beat_ttl=5.0, seat_lease=600.0), wall_limit=60.0, expire=lambda: None)

    def wait(seconds: float) -> bool:
        now[0] += seconds
        return now[0] > 1030.0

    monkeypatch.setattr(life._over, "wait", wait)
    life.run()
    assert len(beats) >= 10 and max(later - sooner for sooner, later in pairwise(beats)) <= 2.5 + 1e-9


def test_it_says_how_fast_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(life_module, "SPEAK_SECONDS", 0.03)
    said: list[str] = []
    channel, watch = Told(), Watch()
    watch.steps = 10
    with living(channel, watch, speak=said.append):
        assert eventually(lambda: len(said) > 1)
    assert said[0].endswith(" steps/s") and said[0] != said[1] == "0 steps/s"


def test_a_pace_is_of_the_last_second_or_more(monkeypatch: pytest.MonkeyPatch) -> None:
    now, watch = [100.0], Watch()
    monkeypatch.setattr(life_module.time, "monotonic", lambda: now[0])
    watch.steps = 50
    pace = Pace(watch)
    for seconds, steps, rate in ((0.5, 100, 0.0), (1.5, 100, 100.0), (0.5, 700, 100.0), (1.5, 100, 400.0)):
        now[0] += seconds
        watch.steps += steps
        assert pace.rate() == rate


def test_a_process_that_holds_too_much_leaves_once_its_episode_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    held = 100 * 2**20
    monkeypatch.setattr(life_module, "resident_memory", lambda: held)
    channel, watch, told = Told(), Watch(), list[str]()
    with living(channel, watch, memory=200 * 2**20, outgrown=told.append):
        assert eventually(lambda: channel.looks > 3) and not watch.full
        held = 300 * 2**20
        assert eventually(lambda: told)
        looks = channel.looks
        assert eventually(lambda: channel.looks > looks + 3)
    assert watch.full == "its process holds 300 MB, more than --worker-memory 200"
    assert told == [watch.full] and not watch.leaving


def test_memory_has_no_limit_unless_one_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(life_module, "resident_memory", lambda: 2**60)
    channel, watch = Told(), Watch()
    with living(channel, watch):
        assert eventually(lambda: channel.looks > 3)
    assert not watch.full
    assert life_module.resident_memory() > 2**20
