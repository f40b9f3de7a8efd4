"""The shared suite finds what a strategy does wrong, and names it."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest

from es_queue.errors import StrategyFailure
from es_queue.strategies.ars import ARS
from es_queue.testing import check_strategy
from tests.cases import each_case


class Shares(ARS):
    """Its state is the caller's array."""

    def start(self, parameters: Any) -> Any:
        return {"parameters": parameters}


class WrongLength(ARS):
    """It publishes more than it accepts."""

    def published(self, state: Any) -> Any:
        return np.append(state["parameters"], np.float32(0))


class WrongShape(ARS):
    """Its individuals lack a dimension."""

    def ask(self, published: Any, sigma: float, noise: Any) -> Any:
        return super().ask(published, sigma, noise)[:, 0]


class ByBlock(ARS):
    """An individual depends on its neighbours."""

    def ask(self, published: Any, sigma: float, noise: Any) -> Any:
        return super().ask(published, sigma, noise) + np.float32(len(noise))


class Changes(ARS):
    """It learns in place."""

    def tell(self, state: Any, batch: Any) -> Any:
        after, info = super().tell(state, batch)
        state["parameters"] = after["parameters"]
        return after, info


class Counts(ARS):
    """It remembers what it has done."""

    calls: ClassVar[list[int]] = []

    def tell(self, state: Any, batch: Any) -> Any:
        self.calls.append(1)
        after, info = super().tell(state, batch)
        return {"parameters": after["parameters"] + np.float32(len(self.calls))}, info


class Widens(ARS):
    """An array of its state changes its type."""

    def start(self, parameters: Any) -> Any:
        return {**super().start(parameters), "calls": np.array(0)}

    def tell(self, state: Any, batch: Any) -> Any:
        after, info = super().tell(state, batch)
        return {**after, "calls": np.array(state["calls"] + 0.5)}, info


class FewFigures(ARS):
    """It says nothing of its step."""

    def tell(self, state: Any, batch: Any) -> Any:
        after, _ = super().tell(state, batch)
        return after, {"no_step": 0.0}


class FailureIsBest(ARS):
    """A failed individual counts as it is."""

    def tell(self, state: Any, batch: Any) -> Any:
        sign = 1.0 if np.isposinf(batch.fitness).any() else -1.0
        after, info = super().tell(state, batch)
        return {"parameters": after["parameters"] * np.float32(sign)}, info


@each_case(
    ("kind", "sentence"),
    [
        (Shares, "start must copy the first parameters"),
        (WrongLength, "fits must accept the length of what is published"),
        (ByBlock, "a slot must have the same bits in any block"),
        (Changes, "tell must not change the state"),
        (Widens, "tell must keep the state's types"),
        (Counts, "tell must depend on its arguments only"),
        (FewFigures, "figures must hold gradient_norm, no_step, norm, sigma, update_ratio"),
        (FailureIsBest, "all failures must count the same"),
    ],
)
def test_a_broken_strategy_is_found_and_its_mistake_named(kind: type[ARS], sentence: str) -> None:
    with pytest.raises(AssertionError, match=sentence):
        check_strategy(kind)


def test_individuals_of_a_wrong_shape_are_a_failure_of_the_strategy() -> None:
    with pytest.raises(StrategyFailure, match=r"made individuals of shape \(12,\)"):
        check_strategy(WrongShape)


def test_settings_reach_the_strategy_that_is_checked() -> None:
    check_strategy(ARS, top=5, sigma=0.1)
