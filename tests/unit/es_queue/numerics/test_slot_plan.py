"""The plan: a pure function of seed, generation and slot, in disjoint ranges, that no version may
change unseen.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from es_queue.config.run_config import RunConfig
from es_queue.slot_plan import (
    BEHAVIOUR,
    ELITE_SEEDS,
    REFERENCE,
    SEED_RANGES,
    TRAINING,
    SlotPlan,
    initial_parameters_seed,
    plan_slots,
)
from es_queue.slots import training_plan
from es_queue.strategies import make_strategy
from tests.cases import each_case

PLAN = partial(plan_slots, 3, 5, individuals=2, sampled=0.1)
LARGE, SMALL = partial(PLAN, positions=2**20), partial(PLAN, positions=70)
SHARES = ("pair", "generation", "slot")


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([LARGE, SMALL]),
    st.sampled_from(SHARES),
    st.integers(1, 3),
    st.integers(0, 60),
    st.integers(1, 60),
)
def test_a_slot_does_not_depend_on_how_many_are_planned(
    plan: Callable[..., SlotPlan], share: str, episodes: int, some: int, whole: int
) -> None:
    plan = partial(plan, sharing=share, episodes=episodes)
    some = min(some, whole)
    for part, full in zip(plan(some), plan(whole), strict=True):
        assert np.array_equal(part, full[:some])


@each_case("places", [70, 71, 100, 2**20])
def test_noise_indices_of_a_generation_are_distinct_and_in_the_table(places: int) -> None:
    for generation in range(20):
        indices = plan_slots(3, generation, 70, positions=places, individuals=2).noise_indices
        assert len(set(indices.tolist())) == 70
        assert indices.min() >= 0 and indices.max() < places


def test_a_table_that_is_just_large_enough_is_used_whole_and_a_smaller_one_refused() -> None:
    assert sorted(SMALL(70).noise_indices.tolist()) == list(range(70))
    with pytest.raises(ValueError, match="distinct"):
        SMALL(71)


def test_the_ranges_of_the_streams_are_disjoint_and_fit_an_int32() -> None:
    spans = sorted(
        (low, low + size)
        for stream, (low, size) in SEED_RANGES.items()
        if stream not in (ELITE_SEEDS, BEHAVIOUR, REFERENCE)
    )
    assert all(first[1] <= second[0] for first, second in itertools.pairwise(spans))
    assert spans[0][0] == 0 and spans[-1][1] == 2**31
    assert (
        SEED_RANGES[TRAINING]
        == SEED_RANGES[ELITE_SEEDS]
        == SEED_RANGES[BEHAVIOUR]
        == SEED_RANGES[REFERENCE]
        == (0, 2**30)
    )


def test_the_plan_of_a_config_ends_where_a_slice_still_fits_into_the_table() -> None:
    config = RunConfig(env="CartPole-v1", seed=3, noise_size=1000, obs_norm=False, population=11)
    plan = training_plan(config, make_strategy(config, 990), 2, 11)
    assert set(plan.noise_indices[:11].tolist()) == set(range(11))
    assert not plan.sampled.any(), "without statistics nothing is sampled"


def test_the_numbers_are_those_of_the_first_release() -> None:
    """A change here changes every run: say so in the change log."""
    slots = LARGE(3)
    assert slots.noise_indices.tolist() == [504935, 587470, 679103]
    keys = [4596003366071103827, 7892584218766792023, 17405919006595998233]
    assert slots.noise_keys.tolist() == keys
    assert slots.seeds[:, 0, 0].tolist() == [37036702, 881834934, 450120121]
    assert SMALL(70).noise_indices[-6:].tolist() == [26, 27, 68, 24, 9, 20]
    assert initial_parameters_seed(3) == 6931631680644316426
