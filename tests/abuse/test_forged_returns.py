"""Forged rewards: returns that no episode can have are refused, and counted by their reason."""

from __future__ import annotations

import dataclasses

import pytest

from es_queue.environments.factory import describe
from es_queue.environments.interface import EnvironmentRequest
from es_queue.protocol.messages import EVAL, TRAIN, SlotResult
from master.collect.answer_check import ResultBounds, ResultShape
from master.collect.ledger import AnswerChecker, Ledger
from tests.unit.master.collect.test_ledger import (
    CONFIG,
    OBSERVED,
    PLAIN,
    PUBLICATION,
    answer,
    result,
)

HUGE = [1e308, -1e308, 1.1e100]


@pytest.mark.parametrize("value", HUGE)
@pytest.mark.parametrize("name", ["returns", "fitness"])
@pytest.mark.parametrize("kind", [TRAIN, EVAL])
def test_a_return_whose_square_is_infinite_is_refused(kind: str, name: str, value: float) -> None:
    expectations = AnswerChecker(CONFIG, 4, ResultShape(100, 2, OBSERVED), {TRAIN: 12, EVAL: 5})
    ledger = Ledger(PUBLICATION, expectations, {TRAIN: 12, EVAL: 5})
    honest = result(PLAIN[0] if kind == TRAIN else 0, kind)
    forged = dataclasses.replace(honest, **{name: (value,) * len(honest.returns)})
    assert not ledger.accept(answer(forged, kind=kind))
    assert ledger.refused == {"wrong-return": 1}
    assert ledger.accept(answer(honest, kind=kind))


def test_returns_that_the_declared_rewards_exclude_are_refused() -> None:
    spec = describe(EnvironmentRequest("MountainCar-v0"))  # each step costs 1
    spec = dataclasses.replace(spec, lowest_reward=-1.0)
    expectations = AnswerChecker(
        CONFIG, 4, ResultShape(100, 2, OBSERVED), {TRAIN: 12}, ResultBounds(spec=spec)
    )

    def of(value: float) -> SlotResult:
        return result(PLAIN[0], value=value)  # of 10 steps

    assert expectations.refusal(TRAIN, of(-10.0)) == ""
    assert expectations.refusal(TRAIN, of(-10.0 + 1e-9)) == ""
    for value in (-9.9, 0.0, 1e9, -10.1):
        assert expectations.refusal(TRAIN, of(value)) == "wrong-return"
