"""ControlInbox: carries out requests from other terminals, once per second while the master
collects.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from es_queue.errors import DecodeError
from es_queue.protocol.control import CONTINUE, PAUSE, SET, STOP, ControlRequest
from es_queue.protocol.keys import PAUSED, RUNNING
from es_queue.protocol.store import MasterStore
from master.loop.config_timeline import format_settings
from master.loop.state import Change

LOGGER = logging.getLogger("es_queue.control")
MOST_REPLIES = 16
NO_GENERATION_LEFT = (
    "the run plays its last episodes and starts no further generation: use --resume with a "
    "larger --generations or another budget"
)
LONGEST_REPLY = 500


#: Why settings cannot change from a generation on, given the changes so far; empty if they can.
Refusal = Callable[[Sequence[Change], dict[str, Any], int], str]


class ControlInbox:
    """paused_by: who paused the run, or empty; stopped_by: who asked it to stop; pending_changes:
    changes for later generations, until the loop takes them
    """

    def __init__(
        self,
        store: MasterStore,
        refusal: Refusal = lambda changes, settings, generation: "",
        run_words: str = "RUN",
    ) -> None:
        """``run_words``: the words by which a command finds the run."""
        self._store, self._refusal = store, refusal
        self._hint = f"continue it: es-master --continue {run_words}"
        self.paused_by = self.stopped_by = ""
        self.pending_changes: list[Change] = []
        self._accepted: tuple[Change, ...] = ()
        #: Requests of changes that are not published yet, by id: they stay in Redis until then.
        self._unpublished: dict[str, bytes] = {}
        self._replies: deque[tuple[str, str]] = deque(maxlen=MOST_REPLIES)

    def begin(
        self, changes: Sequence[Change], state: str | None, paused_by: str | None = None
    ) -> None:
        """``changes``, ``state``, ``paused_by``: what the run has from an earlier master."""
        self._accepted = tuple(changes)
        self.paused_by = (paused_by or "a person") if state == PAUSED else ""
        if self.paused_by:
            LOGGER.info(f"run {self._store.run} is paused; {self._hint}")

    def progress_fields(self) -> Mapping[str, str]:
        return {
            "state": PAUSED if self.paused_by else RUNNING,
            "paused_by": self.paused_by,
            "replies": json.dumps(dict(self._replies)),
        }

    # --- each second

    def poll(self, generation: int, *, is_training: bool = True) -> None:
        """Carry out what has been requested; is_training: whether generations follow."""
        answered = []
        for raw in self._store.requests():
            try:
                request = ControlRequest.decode(raw)
            except DecodeError:
                answered.append(raw)
                continue
            if request.verb != SET:
                self._carry_out(request)
            elif not self._take_change(request, generation, is_training):
                self._unpublished[request.id] = raw
                continue
            answered.append(raw)
        if answered:
            self._store.forget_requests(answered)

    def _carry_out(self, request: ControlRequest) -> None:
        who = request.by or "a person"
        if request.verb == STOP:
            self.stopped_by = who
            LOGGER.info(f"{who} asked the run to stop")
        elif request.verb == PAUSE and not self.paused_by:
            self.paused_by = who
            LOGGER.info(f"paused by {who}; {self._hint}")
        elif request.verb == CONTINUE and self.paused_by:
            self.paused_by = ""
            LOGGER.info(f"{who} continued the run")
        self._reply(request, {STOP: "stopping", PAUSE: "paused", CONTINUE: "running"}[request.verb])

    def _take_change(self, request: ControlRequest, generation: int, is_training: bool) -> bool:
        """Returns whether the request can be removed from Redis: it is published, or refused."""
        changes = (*self._accepted, *self.pending_changes)
        if request.id in {change.id for change in changes}:
            return request.id in {change.id for change in self._accepted}
        settings, first = dict(request.settings), max(request.generation or 0, generation + 1)
        reason = self._refusal(changes, settings, first) if is_training else NO_GENERATION_LEFT
        if reason:
            self._reply(request, f"refused: {reason}")
            return True
        self.pending_changes.append(Change(first, settings, request.by, request.time, request.id))
        said = f"{format_settings(settings)} from generation {first}"
        LOGGER.info(f"{said}, set by {request.by}")
        self._reply(request, said)
        return False

    def _reply(self, request: ControlRequest, text: str) -> None:
        self._replies.append((request.id, text[:LONGEST_REPLY]))

    def discard_all(self) -> None:
        """The run has finished."""
        self._store.forget_requests(self._store.requests())

    # --- between generations

    def take_changes(self) -> list[Change]:
        taken, self.pending_changes = self.pending_changes, []
        self._accepted = (*self._accepted, *taken)
        return taken

    def acknowledge_changes(self) -> None:
        """The changes are in Redis, so remove their requests."""
        accepted = {change.id for change in self._accepted}
        if done := [raw for name, raw in self._unpublished.items() if name in accepted]:
            self._store.forget_requests(done)
            self._unpublished.clear()
