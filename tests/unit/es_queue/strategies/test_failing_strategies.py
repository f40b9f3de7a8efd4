"""A strategy of the user's own that fails is named at once, in one sentence."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from es_queue.errors import StrategyFailure
from es_queue.strategies.snes import SNES
from tests.cases import each_case
from tests.ring import quick_config, run_ring
from tests.tiny import QUAD

HERE = "tests.unit.es_queue.strategies.test_failing_strategies"


class WrongShape(SNES):
    """One parameter too many."""

    def ask(self, published: Any, sigma: float, noise: Any) -> Any:
        return np.zeros((len(noise), 1, self.size + 1), np.float32)


class NoIndividuals(SNES):
    """It raises on the workers."""

    def ask(self, published: Any, sigma: float, noise: Any) -> Any:
        raise KeyError("no such\nsetting")


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


class NotANumber(SNES):
    """Its parameters are no numbers."""

    def tell(self, state: Any, batch: Any) -> Any:
        after, info = super().tell(state, batch)
        return {**after, "parameters": after["parameters"] * np.nan}, info


class Plain(SNES):
    """As it should be."""


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
        (
            NoIndividuals,
            r"failed in ask: KeyError: 'no such\\nsetting' \(test_failing_strategies.py, ",
        ),
        (RaisesLater, r"failed in ask: KeyError: 'lost' \(test_failing_strategies.py"),
        (NoImprovement, r"failed in tell: KeyError: 'sigma' \(test_failing_strategies.py, line"),
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


def test_an_own_strategy_runs_asynchronously() -> None:
    ended, _ = run_ring(config(Plain, schedule="async"), 2)
    assert ended.state.generation == 3
