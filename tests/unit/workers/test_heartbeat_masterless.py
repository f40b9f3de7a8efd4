"""The thread beside the episodes, in a run without a master."""

from __future__ import annotations

from dataclasses import replace

import pytest

from es_queue.protocol.channel import WorkerFlags
from tests.cases import each_case
from tests.unit.workers.living import CLOCKS, Told
from workers import heartbeat as life_module
from workers.episode import EpisodeControl
from workers.heartbeat import Heartbeat, ProcessLimits


class Masterless:
    """A life that is asked for its reasons at chosen moments."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, waits: bool = False, grace: float = 60.0
    ) -> None:
        self.now, self.waits, self.asked = 1000.0, waits, 0
        monkeypatch.setattr(life_module.time, "monotonic", lambda: self.now)
        self.channel = Told(WorkerFlags("running", has_master=False))
        clocks = replace(CLOCKS, lease=10.0, beat=1.0, beat_ttl=5.0, seat_lease=1000.0, grace=grace)
        self.life = Heartbeat(
            self.channel,
            EpisodeControl(),
            dict,
            clocks,
            ProcessLimits(60.0, lambda: None, has_other_work=self.elsewhere),
        )

    def elsewhere(self) -> bool:
        self.asked += 1
        return self.waits

    def leave_reason(self, later: float = 0.0) -> str:
        """Why it must leave, so many seconds later; empty while it may stay."""
        return self.life._leave_reason(self.now + later)

    def left_after(self, seconds: int) -> int | None:
        """Look each second; after how many it must leave."""
        for second in range(seconds + 1):
            reason = self.leave_reason()
            self.now += 1.0
            if reason:
                assert reason == "the run has no master"
                return second
        return None


@each_case("grace", [60, 30])
def test_a_run_without_a_master_keeps_its_workers_for_the_grace(
    monkeypatch: pytest.MonkeyPatch, grace: int
) -> None:
    run = Masterless(monkeypatch, grace=grace)
    assert run.left_after(600) == grace + 1


def test_a_run_without_a_master_loses_its_workers_sooner_when_another_run_wants_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = Masterless(monkeypatch, waits=True)
    assert run.left_after(600) == 21 and run.asked == 1


def test_a_master_that_came_back_has_all_the_time_again(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Masterless(monkeypatch, waits=True)
    assert run.left_after(15) is None
    run.channel.told = WorkerFlags("running")
    assert run.left_after(100) is None
    run.channel.told = WorkerFlags("running", has_master=False)
    assert run.left_after(600) == 21


def test_a_lease_that_lapsed_while_redis_was_away_says_nothing_of_the_master(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = Masterless(monkeypatch, waits=True)
    assert run.left_after(15) is None
    assert run.leave_reason(-30.0) == ""  # the answer came thirty seconds after the question
    assert run.left_after(20) is None


def test_it_asks_no_more_than_once_a_beat_who_else_wants_the_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = Masterless(monkeypatch)
    assert run.left_after(20) is None
    for _ in range(10):
        run.now += 0.1
        run.leave_reason()
    assert run.asked == 1


def test_an_ended_run_is_told_from_one_that_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Masterless(monkeypatch)
    for orders, ended in (
        (WorkerFlags("running"), False),
        (WorkerFlags("paused", has_master=False), False),
        (WorkerFlags(None), False),
        (WorkerFlags("stopped"), True),
    ):
        run.channel.told = orders
        run.leave_reason()
        assert run.life.has_run_ended == ended
    run.channel.told = WorkerFlags(None)
    run.leave_reason(2 * life_module.GONE_SECONDS)
    assert run.life.has_run_ended
