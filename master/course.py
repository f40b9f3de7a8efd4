"""Course: the settings of each generation, from the run's own, from what was changed while it ran, and from schedules.

A pure function of the run's state, so that a resumed run and a replay take the same course.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from es_queue.config import RunConfig
from es_queue.errors import UsageError
from es_queue.schedules import pace_of
from es_queue.settings import from_values
from es_queue.strategies import make_strategy
from es_queue.strategies.base import Strategy
from master.asks import checked_steering
from master.budget import target_of
from master.learn import Learner
from master.state import Change, RunState

#: More changes than a person makes; each is in every checkpoint.
MOST_CHANGES = 1000


class Course:
    """The learner of each generation of one run. ``learner`` is that of its own settings, at generation 0."""

    def __init__(self, learner: Learner) -> None:
        self._first = learner
        self._made = lru_cache(maxsize=8)(self._make)

    @property
    def config(self) -> RunConfig:
        """The settings that the run began or was resumed with."""
        return self._first.config

    def config_at(self, changes: Sequence[Change], generation: int) -> RunConfig:
        """The settings of a generation, before schedules."""
        return settings_at(self._first.config, changes, generation)

    def learner_at(self, state: RunState) -> Learner:
        """What learns in the state's generation."""
        return self._made(self.config_at(state.changes, state.generation), state.generation)

    def strategy_at(self, changes: Sequence[Change], generation: int) -> Strategy:
        """The strategy of a generation, at its pace."""
        return self._made(self.config_at(changes, generation), generation).strategy

    def turned(self, state: RunState, changes: Sequence[Change], before: Strategy) -> RunState:
        """The state of a new generation with ``changes`` noted, its strategy taken over from ``before``."""
        state = replace(state, changes=(*state.changes, *changes))
        strategy = self.learner_at(state).strategy
        return replace(state, strategy=strategy.taken_over(state.strategy, before))

    def refusal(self, changes: Sequence[Change], settings: dict[str, Any], generation: int) -> str:
        """Why a run with ``changes`` cannot have ``settings`` as well from a generation on; empty when it can."""
        if len(changes) >= MOST_CHANGES:
            return f"the settings of this run were changed {len(changes)} times, which is the most that a run keeps"
        try:
            asked = (*changes, Change(generation, checked_steering(settings, "the request")))
            for one in sorted({change.generation for change in asked if change.generation >= generation}):
                settings_at(self._first.config, asked, one)
        except UsageError as error:
            return str(error)
        return ""

    def _make(self, config: RunConfig, generation: int) -> Learner:
        first = self._first
        if config == first.config and pace_of(config, generation) == first.strategy.pace:
            return first
        strategy = make_strategy(config, first.strategy.size, generation)
        return Learner(config, first.spec, strategy, first.noise, target_of(config, first.spec))


def settings_at(config: RunConfig, changes: Sequence[Change], generation: int) -> RunConfig:
    """The settings of a generation, before schedules: the changes up to it in the order of their generations, then of asking."""
    due = (one for one in changes if one.generation <= generation)
    return changed(config, sorted(due, key=lambda one: one.generation))


def strategy_of(config: RunConfig, changes: Sequence[Change], generation: int, size: int) -> Strategy:
    """The strategy of a generation, at its pace, for policies of ``size`` parameters."""
    return make_strategy(settings_at(config, changes, generation), size, generation)


def changed(config: RunConfig, changes: Iterable[Change]) -> RunConfig:
    """The settings after some changes, in their order. Raises UsageError where they do not fit together."""
    values: dict[str, Any] = {}
    for one in changes:
        values |= one.settings
    return from_values({**config.to_dict(), **values}, "the settings") if values else config


def without(changes: Sequence[Change], names: Iterable[str]) -> tuple[Change, ...]:
    """The changes without some settings, which were set anew since."""
    dropped = set(names)
    kept = (replace(one, settings={name: value for name, value in one.settings.items() if name not in dropped}) for one in changes)
    return tuple(one for one in kept if one.settings)


def told(changes: Iterable[Change]) -> str:
    """Changes as people read them: what, from whom, when (UTC)."""
    return "; ".join(f"{shown(one.settings)} by {one.by} at {moment(one.time)}" for one in changes)


def shown(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items())


def moment(seconds: float) -> str:
    """A wall clock's time as text, in UTC; whatever another host sent."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))
    except (ValueError, OverflowError, OSError):
        return "an unknown time"
