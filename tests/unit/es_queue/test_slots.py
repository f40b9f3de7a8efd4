"""The table of slots: what it makes of results that come together."""

from __future__ import annotations

from typing import Any

import numpy as np

from es_queue.environments.interface import ActionSpec, EnvironmentSpec
from es_queue.protocol.messages import TRAIN
from es_queue.slots import ANSWERED, EPISODE_FAILED, Slots, Span, Table
from es_queue.strategies import make_strategy
from tests.memory import quick_config

ROW = 2


def make_table(obs_norm: bool = False, **settings: Any) -> Slots:
    config = quick_config(
        env="Pendulum-v1", strategy="ars", population=8, obs_norm=obs_norm, **settings
    )
    action = ActionSpec("box", (1,), (-2.0,), (2.0,))
    spec = EnvironmentSpec(config.env, 3, action, 200, None, None, "stock")
    return Slots(config, make_strategy(config, 3), spec, 0, [Span(TRAIN, 0, 4)])


def record(slots: Slots, worker: int, failure: int = 0, fitness: float = 1.0) -> Table:
    result: Table = np.zeros(1, slots.shape.result)
    result["row"], result["worker"], result["failure"] = ROW, worker, failure
    result["fitness"] = result["returns"] = fitness
    result["steps"] = 200
    return result


def test_a_result_that_is_read_together_with_the_last_failure_of_its_slot_counts() -> None:
    slots = make_table()
    nothing = np.zeros(0, slots.shape.moments)
    for worker in (1, 2):
        assert not len(slots.accept(record(slots, worker, EPISODE_FAILED, np.nan), nothing))
    both = np.concatenate([record(slots, 3, EPISODE_FAILED, np.nan), record(slots, 4)])
    assert slots.accept(both, nothing).tolist() == [ROW]
    assert slots.table["state"][ROW] == ANSWERED
    assert slots.tally.refused == {"late-failure": 1}


def test_a_result_that_comes_after_its_slot_has_failed_is_no_conflict() -> None:
    slots = make_table()
    nothing = np.zeros(0, slots.shape.moments)
    for worker in (1, 2, 3):
        slots.accept(record(slots, worker, EPISODE_FAILED, np.nan), nothing)
    assert not len(slots.accept(record(slots, 4), nothing))
    assert slots.tally.refused == {"duplicate": 1}
    assert slots.tally.conflict is None


def test_steps_of_a_record_that_is_read_twice_are_not_lost() -> None:
    slots = make_table()
    nothing = np.zeros(0, slots.shape.moments)
    for worker in (1, 1, 2):
        slots.accept(record(slots, worker), nothing)
    assert slots.tally.refused == {"duplicate": 2}
    assert slots.tally.lost_steps == record(slots, 2)["steps"].sum()


def test_moments_that_are_forgotten_do_not_pass_for_those_of_the_next_result() -> None:
    slots = make_table(obs_norm=True, obs_sample=1.0)
    moments = np.zeros(2, slots.shape.moments)
    moments["row"], moments["episode"], moments["count"] = ROW, [0, 1], 200
    nothing = moments[:0]
    slots.accept(record(slots, 1)[:0], moments)
    slots.forget_moments(np.array([ROW, 99]))
    assert not len(slots.accept(record(slots, 2), nothing))
    assert slots.tally.refused == {"wrong-moments": 1}
    assert slots.accept(record(slots, 2), moments).tolist() == [ROW]
