"""What a run learns from, when it ends, and which parameters it returns."""

from __future__ import annotations

import runpy
from collections import Counter
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from es_queue.numerics.statistics import FrozenStatistics, Moments
from es_queue.slot_plan import FINAL_SEEDS, environment_seeds, plan_slots
from tests.cases import each_case
from tests.doors.worlds import NOTED, UNEVEN
from tests.memory import TABLE, play

pytestmark = pytest.mark.fast
#: The algorithm on one page.
PAGE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "es_in_one_file.py"))
CARTPOLE = {"env": "CartPole-v1", "population": 16}
#: Its steps are so large that the evaluations rise and fall.
RESTLESS = {
    **CARTPOLE,
    "strategy": "openai_es",
    "biases": False,
    "learning_rate": 0.3,
    "init": "normal",
    "eval_every": 1,
    "seed": 11,
}
OBJECTIVE = {"env": "", "objective": "tests.doors.worlds:noted", "parameters": 4}


# --- the work of a generation


def test_a_quiet_run_issues_each_slot_once() -> None:
    for block in (0, 1, 3):
        run = play(block=block)
        assert run.played == {"train": 16, "centre": 4, "eval": 9, "final": 4}
        last = run.records[-1]
        assert (last["reissued"], last["duplicate"], last["recovered"], run.refused) == (
            0,
            0,
            0,
            {},
        )


@each_case("workers, block", [(2, 1), (3, 3), (2, 7)])
def test_neither_workers_nor_blocks_change_a_bit(workers: int, block: int) -> None:
    settings = {**CARTPOLE, "obs_sample": 0.5, "min_steps": 400, "population_max": 64}
    run, other = play(**settings), play(workers, block=block, **settings)
    assert (run.outcome, run.figures) == (other.outcome, other.figures)


@each_case("sharing", ["pair", "slot", "generation"])
def test_individuals_share_environment_seeds_as_the_setting_says(sharing: str) -> None:
    NOTED.clear()
    play(**OBJECTIVE, env_seeds=sharing, episodes=2, generations=3, eval_every=1)
    training = [seed for seed, _ in NOTED if 1 < seed < 2**30]
    per_generation = len(training) // 3
    for start in range(0, len(training), per_generation):
        counts = Counter(training[start : start + per_generation])
        # 4 pairs play 2 episodes each; the unperturbed policy plays pair 0's first half again.
        distinct, each = {"pair": (8, 2), "slot": (16, 1), "generation": (2, 8)}[sharing]
        assert len(counts) == distinct
        assert sorted(counts.values()) == [each] * (distinct - 2) + [each + 1] * 2


def test_evaluations_have_seeds_that_training_never_has_and_the_final_ones_others() -> None:
    NOTED.clear()
    play(**OBJECTIVE, generations=3, eval_every=1, eval_episodes=5, final_episodes=7)
    seeds = [seed for seed, _ in NOTED if seed > 1]
    evaluation = [seed for seed in seeds if 2**30 <= seed < 2**30 + 2**28]
    final = [seed for seed in seeds if seed >= 2**30 + 2**29]
    assert (len(evaluation), len(set(evaluation))) == (20, 20)
    assert (len(final), len(set(final))) == (7, 7)
    assert len(seeds) == 20 + 7 + 3 * (8 + 1)


def test_the_two_of_a_pair_lie_on_opposite_sides_of_the_published_parameters() -> None:
    NOTED.clear()
    run = play(**OBJECTIVE, strategy="openai_es", sigma=0.25, generations=3, eval_every=0, block=1)
    played = [vector for seed, vector in NOTED if 1 < seed < 2**30]
    for generation in range(3):
        centre = run.checkpoints[generation]["parameters"]
        vectors = played[9 * generation : 9 * generation + 9]
        others = [one for one in vectors if not np.array_equal(one, centre)]
        assert len(others) == 8
        for plus, minus in zip(others[::2], others[1::2], strict=True):
            np.testing.assert_allclose(plus + minus, 2 * centre, atol=1e-6)
    # Each pair is another direction.
    steps = [tuple(np.round(one - run.checkpoints[0]["parameters"], 5)) for one in played[:9]]
    assert len(set(steps)) == 9


# --- the batch


@each_case("least, most, population", [(100, 64, 20), (101, 64, 22), (5000, 12, 12), (1, 64, 8)])
def test_the_batch_is_the_shortest_that_has_the_steps(
    least: int, most: int, population: int
) -> None:
    """Each pair of Quad has ten steps."""
    run = play(min_steps=least, population_max=most, eval_every=0)
    assert set(run.column("population")[:-1]) == {population}
    assert run.records[-1]["env_steps"] == 4 * 5 * population


def test_what_was_issued_beyond_the_batch_is_not_learnt_from() -> None:
    settings = {"env": UNEVEN, "generations": 1, "eval_every": 0, "obs_sample": 1.0}
    grown = play(**settings, min_steps=120, population_max=64)
    size, steps = grown.column("population")[0], grown.column("env_steps")[0]
    assert grown.records[-1]["surplus_steps"] > 0
    plain = play(**settings, population=size)
    assert (grown.digest, grown.column("return_mean")) == (
        plain.digest,
        plain.column("return_mean"),
    )
    for name in ("obs_mean", "obs_std"):
        np.testing.assert_array_equal(grown.checkpoints[-1][name], plain.checkpoints[-1][name])
    # Without its last pair the batch has too few steps.
    assert play(**settings, population=size - 2).column("env_steps")[0] < 120 <= steps
    # As many steps as it has are enough.
    exact = play(**settings, min_steps=steps, population_max=64)
    assert exact.column("population")[0] == size
    assert exact.records[-1]["surplus_steps"] > 0


def test_observations_of_evaluations_and_of_slots_out_of_the_sample_do_not_count() -> None:
    counts = []
    for evaluations in (0, 1):
        run = play(env=UNEVEN, eval_every=evaluations, obs_sample=0.3, population=40)
        counts.append([int(one["moments_count"]) for one in run.checkpoints])
    assert counts[0][:5] == counts[1][:5]
    whole = play(env=UNEVEN, eval_every=0, obs_sample=1.0, population=40)
    steps = whole.column("env_steps")[0] + 40  # each episode has one observation more than steps
    assert int(whole.checkpoints[1]["moments_count"]) == steps > 2 * counts[0][1] > 0
    # The first slot of a generation is always in the sample.
    least = play(env=UNEVEN, eval_every=0, obs_sample=1e-9)
    assert 0 < int(least.checkpoints[1]["moments_count"]) <= 2 * 10


def test_the_moments_are_those_of_each_episode_merged_in_the_order_of_the_slots() -> None:
    """Played and merged by the algorithm on one page."""
    values = {"strategy": "openai_es", "obs_sample": 1.0, "generations": 1, "eval_every": 0}
    run = play(env="CartPole-v1", biases=False, **values)
    env, moments = gymnasium.make("CartPole-v1"), Moments.empty(4)
    plan = plan_slots(3, 0, 4, positions=TABLE.size - 8 + 1, individuals=2)
    for slot in range(4):
        step = np.float32(0.05) * TABLE.row(int(plan.noise_indices[slot]), 8)
        for half, vector in enumerate((step, -step)):
            seed = int(plan.seeds[slot, half, 0])
            episode = PAGE["play"](env, vector, Moments.empty(4).freeze(5.0), seed)
            moments = moments.merge(Moments.of(np.asarray(episode.observations)))
    for name in ("mean", "m2"):
        assert run.checkpoints[1][f"moments_{name}"].tobytes() == getattr(moments, name).tobytes()


def test_the_fitness_of_an_individual_is_the_mean_of_its_episodes() -> None:
    settings = {**OBJECTIVE, "objective": "tests.doors.worlds:lucky"}
    run = play(**settings, episodes=5, env_seeds="slot", eval_every=0)
    assert max(run.column("fitness_max")[:-1]) < 1
    assert 0.3 < run.column("return_mean")[0] < 0.7


def test_nothing_is_learnt_from_what_exceeds_the_fitness_cap() -> None:
    run = play(**OBJECTIVE, fitness_cap="-1000", eval_every=0)
    assert len(set(run.column("digest"))) == 1
    assert len(set(play(**OBJECTIVE, fitness_cap="-1", eval_every=0).column("digest"))) > 1


# --- the end


def test_max_steps_counts_steps_of_training_only() -> None:
    run = play(max_steps=100, generations=0, eval_every=1, eval_episodes=20)
    assert (run.reason, run.column("env_steps")) == ("max_steps", [40, 80, 120, 120])
    assert run.records[-1]["eval_steps"] == 4 * 20 * 5 + 3 * 5  # the unperturbed policy, too


def test_an_evaluation_is_played_to_the_environments_own_end() -> None:
    run = play(**CARTPOLE, step_limit="5", eval_every=1)
    assert set(run.column("return_max")[:-1]) == {5.0} and min(run.column("eval_mean")) > 5


def test_the_best_policy_is_that_of_the_highest_evaluation() -> None:
    run = play(**RESTLESS, generations=6)
    evaluations = run.column("eval_mean")
    assert run.best.eval_mean == max(evaluations) > evaluations[-1] > min(evaluations)
    assert run.best.generation == evaluations.index(max(evaluations)) > 0
    chosen = run.checkpoints[run.best.generation]
    for name, array in (("parameters", run.best.parameters), ("obs_mean", run.best.mean)):
        np.testing.assert_array_equal(chosen[name], array)


def test_of_equal_evaluations_the_newest_is_the_best() -> None:
    run = play(**{**OBJECTIVE, "objective": "tests.doors.worlds:level"}, eval_every=1)
    assert run.best.generation == 4


def test_the_final_episodes_are_played_by_the_best_policy_and_its_statistics() -> None:
    run = play(**RESTLESS, generations=6, final_episodes=20)
    best = run.best.generation
    assert 0 < best < 6
    # The same policy ends a run of fewer generations.
    shorter = play(**RESTLESS, generations=best, final_episodes=20)
    assert shorter.best.generation == best
    assert run.evaluation == shorter.evaluation


def test_the_final_mean_is_that_of_the_policy_played_by_hand() -> None:
    run = play(**RESTLESS, generations=4, final_episodes=8)
    env, best = gymnasium.make("CartPole-v1"), run.best
    statistics = FrozenStatistics(best.mean, best.std, 5.0)
    seeds = environment_seeds(RESTLESS["seed"], FINAL_SEEDS, 0, 8).tolist()
    totals = [PAGE["play"](env, best.parameters, statistics, seed).total for seed in seeds]
    assert best.std.max() > 0 and run.evaluation.mean == sum(totals) / 8


def test_a_lucky_evaluation_that_fresh_episodes_do_not_confirm_ends_nothing() -> None:
    settings = {**OBJECTIVE, "objective": "tests.doors.worlds:lucky", "target_reward": "0.6"}
    run = play(**settings, generations=8, eval_every=1, eval_episodes=1, confirm_episodes=40)
    passed = [one for one in run.column("eval_mean") if one >= 0.6]
    confirmations = [one for one in run.column("confirm_mean") if one is not None]
    assert run.reason == "generations" and not run.best.confirmed
    assert len(passed) == len(confirmations) > 0 and max(confirmations) < 0.6


def test_a_confirmation_ends_at_its_first_look_that_fails() -> None:
    settings = {**OBJECTIVE, "objective": "tests.doors.worlds:lucky", "target_reward": "0.6"}
    run = play(**settings, generations=8, eval_every=1, eval_episodes=1, confirm_episodes=400)
    confirmations = [one for one in run.column("confirm_mean") if one is not None]
    assert run.reason == "generations" and max(confirmations) < 0.55
    assert run.played["confirm"] == 50 * len(confirmations) > 0


def test_a_target_is_confirmed_by_episodes_of_their_own() -> None:
    settings = {**OBJECTIVE, "objective": "tests.doors.worlds:lucky", "target_reward": "0.1"}
    run = play(**settings, eval_every=1, eval_episodes=3, confirm_episodes=3)
    last = run.records[-1]
    assert run.reason == "target" and run.best.confirmed
    assert last["eval_mean"] != last["confirm_mean"]
    # The parameters that passed are the result: nothing is learnt from that generation.
    assert run.best.generation == last["generation"] and last["digest"] == run.digest


# --- changes and returns


@each_case("first", [1, 3])
def test_a_changed_setting_holds_from_the_generation_that_was_asked_for(first: int) -> None:
    run = play(
        strategy="openai_es", learning_rate=0.01, changes={first: {"learning_rate": 0.05}}, block=1
    )
    assert run.column("learning_rate")[:4] == [0.01] * first + [0.05] * (4 - first)


def test_a_rolled_back_search_is_the_earlier_one_with_its_statistics() -> None:
    settings: dict[str, Any] = {"strategy": "openai_es", "learning_rate": 2.0, "init": "normal"}
    run = play(
        **settings,
        generations=8,
        eval_every=1,
        eval_episodes=50,
        rollback=True,
        obs_sample=1.0,
    )
    back = [(n, to) for n, to in enumerate(run.column("rolled_back")) if to is not None]
    assert back
    for generation, to in back:
        after, before = run.checkpoints[generation + 1], run.checkpoints[int(to)]
        same = {"parameters", "obs_mean", "obs_std", "moments_count"}
        same |= {name for name in before if name.startswith("strategy.")}
        assert "strategy.first_moment" in same
        for name in same:
            np.testing.assert_array_equal(after[name], before[name])


def test_the_elite_is_evaluated_again_in_each_generation_with_its_candidates() -> None:
    run = play(strategy="ga", truncation=4, candidates=3, elite_episodes=5, eval_every=0)
    assert run.played["elite"] == 4 * (3 + 1)
    # Quad pays by the seed, too, so a fresh evaluation of the same elite has another mean.
    scores = run.column("elite_fitness")[:-1]
    assert len(set(scores)) == 4, scores
