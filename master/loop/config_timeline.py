"""ConfigTimeline: the settings of each generation, from the run's settings, later changes, and
schedules.

A pure function of the run's state, so a resumed run and a replay use the same settings.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

from es_queue.config.run_config import RunConfig, check_changes
from es_queue.config.scaling import format_scaling, rate_factors, scale_factors
from es_queue.errors import UsageError
from es_queue.slot_plan import validate_noise_size
from es_queue.strategies import make_strategy
from es_queue.strategies.base import Strategy
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
    time of request.
    """
    applicable = (change for change in changes if change.generation <= generation)
    return apply_changes(config, sorted(applicable, key=lambda change: change.generation))


def strategy_of(
    config: RunConfig, changes: Sequence[Change], generation: int, size: int, begun: int = 0
) -> Strategy:
    """The strategy of a generation for policies of ``size`` parameters. Its pace counts from
    generation ``begun``.
    """
    clock = schedule_clock(config, changes, generation, begun)
    return make_strategy(config_at(config, changes, generation), size, clock)


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


def apply_changes(config: RunConfig, changes: Iterable[Change]) -> RunConfig:
    """The settings after some changes, in their order. Raises UsageError if they do not fit
    together.
    """
    values: dict[str, Any] = {}
    for change in changes:
        values |= change.settings
    return RunConfig.of({**config.to_dict(), **values}, "the settings") if values else config


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
