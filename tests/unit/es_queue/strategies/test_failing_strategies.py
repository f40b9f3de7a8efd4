"""A strategy of the user's own that fails is named at once, in one sentence."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from es_queue.config.parsing import config_from_values
from es_queue.errors import StrategyFailure, UsageError
from es_queue.strategies import make_strategy
from es_queue.strategies.novelty import Novelty
from es_queue.strategies.snes import SNES
from tests.cases import each_case
from tests.ring import quick_config, run_ring
from tests.tiny import QUAD
from tests.unit.es_queue.strategies.test_strategies import begun, tried

HERE = "tests.unit.es_queue.strategies.test_failing_strategies"


class WrongShape(SNES):
    """One parameter too many."""

    def ask(self, published: Any, sigma: float, noise: Any) -> Any:
        return np.zeros((len(noise), 1, self.size + 1), np.float32)


class WrongType(SNES):
    """Numbers of twice the length."""

    def ask(self, published: Any, sigma: float, noise: Any) -> Any:
        return super().ask(published, sigma, noise).astype(np.float64)


class NoIndividuals(SNES):
    """It raises on the workers."""

    def ask(self, published: Any, sigma: float, noise: Any) -> Any:
        raise KeyError("no such\nsetting")


class WrongLater(SNES):
    """Right when it is tried, wrong in the run."""

    def ask(self, published: Any, sigma: float, noise: Any) -> Any:
        individuals = super().ask(published, sigma, noise)
        return individuals[..., :1] if noise.any() else individuals


class RaisesLater(SNES):
    """Right when it is tried, and raises in the run."""

    def ask(self, published: Any, sigma: float, noise: Any) -> Any:
        if noise.any():
            raise KeyError("lost")
        return super().ask(published, sigma, noise)


class NoImprovement(SNES):
    """It raises on the master."""

    def tell(self, state: Any, batch: Any) -> Any:
        return {}["sigma"]


class NoResult(SNES):
    """It forgets to return."""

    def tell(self, state: Any, batch: Any) -> Any:
        return None


class NotANumber(SNES):
    """Its parameters are no numbers."""

    def tell(self, state: Any, batch: Any) -> Any:
        after, info = super().tell(state, batch)
        return {**after, "parameters": after["parameters"] * np.nan}, info


class Plain(SNES):
    """As it should be."""


class Synchronous(Novelty):
    """It cannot learn from several publications."""


def config(kind: type, **values: Any) -> Any:
    return quick_config(
        env=QUAD,
        strategy=f"{HERE}:{kind.__name__}",
        population=8,
        obs_norm=False,
        generations=3,
        target_reward="none",
        eval_every=0,
        final_episodes=0,
        **values,
    )


@each_case(
    ("kind", "sentence"),
    [
        (WrongShape, r"made individuals of shape \(1, 1, \d+\) and type float32: its individuals"),
        (WrongType, r"and type float64: its individuals must be float32 of shape \(1, 1, \d+\)"),
        (
            NoIndividuals,
            r"failed in ask: KeyError: 'no such\\nsetting' \(test_failing_strategies.py, ",
        ),
        (WrongLater, r"made individuals of shape \(1, 1\) and type float32"),
        (RaisesLater, r"failed in ask: KeyError: 'lost' \(test_failing_strategies.py"),
        (NoImprovement, r"failed in tell: KeyError: 'sigma' \(test_failing_strategies.py, line"),
        (NoResult, "failed in tell: TypeError"),
    ],
)
def test_a_strategy_that_fails_ends_the_run_with_one_sentence_that_names_it(
    kind: type, sentence: str
) -> None:
    with pytest.raises(StrategyFailure) as caught:
        run_ring(config(kind))
    text = str(caught.value)
    assert text.startswith(f"the strategy {HERE}:{kind.__name__} ") and "\n" not in text
    assert re.search(sentence, text)
    assert "seed" not in text


def test_a_new_state_that_is_not_finite_is_said_and_counted_in_each_generation() -> None:
    ended, sink = run_ring(config(NotANumber))
    assert [record["no_step"] for record in sink.records if "no_step" in record] == [1, 1, 1]
    said = [text for text in sink.notes if "no step" in text]
    assert len(said) == 3
    assert said[0] == (
        f"generation 0: no step, because the new state of the strategy {HERE}:NotANumber was not "
        "finite (no_step is 1)"
    )
    assert all("not_finite" not in record for record in sink.records)
    assert ended.state.generation == 3


def test_a_strategy_of_ours_that_raises_keeps_its_traceback() -> None:
    strategy = make_strategy(quick_config(env=QUAD, strategy="snes", population=8), 12)
    state = begun(strategy, 1)
    batch = tried(strategy, state, 1)
    del state["sigma"]
    with pytest.raises(KeyError, match="sigma"):
        strategy.learn(state, batch)


def test_an_own_strategy_declares_that_it_may_run_asynchronously() -> None:
    own = {"env": QUAD, "schedule": "async", "population": 8}
    plain = config_from_values({**own, "strategy": f"{HERE}:Plain"}, "the test")
    assert make_strategy(plain, 5).asynchronous
    other = config_from_values(
        {**own, "behaviour": "ram", "strategy": f"{HERE}:Synchronous"}, "the test"
    )
    with pytest.raises(UsageError, match="use the schedule sync, or set asynchronous = True"):
        make_strategy(other, 5)


def test_an_own_strategy_runs_asynchronously() -> None:
    ended, _ = run_ring(config(Plain, schedule="async"), 2)
    assert ended.state.generation == 3
