"""``scale``: what it does to the settings of each strategy, and to a run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from es_queue.config.recipes import resolve
from es_queue.config.scaling import rate_factors, scale_factors, scaled
from es_queue.errors import UsageError
from es_queue.numerics.noise_table import NoiseTable
from master.loop.config_timeline import ConfigTimeline, schedule_clock
from master.loop.state import Change
from master.run.setup import prepare_run
from tests.cases import each_case
from tests.memory import NOISE, quick_config
from tests.parts import config_of
from tests.tiny import QUAD

TABLE_OF_RING = NoiseTable.in_memory(NOISE)
RUN: dict[str, Any] = {
    "env": QUAD,
    "strategy": "snes",
    "population": 8,
    "generations": 6,
    "eval_every": 0,
    "final_episodes": 0,
}


@each_case(
    ("values", "changed"),
    [
        ({"strategy": "ars", "top": 4}, {"top": 16}),
        ({"strategy": "ga"}, {"truncation": 32}),
        ({"strategy": "pgpe", "min_steps": 100, "population_max": 32}, {"population_max": 128}),
        ({"strategy": "pgpe", "min_steps": 100}, {"min_steps": 400}),
        ({"strategy": "snes", "population": 15}, {"population": 60}),
        ({"strategy": "random_search", "eval_every": 8}, {"eval_every": 8}),
        ({"strategy": "ars", "eval_every": 4, "target_every": 20}, {"target_every": 12}),
    ],
)
def test_counts_that_belong_to_a_population_grow_with_it(
    values: dict[str, Any], changed: dict[str, Any]
) -> None:
    made = scaled(config_of(**{"population": 16, "scale": 4.0, **values}))
    assert {name: getattr(made, name) for name in changed} == changed


def test_what_counts_generations_or_steps_follows_the_speed_of_the_search() -> None:
    narrowing = "piecewise:110=0.9"
    config = resolve({"env": "BipedalWalker-v3", "scale": 16, "sigma_schedule": narrowing})
    speed, made = scale_factors(config).speed, scaled(config)
    assert 1 < speed < 16
    assert made.eval_every < config.eval_every
    (first, *_), (before, *_) = (
        [float(part.split("=")[0]) for part in one.restart_deadlines.split(",")]
        for one in (made, config)
    )
    assert first == pytest.approx(before * (16 / speed), rel=1e-5)
    growth, least = (float(one.step_limit.split(",")[2]) for one in (made, config))
    assert growth > least
    clock = schedule_clock(config, (), round(110 / speed) + 1)
    assert rate_factors(config, clock).sigma < 1
    assert rate_factors(config, schedule_clock(config, (), round(100 / speed))).sigma == 1


def test_the_clock_of_schedules_counts_each_generation_at_its_own_scale() -> None:
    config = config_of(strategy="ars")
    changes = (Change(10, {"scale": 4.0}),)
    speed = scale_factors(replace(config, scale=4.0)).speed
    assert schedule_clock(config, changes, 10) == 10
    assert schedule_clock(config, changes, 14) == int(10 + 4 * speed)
    assert schedule_clock(config, changes, 14, begun=12) == int(2 * speed)
    assert schedule_clock(config, (), 14, begun=12) == 2


def test_a_scale_that_no_population_can_have_is_refused() -> None:
    with pytest.raises(UsageError, match="use a scale of at most 10"):
        resolve({"env": "CartPole-v1", "population": 100_000, "scale": 16})


# --- in a run


@each_case(
    ("values", "scale", "sentence"),
    [
        ({"population": 512}, 1024.0, "slots need as many different positions"),
        ({"eval_every": 1, "restart_deadlines": "8e5=60,8.000001e5=70"}, 4.0, "restart_deadlines"),
    ],
)
def test_a_scale_that_a_run_cannot_have_is_refused_when_it_is_asked_for(
    values: dict[str, Any], scale: float, sentence: str
) -> None:
    learner = prepare_run(quick_config(**{**RUN, **values}), table=TABLE_OF_RING).learner
    timeline = ConfigTimeline(learner)
    assert sentence in timeline.refusal((), {"scale": scale}, 3)
    assert timeline.refusal((), {"scale": 1.0}, 3) == ""
