"""Restart by deadline: when a descent ends, and what the next one begins with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from es_queue.config.episode_rules import parse_deadlines
from es_queue.config.run_config import RunConfig
from es_queue.numerics.noise_table import NoiseTable
from es_queue.numerics.return_statistics import ReturnStatistics
from master.loop.config_timeline import ConfigTimeline
from master.loop.rollback import begin_descent, is_overdue, with_evaluation, with_first_step
from master.loop.state import Counters, CurrentDescent, RunState
from master.run.setup import prepare_run
from tests.cases import each_case
from tests.ring import quick_config, run_ring
from tests.tiny import QUAD

NOISE = NoiseTable.in_memory(2**18)
DEADLINES = parse_deadlines("100=5,200=10")


def evaluated(mean: float) -> ReturnStatistics:
    return ReturnStatistics(mean, 1.0, mean, mean, 2)


def config_with_deadlines(**values: Any) -> RunConfig:
    return quick_config(
        **{
            "strategy": "snes",
            "env": QUAD,
            "population": 6,
            "sigma": 0.1,
            "sigma_schedule": "exponential:0.5",
            "sigma_learning_rate": 0.0,
            "step_limit": "adaptive:1,0.1,2",
            "eval_every": 2,
            "eval_episodes": 2,
            "target_reward": "none",
            "restart_deadlines": "1=1e6",
            "generations": 8,
            **values,
        }
    )


def state_of(steps: int, best: float | None, begun: int = 0) -> RunState:
    first = prepare_run(config_with_deadlines(), table=NOISE).initial_state()
    descent = CurrentDescent(0, 0, begun, best)
    return replace(first, generation=7, descent=descent, counters=Counters(env_steps=steps))


@each_case(
    ("steps", "best", "begun", "expected"),
    [
        (99, 4.0, 0, False),
        (100, 4.0, 0, True),
        (100, 5.0, 0, False),
        (199, 5.0, 0, False),
        (200, 5.0, 0, True),
        (200, 10.0, 0, False),
        (1099, 4.0, 1000, False),
        (1100, 4.0, 1000, True),
        (1100, None, 0, False),
    ],
)
def test_a_descent_is_overdue_after_its_own_steps_below_the_return(
    steps: int, best: float | None, begun: int, expected: bool
) -> None:
    assert is_overdue(state_of(steps, best, begun), DEADLINES) is expected


def test_a_descent_remembers_its_best_evaluation() -> None:
    state = state_of(0, None)
    for mean, best in ((3.0, 3.0), (2.0, 3.0), (4.0, 4.0)):
        state = with_evaluation(state, evaluated(mean))
        assert state.descent.best == best
    assert with_evaluation(state, None) is state


def test_a_descent_begins_with_the_first_search_and_its_schedules() -> None:
    learner = prepare_run(config_with_deadlines(), table=NOISE).learner
    before = state_of(500, 1.0)
    learnt = {name: array + 1 for name, array in before.strategy.items()}
    after = begin_descent(replace(before, strategy=learnt, step_limit=99))
    assert with_first_step(after).descent == CurrentDescent(1, 8, 500)
    assert (after.generation, after.step_limit) == (8, before.step_limit)
    np.testing.assert_array_equal(after.strategy["parameters"], before.strategy["parameters"])
    timeline = ConfigTimeline(learner)
    assert timeline.learner_at(after).strategy.pace.sigma == 1.0
    assert timeline.learner_at(replace(after, generation=10)).strategy.pace.sigma == 0.25


def test_a_descent_survives_a_checkpoint() -> None:
    state = replace(state_of(0, None), descent=CurrentDescent(2, 40, 9000, 1.5))
    read = RunState.from_checkpoint(state.to_arrays(), state.to_dict())
    assert read.descent == state.descent and read.anchor is not None


def test_a_ring_that_misses_each_deadline_begins_again_with_any_number_of_workers() -> None:
    outcome, sink = run_ring(config_with_deadlines())
    again, _ = run_ring(config_with_deadlines(), 2)
    assert outcome.digest == again.digest
    begun = {
        record["generation"]: record["descent"]
        for record in sink.records
        if record.get("descent") is not None
    }
    assert begun == {2: 1.0, 4: 2.0, 6: 3.0}
    sigmas = [record["sigma"] for record in sink.records if record.get("population")]
    assert np.allclose(sigmas, [0.1, 0.05, 0.025, 0.1, 0.05, 0.1, 0.05, 0.1])
    assert outcome.best.eval_mean == max(
        record["eval_mean"] for record in sink.records if record["eval_mean"] is not None
    )


def test_a_deadline_that_is_met_changes_nothing() -> None:
    met, _ = run_ring(config_with_deadlines(restart_deadlines="1=-1e6"))
    without, _ = run_ring(config_with_deadlines(restart_deadlines="none"))
    assert met.digest == without.digest


def test_a_descent_is_charged_with_its_own_steps_alone() -> None:
    outcome, sink = run_ring(config_with_deadlines())
    ended = [record for record in sink.records if record.get("descent") is not None]
    assert outcome.state.descent.steps == ended[-1]["env_steps"]


def test_the_evaluation_at_the_end_of_a_run_does_not_save_the_descent_of_a_longer_one() -> None:
    outcome, sink = run_ring(config_with_deadlines(restart_deadlines="1e9=1e6", generations=3))
    evaluated = {record["generation"]: record["eval_mean"] for record in sink.records}
    assert evaluated[3] > max(evaluated[0], evaluated[2]), "the case in which it would count"
    assert outcome.state.descent.best == max(evaluated[0], evaluated[2])
