"""Novelty search against the paper's formulas: the distance, the mixture of ranks, the
meta-population and its draw.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from es_queue.config.run_config import RunConfig
from es_queue.errors import UsageError
from es_queue.numerics.arrays import ArrayNoise, Floats
from es_queue.numerics.statistics import Moments
from es_queue.strategies import Batch, State, make_strategy
from es_queue.strategies.novelty import (
    STAGNATION_LIMIT,
    Novelty,
    extend_archive,
    novelty_of,
)
from es_queue.strategies.shaping import centered_rank
from tests.cases import each_case

NOISE = ArrayNoise(np.random.default_rng(0).standard_normal(5_000, dtype=np.float32))
SIZE, PAIRS, MEMBERS = 7, 6, 3
INDICES = np.arange(0, 100 * PAIRS, 100)
RNG = np.random.default_rng(4)
FITNESS = RNG.normal(size=(PAIRS, 2))
BEHAVIOUR = RNG.normal(size=(PAIRS, 2, 2)).astype(np.float32)
START = np.linspace(-1, 1, SIZE).astype(np.float32)
MEASURED = np.array([[0.0, 0.0], [3.0, 4.0], [-1.0, 0.5]], np.float32)


def made(**settings: Any) -> Novelty:
    plain = {
        "strategy": "novelty",
        "population": 2 * PAIRS,
        "seed": 5,
        "members": MEMBERS,
        "neighbours": 2,
        "optimizer": "sgd",
    }
    found = make_strategy(RunConfig(**{**plain, **settings}), SIZE)
    assert isinstance(found, Novelty)
    return found


def batch(strategy: Novelty, state: State, **values: Any) -> Batch:
    count = strategy.centre_count(state) - 1
    plain = {
        "behaviour": BEHAVIOUR,
        "centre_fitness": np.arange(count) * 1.0,
        "centre_behaviour": MEASURED[:count],
    }
    return Batch(NOISE, INDICES, **{"fitness": FITNESS, **plain, **values})


def learnt(strategy: Novelty, state: State, **values: Any) -> State:
    return strategy.learn(state, batch(strategy, state, **values))[0]


# --- the archive


def test_novelty_is_the_mean_distance_to_the_nearest_of_the_archive() -> None:
    archive, behaviours = (
        RNG.normal(size=(9, 4)).astype(np.float32),
        RNG.normal(size=(5, 4)).astype(np.float32),
    )
    for neighbours in (1, 3, 9, 10):
        every = [
            sorted(math.dist(one, other) for other in archive.astype(np.float64))
            for one in behaviours.astype(np.float64)
        ]
        wanted = [sum(each[:neighbours]) / min(9, neighbours) for each in every]
        np.testing.assert_allclose(novelty_of(behaviours, archive, neighbours), wanted, rtol=1e-12)


def test_the_archive_is_bounded_and_its_oldest_go() -> None:
    archive = np.empty((0, 0), np.float32)
    for number in range(5):
        archive = extend_archive(archive, np.array([[number, number]], np.float32), 3)
    assert archive[:, 0].tolist() == [2, 3, 4]
    assert extend_archive(archive, np.array([[np.nan, 0]], np.float32), 3) is not archive
    assert extend_archive(archive, np.array([[np.nan, 0], [7, 7]], np.float32), 3)[
        :, 0
    ].tolist() == [3, 4, 7]


# --- the step


@each_case(("kind", "weight"), [("ns", 0.0), ("nsr", 0.5), ("nsra", 1.0)])
def test_the_step_follows_the_ranks_of_novelty_and_of_reward(kind: str, weight: float) -> None:
    strategy = made(novelty=kind, learning_rate=1.0, momentum=0.0, members=1)
    state = strategy.start(START)
    after = learnt(strategy, state)
    away = novelty_of(BEHAVIOUR.reshape(-1, 2), MEASURED[:1], 2)
    ranks = weight * centered_rank(FITNESS.ravel()) + (1 - weight) * centered_rank(away)
    climbed = sum(
        (plus - minus) * NOISE.noise[index : index + SIZE]
        for (plus, minus), index in zip(ranks.reshape(-1, 2), INDICES, strict=True)
    )
    np.testing.assert_allclose(
        after["parameters"], START + climbed / (2 * PAIRS), rtol=1e-5, atol=1e-6
    )


def test_a_failed_individual_is_the_least_novel() -> None:
    strategy = made(novelty="ns", members=1)
    state = strategy.start(START)
    nearest = BEHAVIOUR.copy()
    nearest[2, 1] = MEASURED[0]
    failed, fitness = BEHAVIOUR.copy(), FITNESS.copy()
    failed[2, 1], fitness[2, 1] = np.nan, np.nan
    assert np.array_equal(
        learnt(strategy, state, behaviour=nearest)["members"],
        learnt(strategy, state, behaviour=failed, fitness=fitness)["members"],
    )


def test_nsra_trusts_the_reward_less_after_long_without_a_better_centre_and_more_after_one() -> (
    None
):
    strategy = made(novelty="nsra", members=1)
    state = strategy.start(START)
    weights = []
    for fitness in [5.0] + [4.0] * 2 * STAGNATION_LIMIT + [6.0, 7.0, math.nan, 8.0]:
        state = learnt(strategy, state, centre_fitness=np.array([fitness]))
        weights.append(float(state["reward_weight"]))
    assert weights[:STAGNATION_LIMIT] == [1.0] * STAGNATION_LIMIT
    assert weights[STAGNATION_LIMIT] == 0.95 and weights[2 * STAGNATION_LIMIT] == pytest.approx(0.9)
    assert weights[-4:] == pytest.approx([0.95, 1.0, 1.0, 1.0])


# --- the meta-population


def draw(member: int) -> Floats:
    return np.random.default_rng(member).normal(size=SIZE).astype(np.float32)


def test_members_of_their_own_begin_with_what_the_policy_draws_for_each() -> None:
    strategy = made(member_init="own")
    state = strategy.begin(strategy.start(START), Moments.empty(2), draw, 2)
    assert np.array_equal(state["members"], [START, draw(1), draw(2)])
    with pytest.raises(UsageError, match="member_init is own, but with the init auto all members"):
        strategy.begin(state, Moments.empty(2), lambda _: START, 2)


def test_each_member_has_its_own_optimiser_and_one_is_trained_at_a_time() -> None:
    strategy = made(optimizer="adam", weight_decay=0.1)
    state = strategy.start(START)
    for _ in range(12):
        played, before = int(state["active"]), state
        state = learnt(strategy, state)
        changed = [
            number
            for number in range(MEMBERS)
            if not np.array_equal(before["members"][number], state["members"][number])
        ]
        assert changed == [played] == [int(state["last"])]
        stepped = state["member_step"] - before["member_step"]
        assert stepped.tolist() == [int(number == played) for number in range(MEMBERS)]
        assert np.array_equal(state["parameters"], state["members"][state["active"]])
        published = strategy.published(state)
        assert strategy.centre_count(state) == 2 and np.array_equal(
            strategy.centre_of(published, 1, draw), state["members"][played]
        )
    assert (state["member_step"] > 0).all()
