"""What goes wrong with workers, the master and Redis changes no bit and counts nothing twice."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from es_queue.errors import EnvironmentFailure
from tests import memory
from tests.cases import each_case
from tests.doors.worlds import UNEVEN
from tests.memory import Fault, Played, play
from tests.tiny import MOODY

pytestmark = pytest.mark.fast


@pytest.fixture(scope="module")
def quiet() -> Played:
    """The run to which nothing happens."""
    return play()


@each_case(
    ("what", "reason"),
    [
        (memory.ANSWERS_TWICE, "duplicate"),
        (memory.ANSWERS_OTHERWISE, "conflict"),
        (memory.NOT_A_NUMBER, "wrong-return"),
        (memory.BEYOND_PLAN, "unknown-slot"),
        (memory.OTHER_PARAMETERS, ""),
    ],
)
def test_only_the_first_sound_result_of_a_slot_counts(
    quiet: Played, what: str, reason: str
) -> None:
    run = play(faults=[Fault(what, block) for block in (1, 4, 6)], block=1)
    assert (run.outcome, run.figures) == (quiet.outcome, quiet.figures)
    assert run.refused == ({reason: 3} if reason else {}) and run.played == quiet.played


@each_case("first", [0, 2])
def test_a_dead_workers_block_is_played_by_another(quiet: Played, first: int) -> None:
    run = play(2, faults=[Fault(memory.DIES, first)], block=1)
    assert (run.outcome, run.figures) == (quiet.outcome, quiet.figures)
    assert run.deaths == run.records[-1]["recovered"] == 1


def test_a_block_that_takes_too_long_is_played_by_another_and_counts_once(quiet: Played) -> None:
    run = play(2, faults=[Fault(memory.FREEZES, 2)], block=1)
    assert (run.outcome, run.figures, run.played) == (quiet.outcome, quiet.figures, quiet.played)
    assert run.records[-1]["reissued"] > 0 and run.records[-1]["recovered"] == 0


def test_a_worker_that_leaves_returns_its_block_at_once(quiet: Played) -> None:
    run = play(2, faults=[Fault(memory.LEAVES, 2)], block=2)
    assert (run.outcome, run.figures) == (quiet.outcome, quiet.figures)
    assert run.records[-1]["recovered"] == 0


def test_a_block_whose_claim_had_no_reply_is_played_by_its_holder(quiet: Played) -> None:
    run = play(faults=[Fault(memory.LOSES_CLAIM, block) for block in (0, 3, 4)], block=2)
    assert (run.outcome, run.played) == (quiet.outcome, quiet.played)
    assert run.records[-1]["reissued"] == 0


def test_damaged_parameters_are_not_played() -> None:
    settings = {"policy": "mlp", "hidden": (6,)}
    run = play(faults=[Fault(memory.DAMAGED_PARAMETERS, 0)], **settings)
    assert run.outcome == play(**settings).outcome


def test_a_worker_with_another_noise_table_refuses_the_run_and_returns_its_block(
    quiet: Played,
) -> None:
    run = play(2, faults=[Fault(memory.OTHER_NOISE, 0, 1)], block=1)
    assert (run.outcome, run.figures) == (quiet.outcome, quiet.figures)
    assert any("noise digest: this host's table is" in note for note in run.notes)


@each_case("generation", [0, 1, 2, 4])
def test_a_resumed_master_plays_only_what_has_no_result(quiet: Played, generation: int) -> None:
    run = play(block=1, master_dies_in=generation)
    assert (run.outcome, run.figures) == (quiet.outcome, quiet.figures)
    assert run.played == quiet.played


@each_case("strategy", ["pgpe", "openai_es", "cma_es", "ga", "novelty"])
def test_a_run_resumed_from_its_checkpoint_ends_with_the_same_bits(strategy: str) -> None:
    settings = {
        "strategy": strategy,
        "env": "CartPole-v1",
        "min_steps": 150,
        "population_max": 32,
        "step_limit": "adaptive:12,0.4,1.5",
        "eval_every": 1,
        "obs_sample": 0.5,
    }
    if strategy == "ga":
        settings |= {"truncation": 4, "candidates": 3, "elite_episodes": 4}
    if strategy == "novelty":
        settings |= {"members": 3, "neighbours": 2, "behaviour_episodes": 2}
    undisturbed = play(**settings)
    assert len(set(undisturbed.column("step_limit"))) > 1
    for generation in (1, 3):
        run = play(**settings, master_dies_in=generation, redis_dies_too=True)
        assert (run.outcome, run.figures) == (undisturbed.outcome, undisturbed.figures)


@each_case("generation", [0, 1, 3])
def test_what_an_emptied_redis_has_lost_is_issued_again(quiet: Played, generation: int) -> None:
    run = play(block=1, redis_emptied_in=generation)
    assert (run.outcome, run.figures) == (quiet.outcome, quiet.figures)
    assert any("published again" in note for note in run.notes)


def test_each_worker_of_a_run_may_fail_in_turn_and_the_bits_stay(quiet: Played) -> None:
    faults = [
        Fault(memory.DIES, 1, 0),
        Fault(memory.ANSWERS_OTHERWISE, 2, 1),
        Fault(memory.LOSES_CLAIM, 3, 1),
        Fault(memory.LEAVES, 5, 1),
        Fault(memory.ANSWERS_TWICE, 0, 2),
    ]
    run = play(3, faults=faults, block=1, redis_emptied_in=2)
    assert (run.outcome, run.figures) == (quiet.outcome, quiet.figures)


def test_an_asynchronous_batch_has_its_size_and_no_result_beyond_the_lag() -> None:
    lags = [Fault(memory.LAGS, block) for block in (3, 6)]
    run = play(2, schedule="async", max_lag=1, block=1, generations=8, faults=lags)
    assert set(run.column("population")[:-1]) == {8}
    assert max(run.column("lag_max")[:-1]) <= 1


# --- slots that fail


def test_a_slot_that_always_fails_is_played_three_times_and_the_run_continues() -> None:
    settings = {"env": UNEVEN, "env_arg": (("broken", True),), "eval_every": 0, "final_episodes": 0}
    run = play(**settings, block=1)
    other = play(2, **settings)
    assert (other.digest, other.figures) == (run.digest, run.figures)
    tries = Counter((one["generation"], one["kind"], one["slot"]) for one in run.reports)
    assert set(tries.values()) == {3}
    assert len(tries) == sum(run.column("failed")) > 5
    assert all("the reward of a step is nan" in one["reason"] for one in run.reports)
    # Pairs that failed are not in the figures of their generation.
    assert min(run.column("population")[:-1]) < 8 and max(run.column("population")[:-1]) > 0
    assert max(run.column("workers")) == 1  # nobody contributed what failed


def test_an_evaluation_continues_without_the_seeds_that_fail(
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings = {"env": MOODY, "env_arg": (("fault", "some"),), "eval_episodes": 30}
    run = play(**settings, final_episodes=30)
    named = [line for line in caplog.messages if "the evaluation continues without it" in line]
    assert any(re.search(r"eval slot .*seed \d+\): .*fell over", line) for line in named)
    # A slot of an evaluation does not count as the worst.
    worst = [line for line in caplog.messages if "count as the worst" in line]
    assert worst and all("the last: train slot" in line for line in worst)
    (final,) = [line for line in named if "final slot" in line]  # one line for all that are alike
    assert "generation" not in final and "(tiny.py, line " in final
    more = [re.match(r"(\d+) more episodes of the evaluation", line) for line in caplog.messages]
    (failed,) = [int(match[1]) + 1 for match in more[caplog.messages.index(final) :] if match]
    assert 0 < failed < 30 and run.evaluation.count == 30 - failed
    assert play(2, **settings, final_episodes=30).outcome == run.outcome


def test_an_evaluation_in_which_every_episode_fails_ends_the_run() -> None:
    with pytest.raises(EnvironmentFailure, match=r"every episode of an evaluation failed; .*seed"):
        play(env=MOODY, env_arg=(("fault", "some"),), eval_episodes=1, eval_every=1)


def test_a_slot_at_which_three_workers_have_died_is_named_and_ten_end_the_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(EnvironmentFailure, match="died while playing train slot 2") as failure:
        play(deadly_slot=2)
    assert failure.value.__notes__ == ["10 workers died in all"]
    named = [line for line in caplog.messages if "died while playing train slot 2" in line]
    assert len(named) == 1 and named[0].startswith("3 workers died")


def test_a_change_survives_the_master() -> None:
    settings = {"strategy": "openai_es", "learning_rate": 0.01, "generations": 5}
    run = play(
        **settings, changes={1: {"learning_rate": 0.05}}, master_dies_in=3, redis_dies_too=True
    )
    assert run.column("learning_rate")[:5] == [0.01] + [0.05] * 4
