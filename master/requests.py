"""Requests: what people ask of a run from other terminals, taken up once a second while the master collects."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from es_queue.errors import DecodeError
from es_queue.protocol.channel import PAUSED, RUNNING, MasterChannel
from es_queue.protocol.requests import CONTINUE, PAUSE, SET, STOP, Request
from master.course import shown
from master.state import Change

REPLIES_KEPT = 16
LAST = "the run plays its last episodes, and no generation is to come: go on with it by --resume, with --generations or another budget"
LONGEST_REPLY = 500


class Judge(Protocol):
    """Says why settings cannot be changed to these; empty when they can."""

    def __call__(self, changes: Sequence[Change], settings: dict[str, Any], generation: int) -> str: ...


class Requests:
    """One master's requests.

    paused: who paused the run, empty while it goes on; stop: who asked it to stop; asked: changes for generations
    to come, until the loop takes them; training: whether there are any; way: the flags by which others find the run
    """

    def __init__(self, channel: MasterChannel, note: Callable[[str], None], judge: Judge = lambda changes, settings, generation: "", way: str = "") -> None:
        self._channel, self._note, self._judge, self._way = channel, note, judge, way
        self.training = True
        self.paused = ""
        self.stop = ""
        self.asked: list[Change] = []
        self._noted: tuple[Change, ...] = ()
        self._kept: dict[str, bytes] = {}
        self._replies: deque[tuple[str, str]] = deque(maxlen=REPLIES_KEPT)

    def begin(self, changes: Sequence[Change], state: str | None, paused_by: str | None = None) -> None:
        """Go on with a run that has had ``changes``; one whose last master left it paused stays so."""
        self._noted = tuple(changes)
        self.paused = (paused_by or "a person") if state == PAUSED else ""
        if self.paused:
            self._note(f"run {self._channel.run} is paused; {self._on()}")

    def _on(self) -> str:
        return f"go on with it: es-master --continue {self._channel.run}{self._way}"

    @property
    def state(self) -> str:
        """The run's state as others may read it."""
        return PAUSED if self.paused else RUNNING

    def progress(self) -> Mapping[str, str]:
        """What goes into the run's progress each second."""
        return {"state": self.state, "paused_by": self.paused, "replies": json.dumps(dict(self._replies))}

    # --- each second

    def look(self, generation: int) -> None:
        """Take up what is new, while ``generation`` is open."""
        answered = []
        for raw in self._channel.requests():
            try:
                request = Request.decode(raw)
            except DecodeError:
                answered.append(raw)
                continue
            if self._take(request, generation):
                answered.append(raw)
            else:
                self._kept[request.id] = raw
        if answered:
            self._channel.forget_requests(answered)

    def _take(self, request: Request, generation: int) -> bool:
        """Do what is asked; whether the request can go from Redis already. A change stays until it is published."""
        if request.verb == SET:
            return self._set(request, generation)
        if request.verb == STOP:
            self.stop = request.by or "a person"
            self._note(f"{self.stop} asked the run to stop")
        if request.verb == PAUSE and not self.paused:
            self.paused = request.by or "a person"
            self._note(f"paused by {self.paused}; {self._on()}")
        if request.verb == CONTINUE and self.paused:
            self._note(f"{request.by or 'a person'} lets the run go on")
            self.paused = ""
        self._reply(request, {STOP: "stopping", PAUSE: "paused", CONTINUE: "running"}[request.verb])
        return True

    def _set(self, request: Request, generation: int) -> bool:
        known = {one.id for one in (*self._noted, *self.asked)}
        if request.id in known:
            return request.id in {one.id for one in self._noted}
        settings, first = dict(request.settings), max(request.generation or 0, generation + 1)
        reason = LAST if not self.training else self._judge((*self._noted, *self.asked), settings, first)
        if reason:
            self._reply(request, f"refused: {reason}")
            return True
        change = Change(first, settings, request.by, request.time, request.id)
        self.asked.append(change)
        self._note(f"{shown(settings)} from generation {change.generation}, set by {request.by}")
        self._reply(request, f"{shown(settings)} from generation {change.generation}")
        return False

    def _reply(self, request: Request, text: str) -> None:
        self._replies.append((request.id, text[:LONGEST_REPLY]))

    def end(self) -> None:
        """The run has finished: what was asked for generations that never came goes with it."""
        self._channel.forget_requests(self._channel.requests())

    # --- between generations

    def take_changes(self) -> list[Change]:
        """The changes that were asked for, for the state of the next generation."""
        taken, self.asked = self.asked, []
        self._noted = (*self._noted, *taken)
        return taken

    def published(self) -> None:
        """The changes that were taken are in Redis, so their requests can go."""
        done = [raw for name, raw in self._kept.items() if name in {one.id for one in self._noted}]
        if done:
            self._channel.forget_requests(done)
            self._kept.clear()
