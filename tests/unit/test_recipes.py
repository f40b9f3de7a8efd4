"""The recipes that are shipped: each is a configuration that stands, and no two speak for one environment."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

import es_queue.recipes
from es_queue.recipes import Expectation, expected_points, recipe_for
from es_queue.settings import from_values

FILES = sorted(Path(es_queue.recipes.__file__).parent.glob("*.toml"))
RECIPES: dict[str, dict[str, Any]] = {path.name: tomllib.loads(path.read_text("utf-8")) for path in FILES}
ENVIRONMENTS = [env for recipe in RECIPES.values() for env in recipe["environments"]]


@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_a_recipe_is_a_configuration_that_stands(env: str) -> None:
    config = from_values({"env": env, **recipe_for(env)}, env)
    assert {name: getattr(config, name) for name in recipe_for(env)} == recipe_for(env)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_file_holds_nothing_but_its_three_parts(name: str) -> None:
    assert RECIPES[name].keys() <= {"environments", "options", "expect"}
    assert RECIPES[name]["options"].keys().isdisjoint({"env", "seed"})


def test_no_environment_has_two_recipes() -> None:
    assert len(set(ENVIRONMENTS)) == len(ENVIRONMENTS) > 0


@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_expected_points_come_by_rising_steps(env: str) -> None:
    points = expected_points(env)
    assert points and all(isinstance(point, Expectation) and point.note for point in points)
    assert [point.steps for point in points] == sorted({point.steps for point in points})


def test_the_walker_and_the_lander_have_their_settings() -> None:
    assert recipe_for("BipedalWalker-v2") == recipe_for("BipedalWalker-v3")
    assert recipe_for("BipedalWalker-v3")["stall"] == "2:0.0006:50"
    assert recipe_for("LunarLanderContinuous-v3")["sigma"] == 0.2


@pytest.mark.parametrize("env", ["", "CartPole-v1", "BipedalWalkerHardcore-v3", "bipedalwalker-v3"])
def test_an_environment_without_a_recipe_gets_nothing(env: str) -> None:
    assert recipe_for(env) == {}
    assert expected_points(env) == ()


def test_changing_what_was_handed_out_does_not_change_the_recipe() -> None:
    recipe_for("BipedalWalker-v3")["population"] = 2
    assert recipe_for("BipedalWalker-v3")["population"] == 128
