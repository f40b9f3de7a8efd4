"""How far one slot's observation moments may lie from what an environment yields."""

from __future__ import annotations

import struct
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from es_queue.environments.factory import describe
from es_queue.environments.interface import EnvironmentRequest
from es_queue.environments.observation_probe import STEPS, with_observed
from es_queue.errors import EnvironmentFailure
from es_queue.numerics.normalization import Moments, RunningMoments
from es_queue.protocol.messages import TRAIN, EpisodeMoments
from master.collect.answer_check import (
    IMPLAUSIBLE,
    LARGEST,
    MOST_GROWTH,
    REACH,
    ObservationLimits,
    ResultBounds,
    ResultShape,
    without_moments,
)
from master.collect.audit import Audit
from master.collect.ledger import AnswerChecker, Ledger, LedgerContext
from master.collect.verifier import VerifierReply
from master.fleet.worker_registry import WorkerRegistry
from tests.cases import each_case
from tests.tiny import QUAD, spec_of
from tests.unit.master.collect.test_ledger import (
    CONFIG,
    OBSERVED,
    PUBLICATION,
    SAMPLED,
    answer,
    result,
    worker,
)

INF = float("inf")
NOTHING = RunningMoments.empty(2)


def moments(mean: float, m2: float) -> tuple[EpisodeMoments, ...]:
    """Of one observation in each episode of a sampled slot."""
    one = EpisodeMoments(1, *(struct.pack("<d", value) * OBSERVED for value in (mean, m2)))
    return (one,) * len(result(SAMPLED[0]).moments)


def judged(
    limits: ObservationLimits, mean: list[float], deviation: list[float], count: int = 5
) -> bool:
    rows = np.array([mean]), count * np.array([deviation]) ** 2
    return limits.allow(np.array([[float(count)]]), *rows)


def test_an_unbounded_number_is_compared_with_what_the_master_saw() -> None:
    limits = ObservationLimits.of(replace(spec_of(), observation_scale=2.0), NOTHING)
    assert judged(limits, [2 * REACH, -2 * REACH], [2 * REACH, 0])
    for mean, deviation in (([2.1 * REACH, 0], [0, 0]), ([0, 0], [0, 2.1 * REACH])):
        assert not judged(limits, mean, deviation)


def test_a_bounded_number_is_compared_with_its_bounds() -> None:
    spec = replace(
        spec_of(), observation_scale=2.0, observation_low=(-1.0, -INF), observation_high=(1.0, INF)
    )
    limits = ObservationLimits.of(spec, NOTHING)
    assert judged(limits, [1.9, 19.0], [2.0, 19.0])
    assert not judged(limits, [2.1, 0.0], [0.0, 0.0])
    assert not judged(limits, [0.0, 0.0], [2.1, 0.0])


def test_wide_bounds_allow_what_the_master_did_not_see() -> None:
    spec = replace(
        spec_of(), observation_scale=2.0, observation_low=(0.0, 0.0), observation_high=(1e6, 1e6)
    )
    assert judged(ObservationLimits.of(spec, NOTHING), [9e5, 1.0], [1e5, 0.0])


def test_what_a_run_has_accumulated_raises_the_scale_but_not_for_ever() -> None:
    spec = replace(spec_of(), observation_scale=2.0)
    seen = NOTHING.merge(Moments(10, np.array([20.0, 0.0]), np.zeros(2)))
    assert judged(ObservationLimits.of(spec, seen), [0.0, 20 * REACH], [0.0, 0.0])
    absurd = NOTHING.merge(Moments(10, np.array([1e30, 0.0]), np.array([1e300, INF])))
    limits = ObservationLimits.of(spec, absurd)
    assert limits.high[0] <= 2 * MOST_GROWTH * REACH


@each_case("scale", [0.0, 1e300])
def test_limits_stay_within_float32(scale: float) -> None:
    limits = ObservationLimits.of(replace(spec_of(), observation_scale=scale), NOTHING)
    assert REACH <= limits.least_reach <= LARGEST
    assert np.isfinite(limits.least_variance)


def test_where_nobody_looked_all_of_float32_is_allowed() -> None:
    assert ObservationLimits.of(spec_of(), NOTHING).least_reach == LARGEST


def test_the_master_sees_the_scale_of_an_environment_and_which_bounds_hold() -> None:
    for name in ("CartPole-v1", QUAD):
        request = EnvironmentRequest(name)
        spec = with_observed(describe(request), request)
        assert spec.observation_scale is not None and 0.1 < spec.observation_scale < 10
    request = EnvironmentRequest("CartPole-v1")
    bounded = np.isfinite(with_observed(describe(request), request).observation_low)
    assert bounded.tolist() == [True, False, True, False]


def test_bounds_that_an_environment_ignores_do_not_count() -> None:
    request = EnvironmentRequest(QUAD)
    low, high = (2.0, -10.0, -10.0), (10.0,) * 3
    spec = replace(describe(request), observation_low=low, observation_high=high)
    assert with_observed(spec, request).observation_low == (-INF, -10.0, -10.0)
    assert STEPS <= 1000, "a look takes no time"


def test_implausible_moments_are_left_out_and_the_slot_counts() -> None:
    limits = ObservationLimits.of(
        replace(spec_of(OBSERVED), observation_scale=1.0), RunningMoments.empty(OBSERVED)
    )
    most = {TRAIN: 12}
    expectations = AnswerChecker(
        CONFIG, 4, ResultShape(100, 2, OBSERVED), most, ResultBounds(observed=limits)
    )
    odd = result(SAMPLED[0], moments=moments(11.0, 0.0))
    assert expectations.refusal(TRAIN, odd) == IMPLAUSIBLE
    ledger = Ledger(PUBLICATION, expectations, {TRAIN: 12})
    assert ledger.accept(answer(odd))
    assert ledger.refused == {IMPLAUSIBLE: 1} and ledger.tally.implausible
    kept = ledger.results[TRAIN][SAMPLED[0]]
    assert kept == without_moments(odd) and not any(one.count for one in kept.moments)
    assert kept.fitness == odd.fitness


def test_a_proof_is_compared_without_implausible_moments_as_every_result_is() -> None:
    limits = ObservationLimits.of(
        replace(spec_of(OBSERVED), observation_scale=1.0), RunningMoments.empty(OBSERVED)
    )
    expectations = AnswerChecker(
        CONFIG, 4, ResultShape(100, 2, OBSERVED), {TRAIN: 12}, ResultBounds(observed=limits)
    )
    odd = result(SAMPLED[0], moments=moments(11.0, 0.0))
    played: Future[VerifierReply] = Future()
    played.set_result(VerifierReply("1" * 32, {(TRAIN, odd.slot): odd}))
    fleet = WorkerRegistry(dict)
    fleet.update({worker(): {"host": "a", "rq_name": "w", "numerics": "1" * 32}})
    audit = Audit(fleet, 1.0, lambda: 0.0, lambda _: played)
    ledger = Ledger(PUBLICATION, expectations, {TRAIN: 12}, LedgerContext(fleet, audit))
    assert ledger.accept(answer(odd))
    ledger.decide()
    assert fleet.quarantined == set() and ledger.refused == {IMPLAUSIBLE: 1}
    assert audit.checked == 1
    assert ledger.results[TRAIN][odd.slot] == without_moments(odd)


CRASHING = """
import os, signal, gymnasium
from gymnasium.envs.classic_control import CartPoleEnv
class Crashing(CartPoleEnv):
    def reset(self, **options):
        self.steps = 0
        return super().reset(**options)

    def step(self, action):
        self.steps += 1
        if self.steps > 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)
gymnasium.register("Crashing-v0", "crashing_module:Crashing")
"""


def test_an_environment_that_ends_its_process_is_named_and_the_master_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "crashing_module.py").write_text(CRASHING)
    monkeypatch.syspath_prepend(tmp_path)
    request = EnvironmentRequest("crashing_module:Crashing-v0")
    with pytest.raises(EnvironmentFailure, match="ended its process by signal 9"):
        with_observed(describe(request), request)


def test_a_negative_sum_of_squares_is_refused() -> None:
    expectations = AnswerChecker(CONFIG, 4, ResultShape(100, 2, OBSERVED), {TRAIN: 12})
    odd = result(SAMPLED[0], moments=moments(0.0, -1e-9))
    assert expectations.refusal(TRAIN, odd) == "wrong-moments"


def test_moments_of_nothing_are_no_reason() -> None:
    empty = EpisodeMoments(0, bytes(8 * OBSERVED), bytes(8 * OBSERVED))
    expectations = AnswerChecker(CONFIG, 4, ResultShape(100, 2, OBSERVED), {TRAIN: 12})
    none = result(SAMPLED[0], moments=(empty,) * len(moments(0.0, 0.0)))
    assert expectations.refusal(TRAIN, none) == ""
