"""Explicit settings that another setting leaves without effect are refused, and only those."""

from __future__ import annotations

from typing import Any

import pytest

from es_queue.config.recipes import resolve
from es_queue.config.run_config import RunConfig
from es_queue.errors import UsageError
from tests.cases import each_case

WITHOUT_EFFECT: list[tuple[dict[str, Any], str]] = [
    (
        {"obs_norm": False, "obs_clip": 3.0},
        "obs_clip is 3, but without obs_norm observations are used unchanged: leave obs_clip "
        "out, or leave obs_norm on",
    ),
    ({"obs_norm": False, "obs_sample": 0.5}, "obs_sample is 0.5, but without obs_norm"),
    ({"obs_norm": False, "obs_clip": 5.0}, "obs_clip is 5, but without obs_norm"),
    (
        {"policy": "mlp", "batch_norm": "virtual", "obs_clip": 3.0},
        "obs_clip is 3, but with batch_norm virtual observations are used unchanged",
    ),
    (
        {"eval_every": 0, "eval_episodes": 7, "target_reward": "none"},
        "eval_episodes is 7, but eval_every is 0, so nothing is evaluated before the end: leave "
        "eval_episodes out, or set eval_every to 1 or more",
    ),
    (
        {"strategy": "pgpe", "sigma_learning_rate": 0.0, "sigma_max_change": 0.1},
        "sigma_max_change is 0.1, but sigma_learning_rate is 0, so sigma is fixed",
    ),
]


@each_case(("values", "sentence"), WITHOUT_EFFECT)
def test_an_explicit_setting_without_effect_is_refused_with_the_fix(
    values: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UsageError) as caught:
        resolve({"env": "X-v0", **values})
    assert str(caught.value).startswith(sentence) and "\n" not in str(caught.value)


@each_case(("values", "sentence"), WITHOUT_EFFECT[:-1])
def test_a_stored_setting_without_effect_is_read(values: dict[str, Any], sentence: str) -> None:
    config = RunConfig.of({"env": "X-v0", **values}, "the test")
    assert RunConfig.from_json(config.to_json()) == config


def test_a_given_setting_drops_only_a_recipes_setting_that_it_cannot_be_combined_with() -> None:
    walker = {"env": "BipedalWalker-v2"}
    config = resolve({**walker, "restart_deadlines": "1e6=100"})
    assert config.eval_every == resolve(walker).eval_every != RunConfig(env="X-v0").eval_every
    assert resolve({**walker, "rollback": True, "eval_episodes": 50}).restart_deadlines == "none"


@each_case(
    ("changed", "cap"),
    [
        ({}, "305"),
        ({"population": 64}, "305"),
        ({"strategy": "map_elites", "behaviour": "feet-contact"}, "none"),
        ({"policy": "mlp"}, "none"),
        ({"reward_shift": 1.0}, "none"),
    ],
)
def test_a_recipes_cap_stays_with_the_search_and_the_fitness_that_it_is_for(
    changed: dict[str, Any], cap: str
) -> None:
    assert resolve({"env": "BipedalWalker-v3", **changed}).fitness_cap == cap


@each_case(
    ("values", "sentence"),
    [
        (
            {"target_reward": "320"},
            "target_reward is 320, but a search gains nothing above its fitness_cap of 305: use a "
            "larger fitness_cap, or none (the recipe for BipedalWalker-v3 sets fitness_cap)",
        ),
    ],
)
def test_a_cap_that_a_run_cannot_use_is_refused(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError) as refusal:
        resolve({"env": "BipedalWalker-v3", **values})
    assert str(refusal.value) == sentence
