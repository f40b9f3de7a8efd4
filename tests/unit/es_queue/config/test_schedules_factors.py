"""Schedules: written forms, the factor of each generation, and what strategies make of it."""

from __future__ import annotations

import numpy as np
import pytest

from es_queue.config.run_config import RunConfig
from es_queue.config.schedules import parse_rate_schedule
from es_queue.errors import UsageError
from es_queue.strategies import make_strategy
from es_queue.strategies.base import Batch
from tests.cases import each_case
from tests.parts import TABLE, config_of


@each_case(
    ("text", "factors"),
    [
        ("constant", {0: 1.0, 10**6: 1.0}),
        ("exponential:0.5", {0: 1.0, 1: 0.5, 3: 0.125}),
        ("exponential:0.5,0.2", {0: 1.0, 2: 0.25, 3: 0.2, 99: 0.2}),
        ("linear:0,4", {0: 1.0, 1: 0.75, 4: 0.0, 5: 0.0}),
        ("linear:3,2", {0: 1.0, 1: 2.0, 2: 3.0}),
        ("piecewise:10=0.5,20=0.1", {0: 1.0, 9: 1.0, 10: 0.5, 19: 0.5, 20: 0.1, 999: 0.1}),
        ("piecewise:0=2", {0: 2.0}),
    ],
)
def test_a_schedule_is_a_factor_for_each_generation(text: str, factors: dict[int, float]) -> None:
    schedule = parse_rate_schedule(text)
    assert {generation: schedule.factor(generation) for generation in factors} == factors


@each_case(
    "text",
    [
        "cosine:1",
        "exponential:0",
        "exponential:0.5,0.1,3",
        "linear:0.1,0",
        "linear:-1,5",
        "piecewise:5",
        "piecewise:5=0.1,5=0.2",
        "piecewise:9=1,5=1",
        "constant:1",
    ],
)
def test_what_is_no_schedule_is_refused_with_its_name_and_the_forms(text: str) -> None:
    with pytest.raises(UsageError, match=r"decay_schedule is .* use constant, exponential"):
        RunConfig(decay_schedule=text)


@each_case(
    ("values", "sentence"),
    [
        (
            {"sigma_schedule": "linear:0,5"},
            "sigma_schedule is linear:0,5, but a run learns nothing without perturbations",
        ),
        (
            {"decay_schedule": "linear:0,5"},
            "decay_schedule is linear:0,5, but l2 and weight_decay are 0",
        ),
        ({"learning_rate_schedule": "fast"}, "learning_rate_schedule is 'fast' in the test: use"),
        ({"rollback": True}, "rollback is True, but it needs evaluations of at least 50 episodes"),
        (
            {"rollback": True, "eval_episodes": 50, "eval_every": 0, "target_reward": "none"},
            "rollback is True, but it needs evaluations",
        ),
    ],
)
def test_settings_that_come_to_nothing_are_refused(
    values: dict[str, object], sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence):
        RunConfig.of({"env": "X-v0", **values}, "the test")


BATCH = Batch(
    TABLE,
    np.arange(4, dtype=np.int64) * 50,
    np.array([[1.0, 0.0], [3.0, 1.0], [0.5, 2.0], [4.0, 4.5]]),
)


@each_case(
    ("strategy", "more"),
    [
        ("ars", {}),
        ("openai_es", {"optimizer": "adam"}),
        ("openai_es", {"optimizer": "sgd"}),
        ("pgpe", {}),
    ],
)
def test_the_learning_rate_at_half_pace_makes_half_the_step(
    strategy: str, more: dict[str, object]
) -> None:
    config = config_of(
        strategy=strategy, population=8, learning_rate_schedule="piecewise:3=0.5", **more
    )
    steps = []
    for generation in (2, 3):
        paced = make_strategy(config, 10, generation)
        after, _ = paced.learn(paced.start(np.zeros(10, np.float32)), BATCH)
        steps.append(after["parameters"])
    assert np.abs(steps[0]).max() > 0
    np.testing.assert_allclose(steps[1], steps[0] / 2, rtol=1e-5)


def test_decays_follow_their_schedule() -> None:
    config = config_of(
        strategy="openai_es",
        optimizer="sgd",
        learning_rate=1.0,
        momentum=0.0,
        population=8,
        weight_decay=0.5,
        decay_schedule="piecewise:1=0",
    )
    ones, level = np.ones(10, np.float32), Batch(TABLE, BATCH.noise_indices, np.ones((4, 2)))
    kept = [make_strategy(config, 10, generation) for generation in (0, 1)]
    assert [float(one.learn(one.start(ones), level)[0]["parameters"][0]) for one in kept] == [
        0.5,
        1.0,
    ]


def test_the_sigma_that_pgpe_has_learnt_is_scaled_by_the_schedule_and_by_a_new_setting() -> None:
    config = config_of(strategy="pgpe", sigma=0.2, sigma_schedule="exponential:0.5")
    before, after = make_strategy(config, 4, 6), make_strategy(config, 4, 7)
    learnt = {**before.start(np.zeros(4, np.float32)), "sigma": np.float32([0.1, 0.2, 0.3, 0.4])}
    np.testing.assert_array_equal(
        after.migrate_state(learnt, before)["sigma"], np.float32([0.05, 0.1, 0.15, 0.2])
    )
    plain = config_of(strategy="pgpe", sigma=0.2)
    other = make_strategy(config_of(strategy="pgpe", sigma=0.6), 4, 7)
    renamed = other.migrate_state(learnt, make_strategy(plain, 4, 6))["sigma"]
    np.testing.assert_allclose(np.sqrt(np.mean(np.square(renamed))), 0.6, rtol=1e-6)
    np.testing.assert_allclose(renamed / learnt["sigma"], np.full(4, renamed[0] / 0.1), rtol=1e-6)
    assert make_strategy(plain, 4, 7).migrate_state(learnt, make_strategy(plain, 4, 6)) is learnt
