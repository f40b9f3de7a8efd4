"""Random search: who is evaluated again, and who becomes the elite by the new results alone."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from es_queue.config.run_config import RunConfig
from es_queue.numerics.arrays import ArrayNoise
from es_queue.strategies import Batch, State, Strategy, make_strategy
from es_queue.strategies.base import best_reevaluated
from tests.cases import each_case

NOISE = ArrayNoise(np.random.default_rng(0).standard_normal(5_000, dtype=np.float32))
SIZE = 6
INDICES = np.array([7, 1500, 31, 2222, 900])
FITNESS = (3.0, math.nan, 10.0, 3.0, 0.0)


def made(**settings: Any) -> Strategy:
    return make_strategy(
        RunConfig(**{"strategy": "random_search", "population": 5, "candidates": 2, **settings}),
        SIZE,
    )


def begun(strategy: Strategy) -> State:
    return {
        **strategy.start(np.linspace(-1, 1, SIZE).astype(np.float32)),
        "parameters": np.full(SIZE, 0.3, np.float32),
    }


def batch(*again: float, fitness: tuple[float, ...] = FITNESS) -> Batch:
    return Batch(NOISE, INDICES, np.array(fitness)[:, None], np.array(again))


@each_case(
    ("fitness", "count", "slots"),
    [
        ((3.0, 1.0, 10.0, 3.0, 0.0), 2, [0, 2]),  # a tie goes to the lower slot
        ((3.0, 1.0, 10.0, 3.0, 0.0), 3, [0, 2, 3]),
        ((2.0,) * 5, 2, [0, 1]),
        (
            (math.nan, math.inf, -math.inf, 4.0, -1.0),
            3,
            [3, 4],
        ),  # whoever failed is never played again
        ((math.nan,) * 5, 3, []),
        ((1.0, 2.0), 9, [0, 1]),
    ],
)
def test_the_best_by_their_first_episodes_and_the_standing_elite_are_evaluated_again(
    fitness: tuple[float, ...], count: int, slots: list[int]
) -> None:
    strategy = made(candidates=count, population=9)
    results = replace(batch(), fitness=np.array(fitness)[:, None])
    assert strategy.candidates(begun(strategy), results).tolist() == [*slots, 9]


@each_case(
    ("again", "place"),
    [
        ((1.0, 5.0, 2.0), 1),
        ((5.0, 5.0, 2.0), 0),  # the lower slot
        ((1.0, 5.0, 5.0), 2),  # the standing one
        ((math.nan, math.inf, -3.0), 2),
        ((math.nan, -4.0, math.nan), 1),
        ((math.nan, math.nan, math.nan), 2),
        ((9.0,), 0),
    ],
)
def test_the_best_of_the_new_results_wins_and_the_standing_elite_wins_ties(
    again: tuple[float, ...], place: int
) -> None:
    assert best_reevaluated(np.array(again)) == place


def test_the_elite_is_the_very_vector_that_the_workers_played() -> None:
    strategy = made()
    state = begun(strategy)
    tried = strategy.ask(
        strategy.published(state), strategy.sigma(state), NOISE.rows(INDICES, 0, SIZE)
    )
    assert strategy.candidates(state, batch()).tolist() == [0, 2, 5]
    after, info = strategy.learn(state, batch(1.0, 0.5, 0.0))
    assert after["parameters"].tobytes() == tried[0, 0].tobytes()
    assert after["first"].tobytes() == state["first"].tobytes()
    assert (info["no_step"], info["elite_fitness"]) == (0.0, 1.0)
