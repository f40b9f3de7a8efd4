"""The predecessors' and rivals' verified defects, none of which may come back: where each is held.

| defect | whose | held by |
|---|---|---|
| the noise stays after an evaluation, or adds up over several | walking_marvin,
Evolution-Strategies-PyTorch | here; test_evaluator: an_episode_depends_on_nothing_but_its_inputs |
| all workers draw the same seeds, so the same perturbations | Evolution-Strategies-PyTorch, RLlib |
test_slot_plan: noise_indices_of_a_generation_are_distinct_and_in_the_table; here |
| a chain of seeds that enters a cycle | Evolution-Strategies-PyTorch | here |
| the negative half of a pair is the centre | Evolution-Strategies-PyTorch | test_strategies:
a_pair_is_the_centre_plus_and_minus_one_perturbation_in_float32 |
| equal returns give NaN, or move the parameters | pytorch-es, the starter | test_shaping:
when_all_are_equal_every_utility_is_exactly_zero; test_ars (σ_R = 0) |
| ties are not shared in ranks | the starter | test_shaping:
ranks_share_the_mean_utility_of_their_ties_and_failures_come_last |
| insertion overwrites its neighbour; an elite keeps a lucky score | neuroevolution, Uber |
test_random_search: the_best_of_the_new_results_wins_and_the_standing_elite_wins_ties |
| one path of actions alone works | Evolution-Strategies-PyTorch, the starter | here; test_actions |
| playing a saved policy is broken | pytorch-es, Evolution-Strategies-PyTorch | test_es_master:
es_play_repeats_the_final_evaluation_to_the_last_digit |
| time limits do not apply | walking_marvin | here; test_episodes:
an_end_at_the_very_limit_is_the_environments |
| sigma, limits or fitness of the master do not reach the workers | walking_marvin, the starter |
here; test_evaluator |
| the environment is not seeded | the starter | test_evaluator:
both_halves_of_a_pair_play_the_same_seeds_and_pairs_play_others |
| evaluations are played one after the other | walking_marvin | docs/performance.md has the scaling
that was measured |
| 1/σ is missing | the starter | test_openai_es; --gradient-form true |
| results of a former run or another θ count | the starter | test_collector, test_ledger:
wrong-publication; here |
| late answers are thrown away, long episodes under-sampled | the starter | test_asynchronous:
an_answer_that_is_late_counts_for_what_it_is; test_learner |
| a lost publish is never noticed; queues grow without end | the starter |
test_collector_redis_losses, tests/model; test_channel_worker |
| the master waits for ever for a dead worker | the starter, ray | test_first_faults:
the_block_of_a_worker_that_was_killed_is_played_by_another |
| pickle over an open port | the starter | tests/abuse/test_codec, test_open_redis |
| statistics in float32 freeze at large counts | the starter, EvoTorch | here; test_normalization:
a_small_spread_around_a_large_mean_is_not_lost |
| statistics move within a generation | EvoTorch | test_objective, test_digests: equal bits for any
workers |
| statistics are missing in the checkpoint, moments of Adam after resume | ray, RLlib, the starter |
test_checkpoint; test_generation_loop: going_on_from_any_checkpoint_gives_the_same_run |
| ranks by worker, not over the population | EvoTorch | test_generation_loop:
the_result_is_the_same_for_any_workers_and_blocks |
| NaN and infinite returns | ray, evosax | test_evaluator:
a_return_that_is_not_finite_is_a_failure_and_no_result; test_strategies |
| a batch without an evaluation | ray | test_reporter: a_run_without_a_final_evaluation_quotes_none;
test_learner |
| an environment of one's own is unknown on workers | EvoTorch | test_own_environments;
test_evaluator: an_environment_from_a_module_of_the_users_fails_by_seed |
| truncated and terminated confused, seeding at the first reset alone | EvoTorch | test_stock:
an_episode_ends_when_the_environment_ends_or_truncates_it; test_stock_resets |
| σ_R over summed returns | a rival's ARS | here |
| memory grows over many resets | estool | test_heartbeat_limits (--worker-memory);
tools/benchmarks/micro/memory.py |
| action noise in evaluations | RLlib | test_episodes: an_evaluation_knows_no_rule_but_its_limit;
test_learner_elites |
| the adaptive limit stops growing without a word | the starter | test_episode_rules:
no_limit_leaves_its_bounds_and_the_order_of_episodes_does_not_matter |
| every worker fetches the whole archive; novelty fails on ragged behaviours | Uber |
test_novelty_strategy, test_behaviour_descriptor: the archive is the master's alone |
| the population's elite is the best of single episodes | Uber | test_learner_elites:
the_elite_of_a_generation_is_the_best_by_its_new_episodes |
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from es_queue.config.run_config import RunConfig
from es_queue.environments.spaces import ActionSpec
from es_queue.numerics.normalization import Moments, RunningMoments
from es_queue.numerics.ordered_sums import ArrayNoise
from es_queue.numerics.slot_plan import TRAINING, make_generation_plan
from es_queue.protocol.messages import CENTRE, TRAIN
from es_queue.strategies import Batch, make_strategy
from tests.cases import each_case
from tests.parts import TABLE, play_slots, player, task_of
from tests.tiny import BOX, Script, spec_of
from workers.player import Player

NOISE = ArrayNoise(np.random.default_rng(0).standard_normal(5_000, dtype=np.float32))


def played(who: Player, kind: str, start: int, stop: int, size: int = 2, **more: Any) -> Any:
    task, published = task_of(size, 2, **more)
    found = play_slots(who, task, published, kind, start, stop)
    assert not found.failures
    return found.results


def test_no_noise_is_left_after_an_evaluation_nor_adds_up_over_several() -> None:
    world = Script([1.0])
    who = player(world, obs_norm=False)
    played(who, CENTRE, 0, 1, parameters=[0.25, -0.5], sigma=0.5)
    for _ in range(3):
        played(who, TRAIN, 0, 4, parameters=[0.25, -0.5], sigma=0.5)
    played(who, CENTRE, 0, 1, parameters=[0.25, -0.5], sigma=0.5)
    actions = [float(action[0]) for _, _, action in world.seen]
    assert actions[0] == actions[-1] and actions[1:9] == actions[9:17] == actions[17:25]


def test_every_generation_has_perturbations_and_environments_of_its_own() -> None:
    """Another's chain of seeds entered a cycle of some hundred after as many draws."""
    config = RunConfig(env="X-v0", seed=3, noise_size=2**24, population=16, obs_norm=False)
    plans = [
        make_generation_plan(config, generation, 100, 2).slots(0, 8) for generation in range(2000)
    ]
    indices = np.concatenate([one.noise_indices for one in plans])
    first = np.array([one.seeds[0, 0, 0] for one in plans])
    assert len(np.unique(indices)) > 0.999 * len(indices) - 8 and len(np.unique(first)) == len(
        first
    )
    assert len(np.unique(make_generation_plan(config, 0, 100, 2).seeds(TRAINING, 10_000))) == 10_000


@each_case(
    ("action", "size", "taken"),
    [
        (BOX, 2, float),
        (ActionSpec("discrete", sizes=(3,), starts=(0,)), 6, int),
        (ActionSpec("multidiscrete", shape=(2,), sizes=(2, 3), starts=(0, 0)), 10, int),
        (ActionSpec("multibinary", shape=(2,), sizes=(2,), starts=(0, 0)), 4, int),
    ],
)
def test_every_kind_of_action_is_played(action: ActionSpec, size: int, taken: type) -> None:
    world = Script([1.0, 2.0])
    results = played(
        player(world, spec_of(action=action), obs_norm=False), TRAIN, 0, 3, size, sigma=1.0
    )
    assert [one.returns for one in results] == [(3.0, 3.0)] * 3
    kind = {float: np.floating, int: np.integer}[taken]
    assert all(np.issubdtype(np.asarray(each).dtype, kind) for _, _, each in world.seen)


def test_the_limit_of_the_task_ends_an_episode_that_would_not_end() -> None:
    results = played(player(Script([1.0] * 5, ends=False)), TRAIN, 0, 1, limit=7)
    assert [(one.steps, one.at_limit) for one in results] == [((7, 7), (1, 1))]


def test_the_sigma_of_the_task_is_the_workers_whatever_its_settings_say() -> None:
    found = {}
    for settings in (0.01, 5.0):
        world = Script([1.0])
        played(
            player(world, obs_norm=False, sigma=settings),
            TRAIN,
            0,
            1,
            sigma=0.125,
            parameters=[0.1, 0.2],
        )
        found[settings] = [float(action[0]) for _, _, action in world.seen]
    noise = np.float32(0.125) * TABLE.row(
        int(
            make_generation_plan(player(Script([1.0]), obs_norm=False).config, 4, 2, 2)
            .slots(0, 1)
            .noise_indices[0]
        ),
        2,
    )
    expected = np.clip(Script().observation(0) @ (np.array([0.1, 0.2], np.float32) + noise), -1, 1)
    assert found[0.01] == found[5.0] and found[5.0][0] == pytest.approx(float(expected))


def test_statistics_go_on_after_tens_of_millions_of_observations() -> None:
    """Sums in float32 stand still from 2**24 on."""
    moments = RunningMoments(2**25, np.array([3.0]), np.array([2.0**25]))
    for _ in range(64):
        moments = moments.merge(Moments(1000, np.array([5.0]), np.array([0.0])))
    assert moments.count == 2**25 + 64_000
    assert moments.mean[0] == pytest.approx(3 + 2 * 64_000 / moments.count, rel=1e-12)


def test_the_deviation_of_ars_is_over_all_returns_and_not_over_sums_of_pairs() -> None:
    """Pairs of equal sums would have none."""
    strategy = make_strategy(RunConfig(strategy="ars", population=6, learning_rate=1.0), 3)
    fitness, indices = np.array([[1.0, -1.0], [2.0, -2.0], [-3.0, 3.0]]), np.array([0, 50, 100])
    after, info = strategy.learn(
        strategy.start(np.zeros(3, np.float32)), Batch(NOISE, indices, fitness)
    )
    wanted = sum(
        (plus - minus) * NOISE.noise[index : index + 3]
        for (plus, minus), index in zip(fitness, indices, strict=True)
    ) / (3 * fitness.std())
    np.testing.assert_allclose(after["parameters"], wanted, rtol=1e-5)
    assert info["no_step"] == 0


def test_equal_returns_never_move_any_strategy_nor_make_a_nan() -> None:
    """All alike, of one slot or of many, also where they are infinite or none."""
    for strategy in ("openai_es", "ars", "pgpe", "snes"):
        for value in (0.0, -1e300, float("nan"), float("inf")):
            made = make_strategy(RunConfig(strategy=strategy, population=8), 3)
            state = made.start(np.full(3, 0.5, np.float32))
            shape = (8 // made.per_slot, made.per_slot)
            after, info = made.learn(
                state, Batch(NOISE, np.arange(shape[0]) * 10, np.full(shape, value))
            )
            assert after["parameters"].tolist() == [0.5] * 3 and all(
                np.isfinite(list(info.values()))
            ), (strategy, value)


def test_a_worker_answers_for_the_parameters_it_was_given_and_for_no_others() -> None:
    """Another's worker kept its former θ where a new run had the same number."""
    world = Script([1.0])
    who = player(world, obs_norm=False)
    task, _ = task_of(2, 2)
    sizes = who.shape.result.itemsize, who.shape.moments.itemsize
    task = dataclasses.replace(task, row=sizes[0], moment=sizes[1])
    assert who.fits(task) and not who.fits(dataclasses.replace(task, size=3))
    one, other = (
        played(who, CENTRE, 0, 1, parameters=parameters)
        for parameters in ([0.25, 0.0], [0.0, 0.25])
    )
    assert one == other, "the script pays the same"
    actions = [float(action[0]) for _, _, action in world.seen]
    assert actions[0] != actions[1]
