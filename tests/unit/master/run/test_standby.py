"""Standing by: when a run has lost its master, and when it only looks so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

import master.run.lease as module
from es_queue.protocol.channel import FINISHED, PAUSED, RUNNING, STOPPING
from es_queue.protocol.timing import Clocks
from master.display.notes import TERMINAL
from master.run.lease import Standby
from tests.cases import each_case
from tests.notes import collect_notes

CLOCKS = Clocks(lease=10.0, renew=1.0)


@dataclass
class World:
    """A run as its lease shows it, and a clock that goes on with each sleep; ``then`` is what
    happens at which second.
    """

    now: float = 0.0
    holder: str | None = "big-host pid 77 abcdef"
    left: float = 10.0
    outages: int = 0
    stored: str | None = RUNNING
    run: str = "run"
    said: list[str] = field(default_factory=lambda: collect_notes(TERMINAL))
    asked: bool = False
    events: dict[float, Callable[[World], None]] = field(default_factory=dict)

    def state(self) -> str | None:
        return self.stored

    def lease_holder(self) -> tuple[str | None, float]:
        return (None, 0.0) if self.holder is None else (self.holder, self.left)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        assert self.now < 1000, "it stands by for ever"
        if event := self.events.pop(self.now, None):
            event(self)

    def free(self) -> None:
        self.holder = None

    def finish(self) -> None:
        self.stored, self.holder = FINISHED, None

    def stand_by(self, monkeypatch: pytest.MonkeyPatch) -> tuple[bool, float]:
        """What waiting came to, and when."""
        monkeypatch.setattr(module, "time", self)
        channel: Any = self
        return Standby(channel, CLOCKS, lambda: self.asked).wait(), self.now


def test_a_lease_that_lapsed_is_taken_at_the_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(events={5.0: World.free})
    assert world.stand_by(monkeypatch) == (True, 6.0)
    assert world.said == ["standing by: big-host pid 77 leads run run"]


def test_a_run_without_a_lease_is_taken_at_the_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    assert World(holder=None).stand_by(monkeypatch) == (True, 1.0)


@each_case("state", [RUNNING, PAUSED, STOPPING])
def test_a_paused_run_or_one_that_was_stopping_wants_a_master_too(
    state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert World(holder=None, stored=state).stand_by(monkeypatch)[0]


def test_a_state_of_other_peoples_bytes_is_shown_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(stored="\x1b[31mdead")
    assert not world.stand_by(monkeypatch)[0]
    assert "\x1b" not in world.said[-1]


def test_a_person_may_end_the_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(events={4.0: lambda world: setattr(world, "asked", True)})
    assert world.stand_by(monkeypatch) == (False, 4.0)


def test_a_new_master_is_named_and_stood_by_in_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(
        events={
            2.0: lambda world: setattr(world, "holder", "other pid 5 aaaaaa"),
            9.0: World.free,
        }
    )
    assert world.stand_by(monkeypatch) == (True, 10.0)
    assert world.said == [
        f"standing by: {name} leads run run" for name in ("big-host pid 77", "other pid 5")
    ]


def test_a_lease_that_lapsed_while_redis_was_away_is_left_to_its_holder_for_a_lease(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def back(world: World) -> None:
        world.outages, world.holder = 3, None

    world = World(
        events={
            5.0: back,
            14.0: lambda world: setattr(world, "holder", "big-host pid 77 abcdef"),
            20.0: World.finish,
        }
    )
    assert world.stand_by(monkeypatch)[0] is False


def test_a_master_that_does_not_come_back_after_an_outage_is_followed_a_lease_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def back(world: World) -> None:
        world.outages, world.holder = 3, None

    assert World(events={5.0: back}).stand_by(monkeypatch) == (True, 16.0)


def test_a_redis_that_has_lost_the_run_is_left_to_its_master_for_a_lease(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lose(world: World) -> None:
        world.stored, world.holder = None, None

    def publish(world: World) -> None:
        world.stored, world.holder, world.left = RUNNING, "big-host pid 77 abcdef", 10.0

    world = World(events={5.0: lose, 8.0: publish, 30.0: World.free})
    assert world.stand_by(monkeypatch)[1] >= 31.0
    assert World(events={5.0: lose}).stand_by(monkeypatch) == (True, 16.0)
