"""A worker's Heartbeat at work over a channel that is told its orders."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from es_queue.protocol.channel import WorkerFlags
from tests.memory_channel import MemoryServer, MemoryWorkerChannel
from tests.ring import QUICK
from workers.episode import EpisodeControl
from workers.heartbeat import Heartbeat, ProcessLimits
from workers.serving import Seat

CLOCKS = replace(QUICK, leave_poll=0.01, beat=0.02)
RUNNING = WorkerFlags("running")


def serve_seat(seat: Seat, channel: Any, watch: EpisodeControl) -> None:
    """What a seat does once its channel is open."""
    seat._serve(channel, watch)


def replace_serving(monkeypatch: pytest.MonkeyPatch, serve: Callable[..., None]) -> None:
    """Seats call ``serve(seat, channel, watch)`` once their channel is open."""
    monkeypatch.setattr(Seat, "_serve", serve)


def replace_heartbeat(monkeypatch: pytest.MonkeyPatch, make: Callable[..., Any]) -> None:
    """The heartbeats of seats are what ``make(seat, channel, watch, config, about)`` gives."""
    monkeypatch.setattr(Seat, "_make_heartbeat", make)


class Told(MemoryWorkerChannel):
    """A channel that is told its orders, and counts beats and looks."""

    def __init__(self, orders: WorkerFlags = RUNNING) -> None:
        super().__init__(MemoryServer(), "host-1-abcdef")
        self.told, self.looks = orders, 0
        self.beats: list[tuple[dict[str, str], float]] = []

    def beat(self, about: Mapping[str, str], ttl: float) -> None:
        self.beats.append((dict(about), ttl))

    def poll_flags(self, publication: str = "") -> WorkerFlags:
        self.looks += 1
        return self.told


@contextmanager
def living(channel: Told, watch: EpisodeControl, **changes: Any) -> Iterator[list[float]]:
    """A Heartbeat at work; yields the moments at which it called ``on_wall_limit``."""
    expired: list[float] = []
    clocks = changes.pop("clocks", CLOCKS)
    report = changes.pop("report", None)
    about = changes.pop("about", lambda: {"host": "here"})
    life = Heartbeat(
        channel,
        watch,
        about,
        clocks,
        ProcessLimits(
            **{
                "wall_limit": 60.0,
                "on_wall_limit": lambda: expired.append(time.monotonic()),
                **changes,
            }
        ),
        report,
    )
    life.start()
    try:
        yield expired
    finally:
        life.stop()
        assert not life.is_alive()
