"""ARS against algorithm 2 of its paper, and what it does with ties, failures and generations that
say nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from es_queue.config.run_config import RunConfig
from es_queue.numerics.arrays import ArrayNoise
from es_queue.strategies import Batch
from es_queue.strategies.ars import ARS
from tests.cases import each_case

SIZE, PAIRS = 7, 9
NOISE = ArrayNoise(np.random.default_rng(0).standard_normal(500, dtype=np.float32))
INDICES = np.arange(0, 50 * PAIRS, 50)
START = np.linspace(-1, 1, SIZE).astype(np.float32)
FITNESS = 300 * np.random.default_rng(1).standard_normal((PAIRS, 2))


def made(**settings: Any) -> ARS:
    return ARS(RunConfig(strategy="ars", population=2 * PAIRS, **settings), SIZE)


def learnt(fitness: np.ndarray, **settings: Any) -> tuple[np.ndarray, dict[str, float]]:
    strategy = made(**settings)
    state, info = strategy.learn(
        strategy.start(START), Batch(NOISE, INDICES[: len(fitness)], fitness)
    )
    return state["parameters"], info


def looped(fitness: np.ndarray, kept: list[int], learning_rate: float) -> np.ndarray:
    deviation = np.std([fitness[slot] for slot in kept])
    parameters = START.astype(np.float64)
    for slot in kept:
        epsilon = NOISE.noise[INDICES[slot] :][:SIZE].astype(np.float64)
        parameters += (
            learning_rate
            / (len(kept) * deviation)
            * (fitness[slot, 0] - fitness[slot, 1])
            * epsilon
        )
    return parameters


@each_case("top", [0, 1, 4, PAIRS])
def test_the_update_is_that_of_a_naive_loop_over_the_best_pairs(top: int) -> None:
    kept = sorted(range(PAIRS), key=lambda slot: -FITNESS[slot].max())[: top or PAIRS]
    parameters, _ = learnt(FITNESS, top=top, learning_rate=0.3)
    np.testing.assert_allclose(parameters, looped(FITNESS, kept, 0.3), rtol=1e-5, atol=1e-6)


@given(st.lists(st.tuples(*[st.integers(0, 2)] * 2), min_size=2, max_size=60), st.integers(1, 60))
@settings(max_examples=100, deadline=None)
def test_the_kept_are_the_first_of_a_stable_sort_in_slot_order(
    pairs: list[tuple[int, int]], top: int
) -> None:
    wanted = sorted(sorted(range(len(pairs)), key=lambda slot: -max(pairs[slot]))[:top])
    assert made(top=top).best_slots(np.array(pairs, np.float64)).tolist() == wanted


@each_case("value", [0.0, 0.1, -1e300])
def test_without_spread_among_the_kept_there_is_no_step_and_it_is_counted(value: float) -> None:
    parameters, info = learnt(np.full((3, 2), value), weight_decay=0.5)
    assert np.array_equal(parameters, START)
    assert (info["no_step"], info["update_ratio"], info["gradient_norm"]) == (1, 0, 0)
