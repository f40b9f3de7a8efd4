"""What strategies learn from individuals that failed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from es_queue.config.run_config import RunConfig
from es_queue.strategies import strategy_class
from es_queue.testing import begin, is_same, run_generation, sample_strategy
from tests.cases import each_case

pytestmark = pytest.mark.fast


@each_case(
    ("name", "settings"),
    [
        ("openai_es", {}),
        ("openai_es", {"shaping": "log-rank"}),
        ("openai_es", {"shaping": "z-score"}),
        ("pgpe", {}),
        ("snes", {}),
        ("cma_es", {}),
        ("ars", {}),
        ("random_search", {}),
        ("ga", {}),
    ],
)
def test_an_individual_that_failed_counts_as_the_worst(name: str, settings: dict[str, Any]) -> None:
    kind = strategy_class(RunConfig(env="CartPole-v1", strategy=name))
    strategy = sample_strategy(kind, **settings)
    state = begin(strategy)
    batch = run_generation(strategy, state, 9)
    worst = np.unravel_index(batch.fitness.argmin(), batch.fitness.shape)
    expected = strategy.learn(state, batch)[0]
    others = np.sort(batch.fitness.ravel())
    # Where the size of a return counts, a failure has the smallest of the others.
    batch.fitness[worst] = others[1]
    tied = strategy.learn(state, batch)[0]
    batch.fitness[worst] = np.nan
    learnt = strategy.learn(state, batch)[0]
    assert is_same(learnt, expected) or is_same(learnt, tied)
