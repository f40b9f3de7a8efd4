"""What every strategy promises. The registry is the list: a new strategy is tested here by being
registered.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from es_queue import testing
from es_queue.config.run_config import RunConfig, own_settings
from es_queue.errors import UsageError
from es_queue.strategies import STRATEGIES, Strategy, make_strategy
from tests.cases import each_case


def variants(name: str) -> Iterator[dict[str, Any]]:
    """The strategy's defaults, and each other choice of each setting that it uses."""
    yield {}
    for setting, one in own_settings("strategy", name).items():
        yield from ({setting: choice} for choice in one.choices)


def made(name: str, size: int = testing.SIZE, **settings: Any) -> Strategy:
    values = {"population": 32, "seed": 1, "noise_size": len(testing.NOISE.noise), **settings}
    return make_strategy(RunConfig(strategy=name, **values), size)


@each_case("name", STRATEGIES)
def test_each_strategy_passes_the_shared_suite_with_each_choice_of_its_settings(name: str) -> None:
    passed = 0
    for variant in variants(name):
        try:
            strategy = made(name, **variant)
        except UsageError:
            continue  # the strategy does not take this choice
        for check in testing.CHECKS:
            check(strategy)
        passed += 1
    assert passed > 0


@each_case("name", [name for name in STRATEGIES if name not in ("random_search", "cma_me")])
def test_each_strategy_climbs_the_sphere(name: str) -> None:
    strategy = made(name)
    state = strategy.start(np.zeros(testing.SIZE, np.float32))
    for seed in range(120):
        state, _ = strategy.learn(state, testing.run_generation(strategy, state, seed))
    start = testing.sphere(np.zeros(testing.SIZE))
    assert testing.sphere(strategy.centre(strategy.published(state))) > 0.1 * start


@each_case(
    ("name", "settings", "sentence"),
    [
        ("pgpe", {"population": 31}, "pgpe samples mirrored pairs: use an even number"),
        ("ars", {"top": 17}, "top is 17, but a population of 32 has 16 pairs: use at most 16"),
        ("openai_es", {"optimizer": "clipup"}, "does not take it: use auto, adam or sgd"),
        ("ars", {"optimizer": "adam"}, "the strategy ars does not use it"),
        ("ars", {"size": 0}, "no parameters to train"),
        ("snes", {"env_seeds": "pair"}, "snes samples no pairs: use generation or slot"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(
    name: str, settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence) as refusal:
        made(name, **settings)
    assert "\n" not in str(refusal.value)
