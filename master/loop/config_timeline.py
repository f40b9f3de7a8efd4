"""The settings of each generation, and what people request while a run trains.

``ConfigTimeline`` derives settings from the run's own, later changes, and schedules: a pure
function of the run's state, so a resumed run and a replay use the same. ``ControlInbox`` carries
out requests from other terminals.
"""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

from es_queue.config.run_config import RunConfig, check_changes
from es_queue.config.scaling import format_scaling, rate_factors, scale_factors
from es_queue.errors import DecodeError, UsageError
from es_queue.protocol.control import CONTINUE, PAUSE, SET, STOP, ControlRequest
from es_queue.protocol.keys import PAUSED, RUNNING
from es_queue.protocol.store import MasterStore
from es_queue.slot_plan import validate_noise_size
from es_queue.strategies import make_strategy
from master.loop.learner import Learner
from master.loop.state import Change, RunState

LOGGER = logging.getLogger("es_queue.loop")
#: More changes than a person makes; each is in every checkpoint.
MOST_CHANGES = 1000


class ConfigTimeline:
    """The learner of each generation. ``base`` has the run's own settings, at generation 0."""

    def __init__(self, base: Learner) -> None:
        #: config: the settings that the run began or was resumed with
        self.base, self.config = base, base.requested
        self._cached_learner = lru_cache(maxsize=8)(self._make_learner)

    def max_seconds_at(self, changes: Sequence[Change], generation: int) -> float:
        """``max_seconds`` of a generation; called often, so without building all settings."""
        budget: float = self.config.max_seconds
        for change in sorted(changes, key=lambda change: change.generation):
            if change.generation <= generation:
                budget = change.settings.get("max_seconds", budget)
        return budget

    def learner_at(self, state: RunState) -> Learner:
        return self._learner(state.changes, state.generation, state.descent.generation)

    def _learner(self, changes: Sequence[Change], generation: int, begun: int = 0) -> Learner:
        clock = schedule_clock(self.config, changes, generation, begun)
        return self._cached_learner(config_at(self.config, changes, generation), clock)

    def _make_learner(self, config: RunConfig, clock: int) -> Learner:
        base = self.base
        if config == self.config and rate_factors(config, clock) == base.strategy.pace:
            return base
        strategy = make_strategy(config, base.strategy.size, clock)
        return Learner(config, base.spec, strategy, base.noise)

    def advance(
        self, state: RunState, changes: Sequence[Change], last: Learner, returns_to: int | None
    ) -> RunState:
        """The state of a new generation with ``changes``. Its search is of the learner before, or
        of generation ``returns_to``; it is converted to the new settings.
        """
        before = last if returns_to is None else self._learner(state.changes, returns_to)
        state = replace(state, changes=(*state.changes, *changes))
        learner = self.learner_at(state)
        if learner.requested.scale != last.requested.scale:
            LOGGER.info(format_scaling(learner.requested))
        search = learner.strategy.migrate_state(state.strategy, before.strategy)
        return replace(state, strategy=search)

    def refusal(self, changes: Sequence[Change], settings: dict[str, Any], generation: int) -> str:
        """Why a run with ``changes`` cannot also have ``settings`` from a generation on; empty if
        it can.
        """
        if len(changes) >= MOST_CHANGES:
            return (
                f"the settings of this run were changed {len(changes)} times, and a run "
                "keeps no more changes"
            )
        if "scale" in settings and self.base.strategy.reevaluates:
            return (
                f"scale is {settings['scale']}, but workers number the repeated evaluations of "
                f"{self.config.strategy} by its first population: begin another run with --scale"
            )
        try:
            requested = (*changes, Change(generation, check_changes(settings, "the request")))
            for first in sorted({change.generation for change in requested}):
                if first >= generation:
                    changed = config_at(self.config, requested, first)
                    validate_noise_size(changed, self.base.strategy.size)
                    self._make_learner(changed, 0)  # its settings fit together at their scale, too
        except UsageError as error:
            return str(error)
        return ""


def config_at(config: RunConfig, changes: Sequence[Change], generation: int) -> RunConfig:
    """The settings of a generation, before schedules: the changes up to it, by generation, then by
    time of request. Raises UsageError if they do not fit together.
    """
    values: dict[str, Any] = {}
    for change in sorted(changes, key=lambda change: change.generation):
        if change.generation <= generation:
            values |= change.settings
    return RunConfig.of({**config.to_dict(), **values}, "the settings") if values else config


def schedule_clock(
    config: RunConfig, changes: Sequence[Change], generation: int, begun: int = 0
) -> int:
    """Generations on the clock of schedules since generation ``begun``: each counts as the speed
    of its ``scale``.
    """
    turns = {
        change.generation
        for change in changes
        if "scale" in change.settings and begun < change.generation < generation
    }
    firsts = sorted({begun, *turns})
    speeds = (scale_factors(config_at(config, changes, first)).speed for first in firsts)
    spans = pairwise((*firsts, generation))
    return int(
        sum(speed * (last - first) for speed, (first, last) in zip(speeds, spans, strict=True))
    )


def drop_settings(changes: Sequence[Change], names: Container[str]) -> tuple[Change, ...]:
    """The changes without some settings, which were set again later."""
    kept = (
        replace(change, settings={k: v for k, v in change.settings.items() if k not in names})
        for change in changes
    )
    return tuple(change for change in kept if change.settings)


def format_changes(changes: Iterable[Change]) -> str:
    """Changes in words: what, by whom, when (UTC)."""
    return "; ".join(
        f"{format_settings(change.settings)} by {change.by} at {format_utc_time(change.time)}"
        for change in changes
    )


def format_settings(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items())


def format_utc_time(seconds: float) -> str:
    """A wall-clock time in UTC, safe for any value from another host."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))
    except (ValueError, OverflowError, OSError):
        return "an unknown time"


# --- requests: stop, pause, continue, set

CONTROL_LOGGER = logging.getLogger("es_queue.control")
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
            CONTROL_LOGGER.info(f"run {self._store.run} is paused; {self._hint}")

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
            CONTROL_LOGGER.info(f"{who} asked the run to stop")
        elif request.verb == PAUSE and not self.paused_by:
            self.paused_by = who
            CONTROL_LOGGER.info(f"paused by {who}; {self._hint}")
        elif request.verb == CONTINUE and self.paused_by:
            self.paused_by = ""
            CONTROL_LOGGER.info(f"{who} continued the run")
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
        CONTROL_LOGGER.info(f"{said}, set by {request.by}")
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
