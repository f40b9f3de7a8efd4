"""CMA-ME: emitters that are rewarded for what they add to an archive."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from es_queue.config.run_config import RunConfig
from es_queue.errors import UsageError
from es_queue.numerics.arrays import Doubles, Floats
from es_queue.numerics.noise_table import NoiseTable
from es_queue.strategies import make_strategy
from es_queue.strategies.base import Batch, State, Strategy
from tests.cases import each_case

SIZE, REACH = 20, 5.12
TABLE = NoiseTable.in_memory(2**16)


def projected(vectors: Floats) -> tuple[Doubles, Floats]:
    """The sphere of the paper's section 5.1, from 0 to 100, and the two sums of half of the
    variables, each drawn back inside its bounds.
    """
    x = vectors.astype(np.float64)
    worst = np.square(-REACH - 0.4 * REACH) * SIZE
    fitness = 100 - 100 * np.square(x - 0.4 * REACH).sum(axis=1) / worst
    inside = np.where(abs(x) > REACH, REACH / np.where(x == 0, 1, x), x)
    return fitness, inside.reshape(len(x), 2, -1).sum(axis=2).astype(np.float32)


def make(strategy: str, cells: int = 100, **values: Any) -> Strategy:
    most = REACH / 2 * SIZE
    plain: dict[str, Any] = {
        "objective": "tests.objectives:arm",
        "parameters": SIZE,
        "population": 180,
        "sigma": 0.5,
        "cells": (cells, cells),
        "behaviour_bounds": f"-{most}:{most}",
        "noise_size": TABLE.size,
        "seed": 0,
    }
    return make_strategy(RunConfig(**{**plain, "strategy": strategy, **values}), SIZE)


def first_state(strategy: Any) -> State:
    state = strategy.start(np.zeros(SIZE, np.float32))
    return {**state, **strategy.archive(state, 2).to_arrays()}


def asked(strategy: Strategy, state: State, indices: Any) -> Floats:
    build, published = strategy.builder(TABLE), strategy.published(state)
    sigma = float(np.float32(strategy.sigma(state)))
    return np.concatenate(
        [build(published, sigma, 0, slot, int(index)) for slot, index in enumerate(indices)]
    )


def search(strategy: Strategy, generations: int) -> dict[str, float]:
    state, info, draws = first_state(strategy), dict[str, float](), np.random.default_rng(0)
    for _ in range(generations):
        indices = draws.integers(0, TABLE.size - SIZE, strategy.config.population)
        fitness, behaviour = projected(asked(strategy, state, indices))
        batch = Batch(TABLE, indices, fitness[:, None], behaviour=behaviour[:, None])
        state, info = strategy.learn(state, batch)
    return info


def test_it_illuminates_the_projected_sphere_as_pyribs_does_and_beyond_map_elites() -> None:
    searches: dict[str, dict[str, Any]] = {"cma_me": {"emitters": 5}, "map_elites": {}}
    found = {name: search(make(name, **own), 100)["qd_score"] for name, own in searches.items()}
    # ribs 0.12: 353,063, 333,893, 342,941 and 343,842 with seeds 0 to 3, for five emitters of 36
    # (ranker 2imp, selection rule mu, restart rule no_improvement) after 100 generations.
    assert found["cma_me"] > 0.95 * 343_435
    assert found["cma_me"] > 1.3 * found["map_elites"]


def test_an_emitter_follows_first_those_that_fill_a_cell_then_those_that_improve_one() -> None:
    """With one emitter, its mean moves as if the individuals had been ranked in this order."""
    strategy = make("cma_me", emitters=1, population=4)
    state = first_state(strategy)
    indices = np.arange(4) * 1000
    low, high = np.float32([-30, -30]), np.float32([30, 30])
    # An elite of fitness 5 in the cell of ``low``.
    state, _ = strategy.learn(
        state, Batch(TABLE, indices[:1], np.array([[5.0]]), behaviour=low[None, None])
    )
    behaviour = np.stack([low, low, high, high + 10])[:, None]
    fitness = np.array([[9.0], [4.0], [-7.0], [-8.0]])  # improves, rejected, fills, fills less
    after, info = strategy.learn(state, Batch(TABLE, indices, fitness, behaviour=behaviour))
    plain = RunConfig(env="X", strategy="cma_es", population=4, sigma=0.5)
    as_sphere, _ = make_strategy(plain, SIZE).learn(
        {name.removeprefix("emitter_"): state[name][0] for name in state if "emitter_" in name},
        Batch(TABLE, indices, np.array([[2.0], [1.0], [4.0], [3.0]])),
    )
    assert np.array_equal(after["emitter_parameters"][0], as_sphere["parameters"])
    assert (info["accepted"], info["emitter_restarts"]) == (3, 0)


def test_an_emitter_that_adds_nothing_begins_again_at_an_elite() -> None:
    strategy = make("cma_me", cells=2, emitters=2, population=4)
    state, indices = first_state(strategy), np.arange(4) * 1000
    behaviour = np.zeros((4, 1, 2), np.float32)
    fitness = np.array([[1.0], [3.0], [0.0], [np.nan]])
    state, _ = strategy.learn(state, Batch(TABLE, indices, fitness, behaviour=behaviour))
    elite = state["elite_parameters"][0]
    assert np.array_equal(elite, state["parameters"])
    after, info = strategy.learn(state, Batch(TABLE, indices, fitness, behaviour=behaviour))
    assert info["emitter_restarts"] == 2 and info["accepted"] == 0
    assert all(np.array_equal(mean, elite) for mean in after["emitter_parameters"])
    assert (after["emitter_sigma"] == 0.5).all()


@each_case(
    ("values", "sentence"),
    [
        ({"population": 182}, "population is 182, but there are 4 emitters with at least 2"),
        ({"population": 4}, "population is 4, but there are 4 emitters with at least 2"),
        ({"covariance": "round"}, "covariance is 'round'"),
        ({"schedule": "async"}, "schedule is async, but cma_me learns from whole generations"),
    ],
)
def test_settings_that_no_emitter_can_have_are_refused(
    values: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence):
        make("cma_me", **values)


def test_a_large_policy_needs_the_diagonal() -> None:
    config = make("cma_me").config
    with pytest.raises(UsageError, match="at most 2,000 parameters"):
        make_strategy(config, 2001)
    diagonal = make("cma_me", covariance="diagonal").config
    assert make_strategy(diagonal, 2001).size == 2001
