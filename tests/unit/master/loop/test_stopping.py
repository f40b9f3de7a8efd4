"""When a run ends, and when one that ended goes on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from es_queue.numerics.normalization import RunningMoments
from master.loop.state import CLOSING, FINAL, TRAINING, Best, Counters, RunState
from master.loop.stopping import reason_to_stop, reopen_state
from tests.cases import each_case
from tests.ring import quick_config

STATE = RunState(
    10,
    {"parameters": np.zeros(2, np.float32)},
    RunningMoments.empty(2),
    100,
    counters=Counters(env_steps=5000, seconds=60.0),
)


@each_case(
    ("budget", "reason"),
    [
        ({}, ""),
        ({"generations": 11, "max_steps": 5001, "max_seconds": 60.1}, ""),
        ({"generations": 10}, "generations"),
        ({"generations": 9}, "generations"),
        ({"max_steps": 5000}, "max_steps"),
        ({"max_seconds": 60.0}, "max_seconds"),
        ({"generations": 11, "max_steps": 4000, "max_seconds": 1.0}, "max_steps"),
    ],
)
def test_a_budget_that_is_used_up_ends_the_run(budget: dict[str, Any], reason: str) -> None:
    assert reason_to_stop(quick_config(**budget), STATE) == reason


@each_case("stage", [CLOSING, FINAL])
@each_case("reason", ["generations", "stopped by the caller"])
def test_a_run_that_ended_trains_on_when_its_budget_allows_it_now(stage: str, reason: str) -> None:
    ended = replace(STATE, stage=stage, reason=reason)
    on = reopen_state(quick_config(generations=11), ended, None)
    assert on == replace(STATE, stage=TRAINING, reason="") and on.generation == 10


def test_a_run_whose_budget_is_still_used_up_stays_ended() -> None:
    ended = replace(STATE, stage=FINAL, reason="generations")
    assert reopen_state(quick_config(generations=10), ended, None) is ended


CONFIRMED = Best(
    np.zeros(2, np.float32),
    np.zeros(2, np.float32),
    np.ones(2, np.float32),
    10,
    480.0,
    confirmed=True,
)


@each_case("target", [400.0, 476.0])
def test_a_run_that_reached_its_target_stays_ended(target: float) -> None:
    ended = replace(STATE, stage=FINAL, reason="target", best=CONFIRMED, confirm_mean=476.0)
    assert reopen_state(quick_config(generations=99), ended, target) is ended


@each_case("target", [477.0, None])
def test_a_run_that_reached_its_target_trains_on_for_a_higher_one_or_for_none(
    target: float | None,
) -> None:
    ended = replace(STATE, stage=FINAL, reason="target", best=CONFIRMED, confirm_mean=476.0)
    on = reopen_state(quick_config(generations=99), ended, target)
    assert (on.stage, on.reason) == (TRAINING, "") and on.best is not None and not on.best.confirmed


def test_a_run_that_is_training_is_left_as_it_is() -> None:
    assert reopen_state(quick_config(generations=5), STATE, None) is STATE
