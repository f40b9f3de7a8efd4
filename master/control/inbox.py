"""ControlInbox: carries out requests from other terminals, once per second while the master
collects.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

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


class ChangeValidator(Protocol):
    """Returns why settings cannot change to these; empty if they can."""

    def __call__(
        self, changes: Sequence[Change], settings: dict[str, Any], generation: int
    ) -> str: ...


class ControlInbox:
    """Requests to one master.

    paused_by: who paused the run, or empty; stopped_by: who asked it to stop; pending_changes:
    changes for later generations, until the loop takes them; run_words: the words by which a
    command finds the run
    """

    def __init__(
        self,
        channel: MasterStore,
        validate_change: ChangeValidator = lambda changes, settings, generation: "",
        run_words: str = "RUN",
    ) -> None:
        self._channel, self._validate_change = channel, validate_change
        self._run_words = run_words
        self._is_training = True
        self.paused_by = ""
        self.stopped_by = ""
        self.pending_changes: list[Change] = []
        self._accepted_changes: tuple[Change, ...] = ()
        self._unpublished_requests: dict[str, bytes] = {}
        self._replies: deque[tuple[str, str]] = deque(maxlen=MOST_REPLIES)

    def begin(
        self, changes: Sequence[Change], state: str | None, paused_by: str | None = None
    ) -> None:
        self._accepted_changes = tuple(changes)
        self.paused_by = (paused_by or "a person") if state == PAUSED else ""
        if self.paused_by:
            LOGGER.info(f"run {self._channel.run} is paused; {self._continue_hint()}")

    def _continue_hint(self) -> str:
        return f"continue it: es-master --continue {self._run_words}"

    @property
    def state(self) -> str:
        return PAUSED if self.paused_by else RUNNING

    def progress_fields(self) -> Mapping[str, str]:
        return {
            "state": self.state,
            "paused_by": self.paused_by,
            "replies": json.dumps(dict(self._replies)),
        }

    # --- each second

    def poll(self, generation: int, *, is_training: bool = True) -> None:
        """is_training: whether generations follow."""
        self._is_training = is_training
        answered = []
        for raw in self._channel.requests():
            try:
                request = ControlRequest.decode(raw)
            except DecodeError:
                answered.append(raw)
                continue
            if self._handle(request, generation):
                answered.append(raw)
            else:
                self._unpublished_requests[request.id] = raw
        if answered:
            self._channel.forget_requests(answered)

    def _handle(self, request: ControlRequest, generation: int) -> bool:
        """Returns whether the request can be removed from Redis: a change stays until it is
        published.
        """
        if request.verb == SET:
            return self._handle_change(request, generation)
        if request.verb == STOP:
            self.stopped_by = request.by or "a person"
            LOGGER.info(f"{self.stopped_by} asked the run to stop")
        if request.verb == PAUSE and not self.paused_by:
            self.paused_by = request.by or "a person"
            LOGGER.info(f"paused by {self.paused_by}; {self._continue_hint()}")
        if request.verb == CONTINUE and self.paused_by:
            LOGGER.info(f"{request.by or 'a person'} continued the run")
            self.paused_by = ""
        self._reply(request, {STOP: "stopping", PAUSE: "paused", CONTINUE: "running"}[request.verb])
        return True

    def _handle_change(self, request: ControlRequest, generation: int) -> bool:
        known = {change.id for change in (*self._accepted_changes, *self.pending_changes)}
        if request.id in known:
            return request.id in {change.id for change in self._accepted_changes}
        settings, first = dict(request.settings), max(request.generation or 0, generation + 1)
        reason = (
            NO_GENERATION_LEFT
            if not self._is_training
            else self._validate_change(
                (*self._accepted_changes, *self.pending_changes), settings, first
            )
        )
        if reason:
            self._reply(request, f"refused: {reason}")
            return True
        change = Change(first, settings, request.by, request.time, request.id)
        self.pending_changes.append(change)
        LOGGER.info(
            f"{format_settings(settings)} from generation {change.generation}, set by {request.by}"
        )
        self._reply(request, f"{format_settings(settings)} from generation {change.generation}")
        return False

    def _reply(self, request: ControlRequest, text: str) -> None:
        self._replies.append((request.id, text[:LONGEST_REPLY]))

    def discard_all(self) -> None:
        """The run has finished."""
        self._channel.forget_requests(self._channel.requests())

    # --- between generations

    def take_changes(self) -> list[Change]:
        taken, self.pending_changes = self.pending_changes, []
        self._accepted_changes = (*self._accepted_changes, *taken)
        return taken

    def acknowledge_changes(self) -> None:
        """The changes are now in Redis, so remove their requests."""
        done = [
            raw
            for name, raw in self._unpublished_requests.items()
            if name in {change.id for change in self._accepted_changes}
        ]
        if done:
            self._channel.forget_requests(done)
            self._unpublished_requests.clear()
