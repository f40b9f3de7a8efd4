"""Closing a generation: the batch, the next state and the figures, from answers in slot order
alone.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from es_queue.numerics.normalization import Moments, RunningMoments
from es_queue.numerics.return_statistics import ReturnStatistics, return_statistics
from es_queue.protocol import messages
from es_queue.protocol.messages import Answer, EpisodeMoments, SlotResult
from es_queue.strategies.base import Batch
from master.collect.answer_check import ResultShape
from master.collect.ledger import AnswerChecker, Ledger
from master.collect.publication.closed_generation import ClosedGeneration
from master.loop.learner import Learner, split_lengths
from master.loop.records import centre_rank, episodes_record, evaluation_record, training_record
from master.loop.schedule import close_generation, shortest_prefix
from master.loop.state import CLOSING, RunState
from master.run.setup import Setup, prepare_run
from tests.cases import each_case
from tests.parts import TABLE
from tests.ring import quick_config
from tests.tiny import QUAD


def result(
    slot: int, fitness: tuple[float, ...] = (1.0, 2.0), steps: tuple[int, ...] = (5, 5), **more: Any
) -> SlotResult:
    none = (0,) * len(fitness)
    plain = {"returns": tuple(10 * one for one in fitness), "at_limit": none, "cut": none}
    return SlotResult(slot, 100 + slot, 7, fitness, steps=steps, **{**plain, **more})


def done_of(counted: list[SlotResult | None], **more: Any) -> ClosedGeneration:
    plain: dict[str, Any] = {
        "surplus": [],
        "evaluation": None,
        "confirmation": None,
        "eval_steps": 0,
        "centre": None,
    }
    return ClosedGeneration(counted, **{**plain, **more})


def setup_of(**values: Any) -> Setup:
    return prepare_run(
        quick_config(
            **{"env": QUAD, "strategy": "ars", "population": 8, "noise_size": TABLE.size, **values}
        ),
        table=TABLE,
    )


# --- the batch


@each_case(
    ("steps", "least", "wanted", "count"),
    [
        ([5, 5, 5, 5], 2, 0, 2),
        ([5, 5, 5, 5], 2, 10, 2),
        ([5, 5, 5, 5], 2, 11, 3),
        ([5, 5, 5, 5], 2, 20, 4),
        ([5, 5], 2, 99, 2),
        ([50, 5, 5], 2, 10, 2),
    ],
)
def test_the_batch_is_the_shortest_prefix_with_enough_steps(
    steps: list[int], least: int, wanted: int, count: int
) -> None:
    slots = [result(slot, steps=(one, 0)) for slot, one in enumerate(steps)]
    assert shortest_prefix(slots, least, wanted) == count


def test_a_slot_that_failed_counts_no_steps_but_takes_its_place() -> None:
    assert shortest_prefix([result(0), None, result(2), result(3)], 2, 11) == 3


def ledger_of(config: Any, slots: int, **most: int) -> Ledger:
    expectations = AnswerChecker(config, 0, ResultShape(6, 2, 3), {messages.TRAIN: slots, **most})
    return Ledger("0.1-00000000", expectations, {messages.TRAIN: slots, **most})


def test_what_lies_beyond_the_batch_is_surplus_and_not_used() -> None:
    config = setup_of(min_steps=25, obs_norm=False).config
    ledger = ledger_of(config, 6)
    for slot in (5, 3, 1, 0, 4, 2):  # in any order
        expected = ledger.checker.expected_answer("train", slot)
        one = replace(result(slot), noise_index=expected.noise_index, seed=expected.seed)
        one = replace(one, fitness=one.returns)
        assert ledger.accept(
            Answer(ledger.publication, "train", "h-1-abcdef", 0.1, (one,)).encode()
        )
    done = close_generation(ledger, 2, 25)
    assert [one.slot for one in done.counted] == [0, 1, 2] and [
        one.slot for one in done.surplus
    ] == [3, 4, 5]
    assert [one.slot for one in close_generation(ledger, 4, 0).surplus] == [4, 5]


def test_an_empty_ledger_closes_on_nothing() -> None:
    done = close_generation(
        Ledger("0.1-00000000", AnswerChecker(setup_of().config, 0, ResultShape(6, 2, 3), {}), {}),
        4,
        100,
    )
    assert (list(done.counted), list(done.surplus), done.evaluation, done.centre) == (
        [],
        [],
        None,
        None,
    )


# --- the next state


class Spy:
    """Hands batches on to nobody and remembers them."""

    def __init__(self, setup: Setup) -> None:
        self.batches: list[Batch] = []
        self.real = setup.strategy

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def learn(self, state: Any, batch: Batch) -> Any:
        self.batches.append(batch)
        return state, {"norm": 0.0}


def spied(setup: Setup) -> tuple[Learner, Spy]:
    spy = Spy(setup)
    return Learner(setup.config, setup.spec, spy, TABLE, setup.learner.target), spy  # type: ignore[arg-type]


def test_the_strategy_sees_fitness_in_slot_order_and_not_a_number_where_a_slot_failed() -> None:
    setup = setup_of()
    learner, spy = spied(setup)
    after, figures = learner.learn(
        setup.initial_state(), done_of([result(0, (3.0, 1.0)), None, result(2, (-1.0, 5.0))])
    )
    batch = spy.batches[0]
    assert np.array_equal(batch.fitness, [[3, 1], [np.nan, np.nan], [-1, 5]], equal_nan=True)
    assert batch.noise_indices.tolist() == [100, 0, 102]
    assert (after.generation, figures) == (1, {"norm": 0.0})


def test_a_fitness_above_the_cap_counts_as_the_cap() -> None:
    setup = setup_of(fitness_cap="2.5")
    learner, spy = spied(setup)
    counted = [result(0, (3.0, 1.0)), None, result(2, (-1.0, 5.0))]
    again = {"reevaluations": (result(0, (3.0,)), None), "measured": (result(1, (2.0,)),)}
    learner.learn(setup.initial_state(), done_of(counted, **again))
    batch = spy.batches[0]
    assert np.array_equal(batch.fitness, [[2.5, 1], [np.nan, np.nan], [-1, 2.5]], equal_nan=True)
    assert np.array_equal(batch.elite_fitness, [2.5, np.nan], equal_nan=True)
    assert batch.centre_fitness.tolist() == [2.0]


def sampled(rng: np.random.Generator, lengths: list[int]) -> tuple[EpisodeMoments, ...]:
    each = [Moments.of(rng.normal(1e6, 3, (length, 3))) for length in lengths]
    return tuple(EpisodeMoments(one.count, one.mean.tobytes(), one.m2.tobytes()) for one in each)


def test_statistics_are_merged_episode_by_episode_in_slot_order() -> None:
    setup, rng = setup_of(episodes=2), np.random.default_rng(1)
    slots = [result(slot, moments=sampled(rng, [5, 17, 2, 9])) for slot in range(4)]
    slots[2] = None
    after, _ = setup.learner.learn(setup.initial_state(), done_of(slots))
    expected = RunningMoments.empty(3)
    for one in (slots[0], slots[1], slots[3]):
        for episode in one.moments:
            expected = expected.merge(
                Moments(episode.count, np.frombuffer(episode.mean), np.frombuffer(episode.m2))
            )
    assert after.moments.count == expected.count == 99
    assert (
        after.moments.mean.tobytes() == expected.mean.tobytes()
        and after.moments.m2.tobytes() == expected.m2.tobytes()
    )
    reversed_, _ = setup.learner.learn(setup.initial_state(), done_of(slots[::-1]))
    assert reversed_.moments.m2.tobytes() != expected.m2.tobytes()  # so the order is seen at all


def test_an_adaptive_limit_follows_the_lengths_of_the_batch() -> None:
    setup = setup_of(step_limit="adaptive:2,0.5,1.5")
    state = setup.initial_state()
    assert state.step_limit == 2
    long, short = result(0, steps=(2, 2), at_limit=(1, 1)), result(1, steps=(1, 1))
    grown, _ = setup.learner.learn(state, done_of([long, short]))
    assert grown.step_limit == 3
    same, _ = setup.learner.learn(state, done_of([long, short, short]))
    assert same.step_limit == 2
    assert setup.learner.learn(state, done_of([None, None]))[0].step_limit == 2


@given(st.lists(st.integers(1, 20), min_size=1, max_size=8), st.integers(1, 20))
def test_lengths_of_several_episodes_keep_their_sum_and_the_number_at_the_limit(
    lengths: list[int], limit: int
) -> None:
    lengths = [min(one, limit) for one in lengths]
    reached = sum(one == limit for one in lengths)
    split = split_lengths(sum(lengths), reached, len(lengths), limit)
    assert len(split) == len(lengths) and sum(split) == sum(lengths)
    assert sum(one >= limit for one in split) == reached


def test_lengths_that_a_worker_made_up_do_no_harm() -> None:
    for steps, reached, episodes in itertools.product((0, 3, 10**9), (0, 2, 5), (1, 2, 3)):
        assert all(one >= 0 for one in split_lengths(steps, reached, episodes, 50))


# --- evaluation


def judged(
    learner: Learner, state: RunState, mean: float, confirm: float | None = None
) -> RunState:
    confirmation = None if confirm is None else return_statistics([confirm])
    return learner.with_best(
        state, done_of([], evaluation=return_statistics([mean]), confirmation=confirmation)
    )


def test_an_evaluation_that_was_taken_back_is_not_confirmed_by_what_it_had_asked_for() -> None:
    """A liar's evaluation passed, the confirming episodes were played, and then it was evaluated
    again.
    """
    setup = setup_of(target_reward="100")
    after = judged(setup.learner, setup.initial_state(), 11.0, 101.0)
    assert after.best is not None and not after.best.confirmed


def later(state: RunState) -> RunState:
    parameters = state.strategy["parameters"] + np.float32(1)
    return replace(state, generation=state.generation + 1, strategy={"parameters": parameters})


def test_the_best_is_the_best_evaluated_with_its_own_statistics() -> None:
    setup = setup_of()
    first = judged(setup.learner, setup.initial_state(), -5.0)
    assert (first.best.generation, first.best.eval_mean, first.best.confirmed) == (0, -5.0, False)
    worse = judged(setup.learner, later(first), -6.0)
    assert worse.best == first.best and worse.last_evaluation == -6.0
    equal = judged(setup.learner, later(worse), -5.0)
    assert (equal.best.generation, equal.best.eval_mean) == (2, -5.0)  # it was trained for longer
    seen = replace(later(equal), moments=RunningMoments(4, np.arange(3.0), np.full(3, 16.0)))
    better = judged(setup.learner, seen, -4.0)
    assert (better.best.generation, better.best.eval_mean) == (3, -4.0)
    assert np.array_equal(better.best.parameters, seen.strategy["parameters"])
    assert (better.best.mean.tolist(), better.best.std.tolist()) == ([0, 1, 2], [2, 2, 2])
    assert setup.learner.with_best(better, done_of([])) is better


def test_passing_the_target_twice_confirms_and_nothing_replaces_that() -> None:
    setup = setup_of(target_reward="-2")
    learner = setup.learner
    assert (
        learner.is_target_passed(return_statistics([-2.0]))
        and not learner.is_target_passed(return_statistics([-2.1]))
        and not learner.is_target_passed(None)
    )
    best = judged(learner, setup.initial_state(), -1.0, confirm=-3.0)
    assert (best.best.confirmed, best.confirm_mean) == (False, -3.0)
    confirmed = judged(learner, later(best), -1.5, confirm=-1.9)
    assert (confirmed.best.confirmed, confirmed.best.generation, confirmed.confirm_mean) == (
        True,
        1,
        -1.9,
    )
    assert judged(learner, later(confirmed), 0.0).best == confirmed.best
    assert judged(learner, later(confirmed), 0.0).confirm_mean == -1.9


def test_with_a_margin_returns_that_differ_need_a_higher_mean_to_pass() -> None:
    learner = setup_of(target_reward="-2", target_margin=2.0).learner
    alike, apart = [-2.0] * 25, [-2.5, -1.5] * 50  # of the second, the standard error is 0.05
    assert learner.is_target_passed(return_statistics(alike))
    assert not learner.is_target_passed(return_statistics(apart))
    assert not learner.is_target_passed(return_statistics([one + 0.09 for one in apart]))
    assert learner.is_target_passed(return_statistics([one + 0.11 for one in apart]))
    assert not learner.is_target_passed(ReturnStatistics(-1.0, math.inf, -1.0, -1.0, 4))


def test_without_a_target_nothing_passes() -> None:
    assert not setup_of(target_reward="none").learner.is_target_passed(return_statistics([1e9]))
    assert setup_of().learner.is_target_passed(return_statistics([-0.5]))  # the environment's own


def test_evaluations_are_due_every_so_often_and_at_the_end() -> None:
    learner, state = setup_of(eval_every=3).learner, setup_of().initial_state()
    assert [
        learner.is_evaluation_due(replace(state, generation=number)) for number in range(7)
    ] == [True, False, False, True, False, False, True]
    assert learner.is_evaluation_due(replace(state, generation=4, stage=CLOSING))
    never = setup_of(eval_every=0).learner
    assert not never.is_evaluation_due(state) and not never.is_evaluation_due(
        replace(state, stage=CLOSING)
    )


def test_the_target_is_compared_at_its_own_interval_and_at_the_end() -> None:
    learner, state = setup_of(eval_every=1, target_every=3).learner, setup_of().initial_state()
    assert [
        learner.is_target_compared(replace(state, generation=number)) for number in range(5)
    ] == [True, False, False, True, False]
    assert learner.is_target_compared(replace(state, generation=4, stage=CLOSING))


# --- figures


@each_case(("own", "rank"), [(0, 0.0), (1, 0.125), (2.5, 0.5), (4, 0.875), (9, 1.0)])
def test_the_centres_rank_is_the_share_that_it_beats_with_ties_half(
    own: float, rank: float
) -> None:
    centre = result(0, (own,), (5,))
    assert centre_rank(centre, [4.0, 1.0, 3.0, 2.0]) == rank
    assert centre_rank(None, [1.0]) is None and centre_rank(centre, []) is None


def test_ties_with_the_centre_count_half() -> None:
    assert centre_rank(result(0, (2.0,), (5,)), [2.0, 2.0, 2.0, 1.0]) == 0.625


def test_a_generations_figures_keep_returns_and_fitness_apart() -> None:
    done = done_of(
        [result(0, (1.0, 3.0), cut=(1, 0)), None, result(2, (2.0, 2.0))],
        centre=result(0, (2.5,), (5,)),
    )
    shown = training_record(done)
    assert (
        shown["fitness_mean"],
        shown["fitness_max"],
        shown["return_mean"],
        shown["return_max"],
    ) == (2, 3, 20, 30)
    assert (shown["fitness_std"], shown["centre_rank"]) == (0.5**0.5, 0.75)
    assert episodes_record(done, 1) == {
        "population": 4,
        "episodes_generation": 4,
        "steps_generation": 20,
        "length_mean": 5,
        "cut_fraction": 0.25,
    }
    assert episodes_record(done, 2)["length_mean"] == 2.5


def test_a_generation_without_results_has_no_figures() -> None:
    done = done_of([None, None])
    assert set(training_record(done).values()) == {None}
    assert episodes_record(done, 1)["length_mean"] is None
    assert set(evaluation_record(done, setup_of().initial_state()).values()) == {None}
