"""What ``train`` gives its caller."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from es_queue.config.recipes import resolve
from es_queue.config.run_config import RunConfig
from es_queue.errors import UsageError
from master.run.training import TrainResult, make_config


def test_a_result_is_a_mapping_with_attributes_and_shows_what_it_came_to() -> None:
    result = TrainResult(
        run="walker", state="finished", generation=7, eval_mean=301.25, eval_std=2.0
    )
    assert result["eval_mean"] == result.eval_mean == 301.25 and "digest" not in result
    assert repr(result) == (
        "<TrainResult of run walker: finished at generation 7, evaluation 301.2 ± 2.0>"
    )
    with pytest.raises(AttributeError, match="no 'digest'"):
        _ = result.digest


def made(*given: Any) -> RunConfig:
    return make_config(*given)[0]


def test_an_environment_beside_that_of_the_config_is_refused() -> None:
    with pytest.raises(UsageError, match="env= and a config for CartPole-v1"):
        made(RunConfig(env="CartPole-v1"), "Pendulum-v1")
    assert made(RunConfig(population=8), "Pendulum-v1").population == 8


def test_a_config_gets_what_it_was_not_given_from_the_recipe_as_on_the_command_line() -> None:
    recipe = resolve({"env": "Pendulum-v1"})
    assert made(None, "Pendulum-v1") == made(RunConfig(env="Pendulum-v1"), None) == recipe
    given = RunConfig(env="Pendulum-v1", population=64)
    assert made(given, None) == made(replace(given, env="Pendulum-v1"), None) != recipe
    assert made(given, None).population == 64, "it was given, though it is the default"
    plain = RunConfig.of({"env": "Pendulum-v1"}, "the test")
    assert made(RunConfig(env="Pendulum-v1"), None, "none") == plain
    assert made(RunConfig(**recipe.to_dict()), None) == recipe
    assert made(None, "X-v0", "ars-v1").strategy == "ars"
