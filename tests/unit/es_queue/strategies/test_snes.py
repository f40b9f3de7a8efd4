"""SNES against the paper's formulas in a loop over individuals."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from es_queue.config.run_config import RunConfig
from es_queue.numerics.ordered_sums import ArrayNoise
from es_queue.strategies import Batch, State, Strategy, make_strategy
from tests.cases import each_case

NOISE = ArrayNoise(np.random.default_rng(0).standard_normal(5_000, dtype=np.float32))
SIZE = 9
INDICES = np.array([7, 1500, 31, 2222, 900])


def made(**settings: Any) -> Strategy:
    return make_strategy(RunConfig(strategy="snes", population=5, **settings), SIZE)


def begun(strategy: Strategy) -> State:
    state = strategy.start(np.linspace(-1, 1, SIZE).astype(np.float32))
    return {**state, "sigma": np.linspace(0.1, 0.5, SIZE).astype(np.float32)}


def batch(*fitness: float) -> Batch:
    return Batch(NOISE, INDICES[: len(fitness)], np.array(fitness)[:, None])


BATCH = batch(3.0, -1.0, 10.0, 2.5, 0.0)


def paper(
    state: State, ranks: list[int], mean_rate: float, sigma_rate: float, linear: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Algorithm 6 with the utilities of section 3.1; ``ranks``: of each individual, 1 the best.

    linear: share of utilities that fall evenly with the rank, of the same sum of absolute values
    """
    count = len(ranks)
    raw = [max(0.0, math.log(count / 2 + 1) - math.log(rank)) for rank in range(1, count + 1)]
    utility = [one / sum(raw) - 1 / count for one in raw]
    even = [(count + 1) / 2 - rank for rank in range(1, count + 1)]
    size = sum(abs(one) for one in utility) / sum(abs(one) for one in even)
    utility = [
        (1 - linear) * one + linear * size * other for one, other in zip(utility, even, strict=True)
    ]
    mean, sigma = state["parameters"].astype(np.float64), state["sigma"].astype(np.float64)
    rows = NOISE.rows(INDICES[:count], 0, SIZE).astype(np.float64)
    for_mean = sum(utility[rank - 1] * row for rank, row in zip(ranks, rows, strict=True))
    for_sigma = sum(utility[rank - 1] * (row**2 - 1) for rank, row in zip(ranks, rows, strict=True))
    return mean + mean_rate * sigma * for_mean, sigma * np.exp(0.5 * sigma_rate * for_sigma)


@each_case(
    ("settings", "mean_rate", "linear"),
    [
        ({}, 1.0, 0.0),
        ({"learning_rate": 0.3}, 0.3, 0.0),
        ({"linear_share": 0.6}, 1.0, 0.6),
        ({"linear_share": 1.0}, 1.0, 1.0),
    ],
)
def test_a_step_is_the_papers_with_the_share_of_linear_utilities(
    settings: dict[str, float], mean_rate: float, linear: float
) -> None:
    strategy = made(**settings)
    state = begun(strategy)
    after, info = strategy.learn(state, batch(3.0, -1.0, 10.0, 2.5, 0.0))
    mean, sigma = paper(
        state, [2, 5, 1, 3, 4], mean_rate, (3 + math.log(SIZE)) / (5 * math.sqrt(SIZE)), linear
    )
    np.testing.assert_allclose(after["parameters"], mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(after["sigma"], sigma, rtol=1e-5)
    assert info["sigma"] == pytest.approx(math.sqrt(np.square(sigma).mean()), rel=1e-5)


def test_one_part_of_the_states_own_deviations_gives_the_bits_of_a_batch_without_parts() -> None:
    strategy, own = made(), begun(made())
    plain = strategy.learn(own, BATCH)[0]
    for spread in (strategy.spread(own), strategy.spread(own).copy()):
        parts = replace(BATCH, spreads=[(slice(0, 5), spread)])
        assert all(
            np.array_equal(value, strategy.learn(own, parts)[0][name])
            for name, value in plain.items()
        )


def test_each_part_moves_the_centre_by_its_own_deviations_and_all_change_sigma_alike() -> None:
    strategy, own = made(), begun(made())
    old = np.linspace(0.6, 0.2, SIZE).astype(np.float32)
    after = strategy.learn(
        own, replace(BATCH, spreads=[(slice(0, 2), old), (slice(2, 5), own["sigma"])])
    )[0]
    raw = [max(0.0, math.log(3.5) - math.log(rank)) for rank in range(1, 6)]
    moved = np.zeros(SIZE)
    for row, (rank, index) in enumerate(zip([2, 5, 1, 3, 4], INDICES, strict=True)):
        sigma = old if row < 2 else own["sigma"]
        moved += (
            (raw[rank - 1] / sum(raw) - 1 / 5)
            * sigma.astype(np.float64)
            * NOISE.noise[index : index + SIZE]
        )
    np.testing.assert_allclose(after["parameters"], own["parameters"] + moved, rtol=1e-5, atol=1e-6)
    plain = strategy.learn(own, BATCH)[0]
    assert np.array_equal(after["sigma"], plain["sigma"])
    assert not np.allclose(after["parameters"], plain["parameters"]), (
        "the older deviations make a difference"
    )


def test_the_rate_of_sigma_can_be_named_and_zero_keeps_sigma() -> None:
    fitness = (3.0, -1.0, 10.0, 2.5, 0.0)
    state = begun(made())
    np.testing.assert_allclose(
        made(sigma_learning_rate=0.7).learn(state, batch(*fitness))[0]["sigma"],
        paper(state, [2, 5, 1, 3, 4], 1.0, 0.7)[1],
        rtol=1e-5,
    )
    assert (
        made(sigma_learning_rate=0.0).learn(state, batch(*fitness))[0]["sigma"].tobytes()
        == state["sigma"].tobytes()
    )


def test_equals_share_their_utility_whatever_their_slots() -> None:
    strategy = made()
    state = begun(strategy)
    after, _ = strategy.learn(state, batch(1.0, 5.0, 5.0, 0.0, -1.0))
    one, other = (paper(state, ranks, 1.0, 0.0)[0] for ranks in ([3, 1, 2, 4, 5], [3, 2, 1, 4, 5]))
    np.testing.assert_allclose(after["parameters"], (one + other) / 2, rtol=1e-5, atol=1e-6)


def test_a_failed_individual_is_the_worst() -> None:
    strategy = made()
    state = begun(strategy)
    after, _ = strategy.learn(state, batch(3.0, math.nan, 10.0, 2.5, 0.0))
    np.testing.assert_allclose(
        after["parameters"], paper(state, [2, 5, 1, 3, 4], 1.0, 0.0)[0], rtol=1e-5, atol=1e-6
    )


@each_case("fitness", [(2.0,) * 5, (7.0,), (math.nan,) * 5])
def test_when_none_is_better_there_is_no_step(fitness: tuple[float, ...]) -> None:
    strategy = made(weight_decay=0.1)
    state = begun(strategy)
    after, info = strategy.learn(state, batch(*fitness))
    assert info["no_step"] == 1
    assert all(after[name].tobytes() == state[name].tobytes() for name in state)


def test_two_individuals_are_enough_and_the_better_one_is_approached() -> None:
    strategy = made()
    state = begun(strategy)
    after, _ = strategy.learn(state, batch(1.0, 0.0))
    mean, sigma = paper(state, [1, 2], 1.0, (3 + math.log(SIZE)) / (5 * math.sqrt(SIZE)))
    np.testing.assert_allclose(after["parameters"], mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(after["sigma"], sigma, rtol=1e-5)


def test_an_individual_is_the_centre_and_its_own_deviations() -> None:
    strategy = made()
    state = begun(strategy)
    rows = NOISE.rows(INDICES, 0, SIZE)
    tried = strategy.ask(strategy.published(state), 99.0, rows)
    assert (tried.dtype, tried.shape) == (np.float32, (5, 1, SIZE))
    assert np.array_equal(tried[:, 0], state["parameters"] + state["sigma"] * rows)


def test_a_named_sigma_is_the_first_of_every_parameter_and_set_scales_what_was_learnt() -> None:
    assert made(sigma=0.25).start(np.zeros(SIZE, np.float32))["sigma"].tolist() == [0.25] * SIZE
    state = begun(made())
    scaled = made(sigma=0.6).migrate_state(state, made())
    assert made().sigma(scaled) == pytest.approx(0.6)
    np.testing.assert_allclose(
        scaled["sigma"] / state["sigma"], 0.6 / made().sigma(state), rtol=1e-6
    )
