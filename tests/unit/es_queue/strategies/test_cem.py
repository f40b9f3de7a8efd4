"""The cross-entropy method against its formulas."""

from __future__ import annotations

import numpy as np

from es_queue import testing
from es_queue.strategies import Batch
from es_queue.strategies.cem import CEM

SIZE, COUNT = 5, 16


def test_mean_and_deviations_move_to_those_of_the_best() -> None:
    strategy = testing.sample_strategy(
        CEM, SIZE, population=COUNT, sigma=0.4, elite_share=0.25, learning_rate=0.6
    )
    state = strategy.start(np.arange(SIZE, dtype=np.float32))
    indices = np.arange(0, 1600, 100)
    noise = testing.NOISE.rows(indices, 0, SIZE)
    individuals = strategy.ask(strategy.published(state), 0.0, noise)[:, 0]
    fitness = np.random.default_rng(1).normal(size=(COUNT, 1))
    fitness[3] = np.nan
    best = individuals[np.argsort(-np.nan_to_num(fitness[:, 0], nan=-np.inf))[:4]].astype(float)
    after, info = strategy.learn(state, Batch(testing.NOISE, indices, fitness))
    expected = state["parameters"] + 0.6 * (best.mean(axis=0) - state["parameters"])
    np.testing.assert_allclose(after["parameters"], expected, rtol=1e-5)
    sigma = 0.4 + 0.7 * (best.std(axis=0) - 0.4)
    np.testing.assert_allclose(after["sigma"], sigma, rtol=1e-5)
    assert info["no_step"] == 0


def test_no_deviation_becomes_smaller_than_the_least() -> None:
    strategy = testing.sample_strategy(CEM, population=COUNT, sigma=0.4, least_sigma=0.5)
    state = strategy.start(np.zeros(testing.SIZE, np.float32))
    for seed in range(60):
        state, _ = strategy.learn(state, testing.run_generation(strategy, state, seed))
    assert state["sigma"].min() == np.float32(0.2)
