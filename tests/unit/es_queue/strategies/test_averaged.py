"""A strategy with an averaged centre against the same strategy without one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from es_queue import testing
from es_queue.config.run_config import STRATEGIES, RunConfig, own_settings
from es_queue.errors import UsageError
from es_queue.strategies import State, Strategy, make_strategy
from es_queue.strategies.averaged import AVERAGE, averaged
from es_queue.strategies.novelty import Novelty
from tests.cases import each_case

SIZE, DECAY = testing.SIZE, 0.75
FIRST = np.linspace(-1, 1, SIZE).astype(np.float32)
PLAIN = [name for name in STRATEGIES if "average_decay" in own_settings("strategy", name)]


def made(name: str, decay: float = DECAY, **settings: int) -> Strategy:
    config = RunConfig(
        strategy=name,
        population=32,
        noise_size=len(testing.NOISE.noise),
        average_decay=decay,
        **settings,
    )
    return make_strategy(config, SIZE)


def states_of(strategy: Strategy, generations: int) -> list[State]:
    states = [strategy.start(FIRST)]
    for generation in range(generations):
        batch = replace(
            testing.run_generation(strategy, states[-1], generation), generation=generation
        )
        states.append(strategy.learn(states[-1], batch)[0])
    return states


@each_case("name", PLAIN)
def test_the_search_is_the_same_and_the_centre_is_its_decaying_mean(name: str) -> None:
    averaged, plain = made(name), made(name, 0.0)
    mean = FIRST
    for state, alone in zip(states_of(averaged, 4), states_of(plain, 4), strict=True):
        assert state.keys() - alone.keys() == {AVERAGE}
        assert all(np.array_equal(state[key], alone[key]) for key in alone)
        mean = DECAY * mean + (1 - DECAY) * alone["parameters"]
        centre = averaged.centre(averaged.published(state))
        np.testing.assert_allclose(centre, mean, rtol=1e-5, atol=1e-6)


def test_a_strategy_with_several_centres_is_refused() -> None:
    with pytest.raises(UsageError, match="average_decay"):
        averaged(Novelty)
