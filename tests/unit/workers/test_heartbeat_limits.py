"""The thread beside the episodes: an episode's wall limit, how often it looks, and what a process
may hold.
"""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import pairwise

import pytest

from es_queue.errors import RedisError
from tests.cases import each_case
from tests.tiny import eventually
from tests.unit.workers.living import CLOCKS, Told, living
from workers import heartbeat as life_module
from workers.episode import EpisodeControl
from workers.heartbeat import BusyShare, Heartbeat, ProcessLimits, StepRate

# --- the wall limit


def test_an_episode_that_outlasts_its_limit_is_ended_once() -> None:
    channel, watch = Told(), EpisodeControl()
    watch.episode_began = time.monotonic() - 100
    with living(channel, watch) as expired:
        assert eventually(lambda: expired)
        seen = len(channel.beats)
        assert eventually(lambda: len(channel.beats) > seen + 5)
    assert len(expired) == 1 and watch.leave_reason == "an episode outlasted the wall limit"


def test_the_next_episode_has_the_whole_limit_again() -> None:
    channel, watch = Told(), EpisodeControl()
    watch.episode_began = time.monotonic() - 100
    with living(channel, watch) as expired:
        assert eventually(lambda: expired)
        watch.episode_began = time.monotonic()
        seen = len(channel.beats)
        assert eventually(lambda: len(channel.beats) > seen + 3) and len(expired) == 1
        watch.episode_began = time.monotonic() - 100
        assert eventually(lambda: len(expired) == 2)


def test_between_episodes_and_within_the_limit_nothing_expires() -> None:
    channel, watch = Told(), EpisodeControl()
    with living(channel, watch) as expired:
        assert eventually(lambda: len(channel.beats) > 3)
        watch.episode_began = time.monotonic() - 30
        seen = len(channel.beats)
        assert eventually(lambda: len(channel.beats) > seen + 3)
    assert expired == [] and watch.leave_reason == ""


def test_a_report_that_cannot_be_sent_does_not_end_the_thread() -> None:
    def expire() -> None:
        raise RedisError("no answer")

    channel, watch = Told(), EpisodeControl()
    watch.episode_began = time.monotonic() - 100
    with living(channel, watch, on_wall_limit=expire):
        assert eventually(lambda: len(channel.beats) > 3)


# --- how often it looks


def test_it_looks_as_often_as_the_open_task_asks() -> None:
    channel, watch = Told(), EpisodeControl()
    watch.poll = 0.01
    with living(channel, watch, clocks=replace(CLOCKS, leave_poll=2.0, beat_ttl=5.0)):
        assert eventually(lambda: channel.looks > 20, 5)


def test_however_seldom_it_is_asked_to_look_no_beat_lapses() -> None:
    channel, watch = Told(), EpisodeControl()
    watch.poll = 60.0
    began = time.monotonic()
    with living(channel, watch, clocks=replace(CLOCKS, beat_ttl=0.2)):
        assert eventually(lambda: len(channel.beats) >= 3)
    assert time.monotonic() - began < 10


@each_case("poll", [0.2, 0.99, 1.24, 2.2, 2.4, 2.5, 2.8, 60.0])
def test_beats_are_never_further_apart_than_half_of_what_they_last(
    monkeypatch: pytest.MonkeyPatch, poll: float
) -> None:
    channel, watch, now = Told(), EpisodeControl(), [1000.0]
    watch.poll = poll
    beats: list[float] = []
    monkeypatch.setattr(life_module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(channel, "beat", lambda *_: beats.append(now[0]))
    life = Heartbeat(
        channel,
        watch,
        dict,
        replace(CLOCKS, leave_poll=0.2, beat=1.0, beat_ttl=5.0, seat_lease=600.0),
        ProcessLimits(60.0, lambda: None),
    )

    def wait(seconds: float) -> bool:
        now[0] += seconds
        return now[0] > 1030.0

    monkeypatch.setattr(life._stopping, "wait", wait)
    life.run()
    assert (
        len(beats) >= 10 and max(later - sooner for sooner, later in pairwise(beats)) <= 2.5 + 1e-9
    )


def test_it_says_how_fast_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(life_module, "REPORT_SECONDS", 0.03)
    said: list[str] = []
    channel, watch = Told(), EpisodeControl()
    watch.steps = 10
    with living(channel, watch, report=said.append):
        assert eventually(lambda: len(said) > 1)
    assert said[0].endswith(" steps/s") and said[0] != said[1] == "0 steps/s"


def test_a_worker_that_has_played_nothing_has_no_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(life_module, "REPORT_SECONDS", 0.0)
    said: list[str] = []
    channel = Told()
    with living(channel, EpisodeControl(), report=said.append):
        assert eventually(lambda: len(channel.beats) > 3)
    assert said == []


def test_a_pace_is_of_the_last_second_or_more(monkeypatch: pytest.MonkeyPatch) -> None:
    now, watch = [100.0], EpisodeControl()
    monkeypatch.setattr(life_module.time, "monotonic", lambda: now[0])
    watch.steps = 50
    pace = StepRate(watch)
    for seconds, steps, rate in (
        (0.5, 100, 0.0),
        (1.5, 100, 100.0),
        (0.5, 700, 100.0),
        (1.5, 100, 400.0),
    ):
        now[0] += seconds
        watch.steps += steps
        assert pace.rate() == rate


def test_a_busy_share_is_of_the_last_half_minute_or_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now, control = [100.0], EpisodeControl()
    monkeypatch.setattr(life_module.time, "monotonic", lambda: now[0])
    busy = BusyShare(control)
    # Seconds that pass, seconds of play among them, and the share then.
    for seconds, played, share in (
        (5, 5, None),
        (15, 5, 0.5),
        (20, 0, 0.25),
        (30, 30, 1.0),
        (30, 0, 0.0),
        (10, 10, 0.25),
    ):
        control.begin_block("0.1-00000000")
        now[0] += played
        control.end_block()
        now[0] += seconds - played
        assert busy.share() == share


def test_a_process_that_holds_too_much_leaves_once_its_episode_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = 100 * 2**20
    monkeypatch.setattr(life_module, "resident_memory", lambda: held)
    channel, watch, told = Told(), EpisodeControl(), list[str]()
    with living(channel, watch, memory=200 * 2**20, on_memory_limit=told.append):
        assert eventually(lambda: channel.looks > 3) and not watch.finish_reason
        held = 300 * 2**20
        assert eventually(lambda: told)
        looks = channel.looks
        assert eventually(lambda: channel.looks > looks + 3)
    assert watch.finish_reason == "its process holds 300 MB, more than --worker-memory 200"
    assert told == [watch.finish_reason] and not watch.leave_reason


def test_memory_has_no_limit_unless_one_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(life_module, "resident_memory", lambda: 2**60)
    channel, watch = Told(), EpisodeControl()
    with living(channel, watch):
        assert eventually(lambda: channel.looks > 3)
    assert not watch.finish_reason
    assert life_module.resident_memory() > 2**20
