"""Rollback: when it happens, and what it brings back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from es_queue.numerics.normalization import RunningMoments
from es_queue.numerics.return_statistics import ReturnStatistics
from master.loop.rollback import has_regressed, roll_back, with_rollback_point
from master.loop.state import Best, RollbackPoint, RunState
from tests.cases import each_case
from tests.parts import setup_of
from tests.ring import quick_config, run_ring
from tests.tiny import QUAD


def evaluated(mean: float, std: float = 5.0, count: int = 50) -> ReturnStatistics:
    return ReturnStatistics(mean, std, mean, mean, count)


def state(eval_mean: float = 100.0, std: float = 5.0, count: int = 50) -> RunState:
    fresh = setup_of("ars").initial_state()
    best = Best(
        np.zeros(3, np.float32), np.zeros(3, np.float32), np.ones(3, np.float32), 2, eval_mean
    )
    anchor = RollbackPoint(
        2, {"parameters": np.full(8, 7, np.float32)}, RunningMoments.empty(3), 44, std, count
    )
    return replace(fresh, generation=9, best=best, anchor=anchor)


@each_case(
    ("mean", "std", "count", "falls"),
    [
        (98.1, 5.0, 50, False),
        (97.9, 5.0, 50, True),
        (97.9, 5.0, 49, False),
        (97.9, 20.0, 50, False),
        (90.0, 20.0, 50, True),
        (101.0, 5.0, 50, False),
    ],
)
def test_an_evaluation_falls_when_it_is_over_two_standard_errors_below_the_best(
    mean: float, std: float, count: int, falls: bool
) -> None:
    assert (
        has_regressed(state(), evaluated(mean, std, count)) is falls
    )  # the error of the difference is 1 where both deviations are 5


def test_without_an_evaluation_or_a_best_nothing_falls() -> None:
    assert not has_regressed(state(), None)
    assert not has_regressed(replace(state(), anchor=None), evaluated(-1e9))


def test_the_search_of_the_best_comes_back_whole_under_the_next_number() -> None:
    before = state()
    after = roll_back(before)
    assert (after.generation, after.step_limit, after.best) == (10, 44, before.best)
    assert after.strategy is before.anchor.strategy and after.moments is before.anchor.moments  # type: ignore[union-attr]


def test_the_search_is_kept_where_a_better_best_comes_and_only_there() -> None:
    before = state()
    assert before.best is not None
    same = with_rollback_point(before, before, evaluated(1.0))
    assert same.anchor is before.anchor
    better = with_rollback_point(
        before, replace(before, best=replace(before.best, eval_mean=120.0)), evaluated(120.0, 3.0)
    )
    assert better.anchor is not None
    assert (better.anchor.generation, better.anchor.std, better.anchor.count) == (9, 3.0, 50)
    assert better.anchor.strategy is before.strategy


def test_an_anchor_survives_a_checkpoint() -> None:
    before = state()
    read = RunState.from_checkpoint(before.to_arrays(), before.to_dict())
    assert read.anchor is not None and before.anchor is not None
    np.testing.assert_array_equal(
        read.anchor.strategy["parameters"], before.anchor.strategy["parameters"]
    )
    assert (read.anchor.generation, read.anchor.step_limit, read.anchor.std, read.anchor.count) == (
        2,
        44,
        5.0,
        50,
    )


def test_a_ring_whose_steps_do_harm_goes_back_and_ends_no_worse_than_its_best() -> None:
    config = quick_config(
        env=QUAD,
        strategy="openai_es",
        population=8,
        learning_rate=2.0,
        init="normal",
        generations=12,
        eval_every=1,
        eval_episodes=50,
        target_reward="none",
        final_episodes=50,
        rollback=True,
    )
    first, sink = run_ring(config)
    again, _ = run_ring(config, 2)
    assert first.digest == again.digest
    back = [
        record["generation"] for record in sink.records if record.get("rolled_back") is not None
    ]
    assert back and any("the search returns to generation" in note for note in sink.notes)
    evaluations = {
        record["generation"]: record["eval_mean"]
        for record in sink.records
        if record["eval_mean"] is not None
    }
    for generation in back:
        assert evaluations[generation] < max(
            value for number, value in evaluations.items() if number < generation
        )
        assert evaluations[generation + 1] >= evaluations[generation]
