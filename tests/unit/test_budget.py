"""When a run ends, and when one that ended goes on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from es_queue.normalization import RunningMoments
from master.budget import reason_to_stop, reopened
from master.state import CLOSING, FINAL, TRAINING, Counters, RunState
from tests.ring import quick_config

STATE = RunState(10, {"parameters": np.zeros(2, np.float32)}, RunningMoments.empty(2), 100, counters=Counters(env_steps=5000, seconds=60.0))


@pytest.mark.parametrize(
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


@pytest.mark.parametrize("stage", [CLOSING, FINAL])
@pytest.mark.parametrize("reason", ["generations", "stopped by the caller"])
def test_a_run_that_ended_trains_on_when_its_budget_allows_it_now(stage: str, reason: str) -> None:
    ended = replace(STATE, stage=stage, reason=reason)
    on = reopened(quick_config(generations=11), ended)
    assert on == replace(STATE, stage=TRAINING, reason="") and on.generation == 10


def test_a_run_whose_budget_is_still_used_up_stays_ended() -> None:
    ended = replace(STATE, stage=FINAL, reason="generations")
    assert reopened(quick_config(generations=10), ended) is ended


def test_a_run_that_reached_its_target_stays_ended() -> None:
    ended = replace(STATE, stage=FINAL, reason="target")
    assert reopened(quick_config(generations=99), ended) is ended


def test_a_run_that_is_training_is_left_as_it_is() -> None:
    assert reopened(quick_config(generations=5), STATE) is STATE
