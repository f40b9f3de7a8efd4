"""The recipes that are shipped: each is a configuration that stands, and no two speak for one
environment.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

import es_queue.config.recipes
from es_queue.config.recipes import (
    expected_points,
    named_recipe,
    recipe_for,
    recipe_names,
    recipe_values,
)
from es_queue.config.run_config import RunConfig, every_setting, users_of
from es_queue.errors import UsageError
from tests.cases import each_case

FILES = sorted(Path(es_queue.config.recipes.__file__).parent.glob("*.toml"))
RECIPES: dict[str, dict[str, Any]] = {
    path.name: tomllib.loads(path.read_text("utf-8")) for path in FILES
}
ENVIRONMENTS = [env for recipe in RECIPES.values() for env in recipe.get("environments", ())]


@each_case(
    ("env", "newest"),
    [("CartPole", "CartPole-v1"), ("Hopper", "Hopper-v5"), ("Marvin", "Marvin-v0")],
)
def test_an_id_without_a_version_has_the_recipe_of_the_newest(env: str, newest: str) -> None:
    assert recipe_for(env) == recipe_for(newest) != {}
    assert expected_points(env) == expected_points(newest)


@each_case("env", ENVIRONMENTS)
def test_a_recipe_is_a_configuration_that_stands(env: str) -> None:
    config = RunConfig.of({"env": env, **recipe_for(env)}, env)
    shown = {
        name: list(value) if isinstance(value := getattr(config, name), tuple) else value
        for name in recipe_for(env)
    }
    assert shown == recipe_for(env)


@each_case("env", ["", "MountainCar-v0", "bipedalwalker-v3"])
def test_an_environment_without_a_recipe_gets_nothing(env: str) -> None:
    assert recipe_for(env) == {}
    assert expected_points(env) == ()


# --- by name


@each_case("name", recipe_names())
@each_case("env", ENVIRONMENTS)
def test_a_named_recipe_takes_nothing_of_the_search_from_the_environments_own(
    name: str, env: str
) -> None:
    named = named_recipe(name)
    search = {
        one.name
        for one in every_setting().values()
        if one.group == "search" or users_of(one.name, "strategy")
    }
    left = recipe_values({"env": env, **named}, named.keys()).keys()
    assert not left & (search | {"restart_deadlines", "step_limit"})


def test_an_unknown_name_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(
        UsageError,
        match=r"^there is no recipe 'ars-v3'; the recipes are ars-v1, ars-v1-t, ars-v2, ars-v2-t, ",
    ):
        named_recipe("ars-v3")
