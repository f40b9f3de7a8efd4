"""The plan: a pure function of seed, generation and slot, in disjoint ranges, that no version may
change unseen.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from es_queue.config.run_config import RunConfig
from es_queue.numerics.slot_plan import (
    BEHAVIOUR,
    CONFIRMATION,
    ELITE,
    EVALUATION,
    FINAL,
    REFERENCE,
    SEED_RANGES,
    TRAINING,
    GenerationPlan,
    evaluation_seeds,
    initial_parameters_seed,
    make_generation_plan,
    multiply_shift,
)
from tests.cases import each_case

PLAN = GenerationPlan(
    seed=3,
    generation=5,
    index_count=2**20,
    individuals=2,
    episodes=1,
    seed_sharing="pair",
    sample_fraction=0.1,
)
SMALL = replace(PLAN, index_count=70)
SHARES = ("pair", "generation", "slot")


def equal(
    one: GenerationPlan, start: int, stop: int, other: GenerationPlan, shift: int = 0
) -> bool:
    a, b = one.slots(start, stop), other.slots(start - shift, stop - shift)
    return all(
        np.array_equal(getattr(a, name), getattr(b, name))
        for name in ("noise_indices", "seeds", "noise_keys", "sampled")
    )


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([PLAN, SMALL]),
    st.sampled_from(SHARES),
    st.integers(1, 3),
    st.integers(0, 60),
    st.integers(0, 60),
    st.integers(1, 60),
)
def test_a_slot_does_not_depend_on_which_slots_are_asked_for(
    plan: GenerationPlan, share: str, episodes: int, first: int, second: int, whole: int
) -> None:
    plan = replace(plan, seed_sharing=share, episodes=episodes)
    start, stop = sorted((min(first, whole), min(second, whole)))
    part, full = plan.slots(start, stop), plan.slots(0, whole)
    assert part.start == start
    for name in ("noise_indices", "seeds", "noise_keys", "sampled"):
        assert np.array_equal(getattr(part, name), getattr(full, name)[start:stop])


@each_case("places", [70, 71, 100, 2**20])
def test_noise_indices_of_a_generation_are_distinct_and_in_the_table(places: int) -> None:
    for generation in range(20):
        indices = (
            replace(PLAN, index_count=places, generation=generation).slots(0, 70).noise_indices
        )
        assert len(set(indices.tolist())) == 70
        assert indices.min() >= 0 and indices.max() < places


def test_a_table_that_is_just_large_enough_is_used_whole_and_a_smaller_one_refused() -> None:
    assert sorted(SMALL.slots(0, 70).noise_indices.tolist()) == list(range(70))
    with pytest.raises(ValueError, match="distinct"):
        SMALL.slots(0, 71)


@each_case("stream", [EVALUATION, CONFIRMATION, FINAL])
def test_environment_seeds_lie_in_the_range_of_their_stream(stream: int) -> None:
    low, size = SEED_RANGES[stream]
    seeds = PLAN.seeds(stream, 1000)
    assert len(set(seeds.tolist())) == 1000
    assert low <= seeds.min() and seeds.max() < low + size


def test_the_ranges_of_the_streams_are_disjoint_and_fit_an_int32() -> None:
    spans = sorted(
        (low, low + size)
        for stream, (low, size) in SEED_RANGES.items()
        if stream not in (ELITE, BEHAVIOUR, REFERENCE)
    )
    assert all(first[1] <= second[0] for first, second in itertools.pairwise(spans))
    assert spans[0][0] == 0 and spans[-1][1] == 2**31
    assert (
        SEED_RANGES[TRAINING]
        == SEED_RANGES[ELITE]
        == SEED_RANGES[BEHAVIOUR]
        == SEED_RANGES[REFERENCE]
        == (0, 2**30)
    )


def test_the_two_of_a_pair_share_their_seeds_and_pairs_do_not() -> None:
    seeds = replace(PLAN, episodes=3).slots(0, 100).seeds
    assert seeds.shape == (100, 2, 3)
    assert np.array_equal(seeds[:, 0], seeds[:, 1])
    assert len(set(seeds[:, 0].ravel().tolist())) == 300


def test_elites_have_fresh_seeds_in_each_generation_which_no_training_slot_has() -> None:
    config = RunConfig(seed=3)
    drawn = [evaluation_seeds(config, ELITE, generation, 30).tolist() for generation in range(3)]
    trained = [
        replace(PLAN, generation=generation).slots(0, 100).seeds[:, 0, 0].tolist()
        for generation in range(3)
    ]
    assert len({*itertools.chain(*drawn, *trained)}) == 3 * 130


def test_a_generation_shares_its_seeds_and_the_next_has_others() -> None:
    plan = replace(PLAN, seed_sharing="generation", episodes=3)
    seeds = plan.slots(0, 100).seeds
    assert seeds.shape == (100, 2, 3)
    assert (seeds == seeds[0, 0]).all() and len(set(seeds[0, 0].tolist())) == 3
    assert not np.isin(replace(plan, generation=6).slots(0, 1).seeds, seeds).any()


def test_with_seeds_by_slot_nobody_shares() -> None:
    seeds = replace(PLAN, seed_sharing="slot", episodes=3).slots(0, 100).seeds
    assert len(set(seeds.ravel().tolist())) == 600


def test_seeds_of_training_stay_below_two_to_the_thirty() -> None:
    for share in SHARES:
        seeds = replace(PLAN, seed_sharing=share, episodes=4).slots(0, 500).seeds
        assert seeds.min() >= 0 and seeds.max() < 2**30


def test_generations_and_runs_differ_in_everything() -> None:
    for other in (replace(PLAN, generation=6), replace(PLAN, seed=4)):
        a, b = PLAN.slots(0, 100), other.slots(0, 100)
        for name in ("noise_indices", "seeds", "noise_keys"):
            assert np.mean(getattr(a, name) == getattr(b, name)) < 0.05, name


def test_slot_zero_is_always_sampled_and_about_the_asked_share_of_the_rest() -> None:
    sampled = PLAN.slots(0, 5000).sampled
    assert sampled[0] and 0.08 < sampled.mean() < 0.12
    assert not replace(PLAN, sample_fraction=0.0).slots(0, 100).sampled.any()
    assert replace(PLAN, sample_fraction=1.0).slots(0, 100).sampled.all()
    assert [
        bool(replace(PLAN, generation=generation, sample_fraction=1e-9).slots(0, 9).sampled[0])
        for generation in range(9)
    ] == [True] * 9


def test_final_seeds_are_the_same_in_every_generation_and_the_others_are_not() -> None:
    config = RunConfig(env="CartPole-v1", seed=3, noise_size=2**18)
    assert np.array_equal(
        evaluation_seeds(config, FINAL, 1, 50), evaluation_seeds(config, FINAL, 9, 50)
    )
    for stream in (EVALUATION, CONFIRMATION):
        assert not np.isin(
            evaluation_seeds(config, stream, 1, 50), evaluation_seeds(config, stream, 2, 50)
        ).any()


def test_the_plan_of_a_config_ends_where_a_slice_still_fits_into_the_table() -> None:
    config = RunConfig(env="CartPole-v1", seed=3, noise_size=1000, obs_norm=False)
    plan = make_generation_plan(config, 2, 990, 2)
    assert plan.index_count == 11
    assert set(plan.slots(0, 11).noise_indices.tolist()) == set(range(11))
    assert plan.sample_fraction == 0.0, "without statistics nothing is sampled"


@settings(max_examples=200, deadline=None)
@example(0x55555555_FFFFFFFF, 3)  # the low half carries
@given(st.integers(0, 2**64 - 1), st.integers(1, 2**32))
def test_multiply_shift_is_the_exact_product(word: int, size: int) -> None:
    assert multiply_shift(np.array([word], dtype=np.uint64), size).tolist() == [word * size >> 64]


def test_the_numbers_are_those_of_the_first_release() -> None:
    """A change here changes every run: say so in the change log."""
    slots = PLAN.slots(0, 4)
    assert slots.noise_indices.tolist() == GOLDEN["noise_indices"]
    assert slots.noise_keys.tolist() == GOLDEN["noise_keys"]
    assert slots.seeds[:, 0, 0].tolist() == GOLDEN["pair"]
    assert (
        replace(PLAN, seed_sharing="generation").slots(0, 1).seeds.ravel().tolist()
        == GOLDEN["generation"]
    )
    assert replace(PLAN, seed_sharing="slot").slots(0, 2).seeds.ravel().tolist() == GOLDEN["slot"]
    assert np.flatnonzero(PLAN.slots(0, 60).sampled).tolist() == GOLDEN["sampled"]
    assert SMALL.slots(0, 70).noise_indices[-6:].tolist() == GOLDEN["drawn again"]
    assert [
        PLAN.seeds(stream, 2).tolist() for stream in (EVALUATION, CONFIRMATION, FINAL)
    ] == GOLDEN["evaluation"]
    assert (
        replace(PLAN, seed=2**63 - 1, generation=2**31).slots(7, 8).noise_indices.tolist()
        == GOLDEN["far"]
    )
    assert initial_parameters_seed(3) == GOLDEN["first parameters"]


GOLDEN = {
    "noise_indices": [504935, 587470, 679103, 521708],
    "noise_keys": [
        4596003366071103827,
        7892584218766792023,
        17405919006595998233,
        15065551312998072282,
    ],
    "pair": [37036702, 881834934, 450120121, 934647597],
    "generation": [37036702, 37036702],
    "slot": [37036702, 881834934, 450120121, 934647597],
    "sampled": [0, 8, 24, 28, 34, 38],
    "drawn again": [26, 27, 68, 24, 9, 20],
    "evaluation": [[1303296271, 1142161303], [1366799070, 1352795551], [1973443021, 1987239709]],
    "far": [441131],
    "first parameters": 6931631680644316426,
}


@each_case("share", ["pair", "generation", "slot"])
def test_a_part_of_the_plan_is_the_plan_of_that_part(share: str) -> None:
    plan = GenerationPlan(5, 3, 1000, 2, 2, share, 0.5)
    whole, part = plan.slots(0, 20).part(7, 12), plan.slots(7, 12)
    assert whole.start == part.start == 7
    for one, other in zip(vars(whole).values(), vars(part).values(), strict=True):
        assert np.array_equal(one, other)
