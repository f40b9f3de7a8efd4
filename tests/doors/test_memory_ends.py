"""When a run evaluates and ends, what it says, and what it shows of each generation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from es_queue.errors import EnvironmentFailure
from tests.doors.worlds import NOTED
from tests.memory import play
from tests.tiny import MOODY

pytestmark = pytest.mark.fast
#: What brings Quad to its best return within a few generations.
QUICKLY = {
    "strategy": "ars",
    "learning_rate": 0.1,
    "sigma": 0.2,
    "obs_norm": False,
    "target_reward": "-1",
    "generations": 60,
}
BROKEN = {"env": MOODY, "env_arg": (("fault", "all"),), "eval_every": 0}


# --- evaluations


def test_evaluations_are_made_every_so_often_and_at_the_end() -> None:
    run = play(eval_every=3, generations=5, final_episodes=0)
    evaluated = [n for n, mean in enumerate(run.column("eval_mean")) if mean is not None]
    assert evaluated == [0, 3, 5] and run.column("population") == [8] * 5 + [0]


def test_far_from_the_target_three_of_four_evaluations_are_skipped() -> None:
    far = {**QUICKLY, "eval_every": 1, "generations": 9, "target_reward": "1000"}
    run, every = play(**far, eval_share=0.1), play(**far)
    evaluated = [n for n, mean in enumerate(run.column("eval_mean")) if mean is not None]
    assert evaluated == [0, 4, 8, 9] and run.digest == every.digest
    # A generation whose individuals reach the target is followed by an evaluation.
    near = play(**{**QUICKLY, "eval_every": 1}, eval_share=0.1)
    evaluated = [n for n, mean in enumerate(near.column("eval_mean")) if mean is not None]
    reached = [best >= -1 for best in near.column("return_max")]
    assert evaluated == [0, 3] and reached.index(True) == 2 and near.reason == "target"


def test_a_deadline_is_compared_with_an_evaluation_though_the_target_is_far() -> None:
    far = {**QUICKLY, "eval_every": 1, "generations": 9, "target_reward": "1000"}
    late = {**far, "restart_deadlines": "100=0"}
    assert play(**late, eval_share=0.1).digest == play(**late).digest != play(**far).digest


def test_without_evaluations_the_last_parameters_are_the_result() -> None:
    run = play(eval_every=0, final_episodes=0)
    assert (run.evaluation, run.best.generation) == (None, 4)
    np.testing.assert_array_equal(run.best.parameters, run.checkpoints[-1]["parameters"])


def test_more_evaluations_move_neither_the_end_nor_the_digest() -> None:
    sparse = play(**{**QUICKLY, "eval_every": 8})
    dense = play(**{**QUICKLY, "eval_every": 1}, target_every=8)
    assert sparse.reason == dense.reason == "target"
    assert (sparse.digest, len(sparse.records)) == (dense.digest, len(dense.records))
    # The target was reached before, at an evaluation that is not compared with it.
    assert any(mean >= -1 for mean in dense.column("eval_mean")[:-1])


# --- figures


def test_the_rank_of_the_unperturbed_policy_is_the_share_that_it_beats() -> None:
    NOTED.clear()
    settings = {"env": "", "objective": "tests.doors.worlds:noted", "parameters": 4}
    run = play(**settings, strategy="openai_es", generations=1, eval_every=0, final_episodes=0)
    centre = run.checkpoints[0]["parameters"]
    played = [vector for seed, vector in NOTED if seed > 1]
    scores = [-np.square(one - 1.0).sum() for one in played if not np.array_equal(one, centre)]
    beaten = np.mean([score < -np.square(centre - 1.0).sum() for score in scores])
    assert len(scores) == 8 and run.column("centre_rank")[0] == beaten


def test_policies_that_are_all_equal_have_a_rank_in_the_middle() -> None:
    settings = {"env": "", "objective": "tests.doors.worlds:level", "parameters": 4}
    assert play(**settings, eval_every=0).column("centre_rank")[0] == 0.5


# --- ends


def test_a_run_whose_every_episode_fails_ends_with_the_reason() -> None:
    sentence = "every episode of a generation failed; the last was.*fell over"
    with pytest.raises(EnvironmentFailure, match=sentence):
        play(2, **BROKEN)


def test_if_all_had_one_environment_seed_the_sentence_says_how_each_gets_its_own() -> None:
    sentence = (
        "failed: all of them had the same environment seed; --env-seeds slot gives each its own; "
        "the last was"
    )
    with pytest.raises(EnvironmentFailure, match=sentence):
        play(2, **BROKEN, env_seeds="generation")


def test_patience_that_ends_every_episode_is_refused_after_twenty_generations() -> None:
    sentence = "patience 2,0 ended every episode of 20 generations"
    with pytest.raises(EnvironmentFailure, match=sentence):
        play(patience="2,0", eval_every=0, final_episodes=0, generations=30)


def test_episodes_that_all_reach_a_step_limit_are_no_fault_of_patience() -> None:
    rules = {"patience": "4,0", "reward_shift": -100.0, "step_limit": "3"}
    run = play(**rules, eval_every=0, final_episodes=0, generations=22)
    assert run.reason == "generations" and set(run.column("cut_fraction")[:-1]) == {1.0}


def test_a_run_whose_time_is_up_before_its_first_generation_says_what_to_change() -> None:
    run = play(generations=4, max_seconds=1e-6)
    assert (run.reason, len(set(run.column("digest")))) == ("max_seconds", 1)
    assert run.notes[0].startswith("--max-seconds has passed with ")
    assert "of 8 results of the first generation, so nothing was learnt" in run.notes[0]


# --- restarts


DEADLINES = {
    "strategy": "snes",
    "population": 6,
    "sigma": 0.1,
    "sigma_schedule": "exponential:0.5",
    "sigma_learning_rate": 0.0,
    "step_limit": "adaptive:1,0.1,2",
    "eval_every": 2,
    "restart_deadlines": "1=1e6",
    "generations": 8,
}


def test_a_search_that_misses_its_deadline_begins_again_with_its_schedules() -> None:
    run = play(**DEADLINES)
    begun = {n: one for n, one in enumerate(run.column("descent")) if one is not None}
    assert begun == {2: 1.0, 4: 2.0, 6: 3.0}
    sigmas = run.column("sigma")[:8]
    np.testing.assert_allclose(sigmas, [0.1, 0.05, 0.025, 0.1, 0.05, 0.1, 0.05, 0.1])
    assert run.best.eval_mean == max(one for one in run.column("eval_mean") if one is not None)
    assert play(2, **DEADLINES).outcome == run.outcome


def test_a_deadline_that_is_met_changes_nothing() -> None:
    met = play(**{**DEADLINES, "restart_deadlines": "1=-1e6"})
    assert met.digest == play(**{**DEADLINES, "restart_deadlines": "none"}).digest


# --- the asynchronous schedule


def test_each_asynchronous_batch_has_a_population_and_promises_no_bits() -> None:
    run = play(3, schedule="async", eval_every=3, generations=8)
    assert run.column("population")[:8] == [8] * 8 and run.reason == "generations"
    evaluated = [n for n, mean in enumerate(run.column("eval_mean")) if mean is not None]
    assert evaluated == [0, 3, 6, 8]
    assert run.records[-1]["env_steps"] == sum(run.column("steps_generation"))
    assert all(lag >= 0 for lag in run.column("lag_mean")[:8])


def test_slots_that_always_fail_are_the_worst_of_an_asynchronous_batch() -> None:
    settings = {"env": MOODY, "env_arg": (("fault", "some"),), "eval_every": 0}
    run = play(2, schedule="async", **settings, population=32, generations=8, final_episodes=0)
    assert run.reason == "generations" and sum(run.column("failed")) > 0
    with pytest.raises(EnvironmentFailure, match=r"every episode of a (batch|generation) failed"):
        play(2, schedule="async", **BROKEN)


def test_an_asynchronous_run_ends_at_its_target() -> None:
    run = play(3, schedule="async", **{**QUICKLY, "eval_every": 2})
    assert run.reason == "target" and run.best.confirmed and run.evaluation.mean > -1.5


def test_an_asynchronous_run_outlives_its_workers_its_master_and_redis() -> None:
    settings: dict[str, Any] = {"schedule": "async", "generations": 12, "eval_every": 0}
    run = play(3, **settings, master_dies_in=4, redis_emptied_in=7, block=1)
    assert run.reason == "generations" and run.records[-1]["generation"] == 12
    assert run.records[-1]["env_steps"] == 12 * 8 * 5
