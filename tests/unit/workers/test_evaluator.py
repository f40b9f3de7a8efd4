"""A block: which individual plays which seed under which rules, and that nothing else has a say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from es_queue.config.scaling import LARGEST_SCALE
from es_queue.errors import StrategyFailure
from es_queue.numerics.noise_table import NoiseTable
from es_queue.numerics.normalization import Moments, RunningMoments
from es_queue.numerics.slot_plan import (
    SEED_RANGES,
    TRAINING,
    GenerationPlan,
    make_generation_plan,
)
from es_queue.protocol.messages import Answer, Block, EpisodeMoments, SlotResult
from tests.cases import each_case
from tests.parts import TABLE, config_of, evaluator, task_of
from tests.ring import quick_config
from tests.tiny import MOODY, Script, spec_of
from workers import slots
from workers.episode import EpisodeControl, Leaving
from workers.join import join
from workers.slots import Evaluator, FailureReport, failure_reason, pack_moments

WORKER = "host-1-abcdef"


def answer(
    who: Evaluator,
    kind: str,
    start: int,
    stop: int,
    generation: int = 4,
    said: list[FailureReport] | None = None,
    **more: Any,
) -> Answer:
    task, published = task_of(2, 2, generation, **more)
    return who.evaluate(
        task,
        published,
        Block(task.publication, kind, start, stop),
        WORKER,
        (said if said is not None else []).append,
    )


# --- purity


def test_an_episode_depends_on_nothing_but_its_inputs() -> None:
    """Whatever was played before, however slots are cut into blocks and in which order: the same
    bytes.
    """
    config = quick_config(strategy="ars", population=12)
    table = NoiseTable.in_memory(config.noise_size)
    one, other = (join(config, EpisodeControl(), table=table).evaluator for _ in range(2))
    task, published = task_of(8, 4, parameters=np.linspace(-1, 1, 8))

    def results(who: Evaluator, kind: str, start: int, stop: int) -> list[SlotResult]:
        return list(
            who.evaluate(
                task, published, Block(task.publication, kind, start, stop), WORKER, lambda _: None
            ).results
        )

    straight = results(one, "train", 0, 6)
    results(other, "eval", 3, 5), results(other, "centre", 0, 1)
    cut = {slot: results(other, "train", slot, slot + 1)[0] for slot in (5, 0, 3)}
    cut |= {one.slot: one for one in results(other, "train", 1, 3) + results(other, "train", 4, 5)}
    assert [cut[slot] for slot in range(6)] == straight
    assert len({result.fitness for result in straight}) > 1
    assert any(result.moments for result in straight)


def test_each_individual_is_the_centre_plus_or_minus_its_noise() -> None:
    world = Script([1.0])
    sent = answer(
        evaluator(world, obs_norm=False), "train", 2, 5, parameters=[0.25, -0.5], sigma=0.5
    )
    size = 2
    for result, plus, minus in zip(sent.results, world.seen[::2], world.seen[1::2], strict=True):
        noise = np.float32(0.5) * TABLE.row(result.noise_index, size)
        look = world.observation(0)
        centre = np.array([0.25, -0.5], np.float32)
        assert plus[2] == np.clip(look @ (centre + noise), -1, 1) and minus[2] == np.clip(
            look @ (centre - noise), -1, 1
        )
    indices = make_generation_plan(config_of(obs_norm=False), 4, size, 2).slots(2, 5).noise_indices
    assert [result.noise_index for result in sent.results] == indices.tolist()


# --- seeds


def test_both_halves_of_a_pair_play_the_same_seeds_and_pairs_play_others() -> None:
    world = Script([1.0])
    sent = answer(evaluator(world, episodes=2), "train", 0, 4)
    assert len(world.seeds) == 16
    for slot, result in enumerate(sent.results):
        plus, minus = world.seeds[4 * slot : 4 * slot + 2], world.seeds[4 * slot + 2 : 4 * slot + 4]
        assert plus == minus and plus[0] == result.seed and len(set(plus)) == 2
    assert len(set(world.seeds)) == 8


@each_case(("share", "different"), [("pair", 3), ("generation", 1), ("slot", 6)])
def test_seeds_are_shared_as_the_option_says(share: str, different: int) -> None:
    world = Script([1.0])
    answer(evaluator(world, env_seeds=share), "train", 0, 3)
    assert len(set(world.seeds)) == different


def test_the_centre_plays_slot_0s_seed_under_the_rules_of_training() -> None:
    world = Script([-1.0], ends=False)
    who = evaluator(world, reward_floor="-0.5", patience="7,0", episodes=2)
    pair = answer(who, "train", 0, 1)
    seeds = world.seeds[:2]
    world.seeds.clear()
    sent = answer(who, "centre", 0, 1, sigma=0.5, parameters=[0.25, 0.25]).results[0]
    assert (sent.noise_index, sent.seed, sent.moments) == (-1, pair.results[0].seed, ())
    assert world.seeds == seeds
    assert (sent.fitness, sent.returns, sent.steps, sent.cut) == ((-3.5,), (-7.0,), (14,), (2,))
    # Without noise: of (s, s + 1), normalised by mean ½ and deviation 2, the quarter of the sum is
    # s/4.
    assert [float(action[0]) for *_, action in world.seen[-7:]] == [
        min(step / 4, 1.0) for step in range(7)
    ]


def test_training_evaluation_confirmation_and_final_episodes_never_share_a_seed() -> None:
    world = Script([1.0])
    who = evaluator(world)
    played: dict[str, set[int]] = {}
    for kind in ("train", "eval", "confirm", "final"):
        for generation in (0, 7):
            world.seeds.clear()
            sent = answer(who, kind, 0, 50, generation)
            assert [result.seed for result in sent.results] == (
                world.seeds[::2] if kind == "train" else world.seeds
            )
            played.setdefault(kind, set()).update(world.seeds)
    assert {kind: len(seeds) for kind, seeds in played.items()} == {
        "train": 100,
        "eval": 100,
        "confirm": 100,
        "final": 50,
    }
    assert len(set.union(*played.values())) == 350
    low, size = SEED_RANGES[TRAINING]
    assert (
        max(played["train"])
        < low + size
        <= min(played["eval"] | played["confirm"] | played["final"])
    )


def test_an_evaluation_plays_the_bare_policy_to_the_environments_own_limit() -> None:
    world = Script([-1.0], ends=False)
    who = evaluator(
        world,
        spec_of(limit=30),
        reward_shift=1.0,
        reward_floor="0",
        patience="3,0",
        step_limit="10",
        action_noise=1.0,
    )
    sent = answer(who, "eval", 0, 2, limit=10)
    assert [
        (one.noise_index, one.returns, one.fitness, one.steps, one.cut, one.moments)
        for one in sent.results
    ] == [(-1, (-30.0,), (-30.0,), (30,), (0,), ())] * 2
    assert {float(action[0]) for *_, action in world.seen} == {0.0}


def test_the_option_wins_over_the_environments_limit_in_evaluations() -> None:
    who = evaluator(Script([1.0], ends=False), spec_of(limit=30), eval_step_limit=12)
    assert answer(who, "final", 0, 1).results[0].steps == (12,)


# --- what an individual's episodes come to


def test_an_individuals_figures_are_means_and_its_steps_are_a_sum() -> None:
    world = Script()
    lengths = iter([3, 6, 5, 2])

    class Uneven(Script):
        def reset(self, seed: int) -> np.ndarray:
            self.rewards = [1.0] * next(lengths)
            return super().reset(seed)

    world = Uneven()
    result = answer(
        evaluator(world, spec_of(limit=100), episodes=2, reward_shift=0.5, obs_sample=1.0),
        "train",
        0,
        1,
        limit=5,
    ).results[0]
    assert (result.returns, result.fitness, result.steps) == ((4.0, 3.5), (2.0, 1.75), (8, 7))
    assert (result.at_limit, result.cut) == ((1, 0), (1, 0))
    assert [one.count for one in result.moments] == [4, 6, 6, 3]


def test_the_environments_own_limit_is_not_called_a_cut() -> None:
    result = answer(
        evaluator(Script([1.0], ends=False), spec_of(limit=5)), "train", 0, 1, limit=5
    ).results[0]
    assert (result.at_limit, result.cut) == ((1, 1), (0, 0))


def test_only_sampled_slots_send_moments_and_none_without_normalisation() -> None:
    sent = answer(evaluator(Script([1.0]), obs_sample=0.3), "train", 0, 60)
    sampled = [bool(result.moments) for result in sent.results]
    assert sampled[0] and 5 < sum(sampled) < 35
    assert (
        sampled
        == make_generation_plan(config_of(obs_sample=0.3), 4, 2, 2).slots(0, 60).sampled.tolist()
    )
    assert not any(
        result.moments
        for result in answer(evaluator(Script([1.0]), obs_norm=False), "train", 0, 60).results
    )


def test_all_episodes_of_a_generation_see_observations_normalised_by_what_was_published() -> None:
    world = Script([1.0] * 5)
    who = evaluator(world, policy="linear", obs_sample=1.0)
    answer(who, "train", 0, 6, sigma=0.0, parameters=[0.1, 0.0])
    actions = np.array([action[0] for *_, action in world.seen]).reshape(12, 5)
    published = 0.1 * (np.arange(5) - 0.5) / 2  # task_of publishes mean 0.5 and deviation 2
    np.testing.assert_allclose(actions, [published] * 12, rtol=1e-5)


# --- action noise


def test_both_halves_of_a_pair_and_the_centre_act_with_the_same_noise() -> None:
    world = Script([1.0] * 4)
    who = evaluator(world, action_noise=0.5)
    answer(who, "train", 0, 2, sigma=0.0)
    actions = np.array([action[0] for *_, action in world.seen]).reshape(4, 4)
    assert np.array_equal(actions[0], actions[1]) and np.array_equal(actions[2], actions[3])
    assert not np.array_equal(actions[0], actions[2]) and (actions[0] != 0).all()
    keys = make_generation_plan(config_of(), 4, 2, 2).slots(0, 2).noise_keys
    assert np.array_equal(
        actions[0], np.clip(np.float32(0.5) * TABLE.row(int(keys[0]) % TABLE.size, 4), -1, 1)
    )
    world.seen.clear()
    answer(who, "centre", 0, 1)
    assert np.array_equal(actions[0], [action[0] for *_, action in world.seen])


# --- failures


def test_a_raising_environment_is_the_failure_of_its_slot_alone() -> None:
    fails: list[int] = []

    def hook(seed: int, step: int) -> None:
        if seed in fails and step == 3:
            raise RuntimeError("the motor burnt")

    world = Script(hook=hook)
    who, said = evaluator(world), []
    fails.append(answer(who, "train", 0, 4).results[2].seed)
    sent = answer(who, "train", 0, 4, said=said)
    assert [one.slot for one in sent.results] == [0, 1, 3]
    assert sent.failures == ((2, "RuntimeError: the motor burnt"),)
    assert [(one.slot, one.seed, "the motor burnt" in one.trace) for one in said] == [
        (2, fails[0], True)
    ]
    assert who.control.episode_began is None
    assert (who.control.episodes, who.control.failures) == (14, 1), "two of each slot, twice"
    assert Answer.decode(sent.encode()) == sent


@each_case("rewards", [[float("nan")], [1e308, 1e308]])
def test_a_return_that_is_not_finite_is_a_failure_and_no_result(rewards: list[float]) -> None:
    sent = answer(evaluator(Script(rewards)), "eval", 0, 2)
    assert sent.results == () and [slot for slot, _ in sent.failures] == [0, 1]
    assert "not a finite number" in sent.failures[0][1]


def test_parameters_that_overflow_are_a_failure() -> None:
    sent = answer(evaluator(Script()), "train", 0, 1, parameters=[3e38, 3e38], sigma=1.0)
    assert "not finite" in sent.failures[0][1]


def test_leaving_is_no_failure() -> None:
    who = evaluator(Script())
    who.control.leave_reason = "asked"
    with pytest.raises(Leaving):
        answer(who, "train", 0, 4)


def test_an_environment_from_a_module_of_the_users_fails_by_seed() -> None:
    """Through ``gymnasium.make``: some seeds raise, and the others are what they are without."""
    table = NoiseTable.in_memory(2**14)
    task, published = task_of(6, 3)

    def results(fault: str) -> Answer:
        config = quick_config(
            env=MOODY, env_arg=(("fault", fault),), strategy="ars", noise_size=table.size
        )
        who = join(config, EpisodeControl(), table=table).evaluator
        return who.evaluate(
            task, published, Block(task.publication, "train", 0, 12), WORKER, lambda _: None
        )

    whole, faulty = results(""), results("some")
    assert (
        {slot for slot, _ in faulty.failures}
        == {one.slot for one in whole.results if one.seed % 4 == 3}
        != set()
    )
    assert set(faulty.results) < set(whole.results)


def test_a_task_of_other_sizes_does_not_fit() -> None:
    who = evaluator(Script())
    assert who.fits(task_of(2, 2)[0])
    assert not who.fits(task_of(3, 2)[0]) and not who.fits(task_of(2, 3)[0])


def test_a_block_beyond_what_the_run_can_have_is_no_block_of_it() -> None:
    who = evaluator(Script())
    most = int(who.config.population * LARGEST_SCALE) // 2  # its scale can change
    assert who.planner.has_block(
        Block("4.1-00000000", "train", most - 1, most)
    ) and who.planner.has_block(Block("4.1-00000000", "centre", 0, 1))
    assert not who.planner.has_block(Block("4.1-00000000", "train", most, most + 1))
    assert not who.planner.has_block(Block("4.1-00000000", "centre", 0, 2))


def test_the_plan_of_a_population_that_grew_is_not_made_for_each_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planner, plans = evaluator(Script(), population=8, min_steps=100).planner, []
    task = task_of(2, 2)[0]
    blocks = [Block(task.publication, "train", start, start + 1) for start in range(32)]
    alone = [evaluator(Script()).planner.training_jobs(task, block)[0] for block in blocks]

    def counted(*arguments: Any) -> GenerationPlan:
        plans.append(make_generation_plan(*arguments))
        return plans[-1]

    monkeypatch.setattr(slots, "make_generation_plan", counted)
    jobs = [planner.training_jobs(task, block)[0] for block in blocks]
    assert [(job.index, job.key) for job in jobs] == [(job.index, job.key) for job in alone]
    assert len(plans) == 4  # 4, 8, 16 and 32 slots


def test_more_final_episodes_than_the_worker_joined_for_are_played() -> None:
    """A resumed run may ask for more than its config said when the worker took its seat."""
    who = evaluator(Script(), final_episodes=5)
    assert who.planner.has_block(
        Block("4.1-00000000", "final", 30, 40)
    ) and not who.planner.has_block(Block("4.1-00000000", "final", 0, 2**20))


def test_what_the_host_lacks_is_told_apart_from_what_the_slot_does() -> None:
    assert failure_reason(FileNotFoundError("no model")) == "host: FileNotFoundError: no model"
    assert failure_reason(MemoryError("full")) == "host: MemoryError: full"
    assert failure_reason(ValueError("fell over")) == "ValueError: fell over"
    assert failure_reason(StrategyFailure("it failed")) == "strategy: it failed"


@each_case("value", [np.inf, -np.inf, np.nan])
def test_an_episode_with_an_observation_that_is_not_finite_goes_without_its_moments(
    value: float,
) -> None:
    """Merging would leave it out; on the wire every number is finite."""
    found = pack_moments(Moments.of(np.array([[0.0, value], [1.0, 2.0]])))
    assert found == EpisodeMoments(0, b"\0" * 16, b"\0" * 16)
    before = RunningMoments.empty(2).merge(Moments.of(np.ones((3, 2))))
    after = before.merge(Moments(found.count, np.frombuffer(found.mean), np.frombuffer(found.m2)))
    assert (
        after is before and before.merge(Moments.of(np.array([[0.0, value], [1.0, 2.0]]))) is before
    )
