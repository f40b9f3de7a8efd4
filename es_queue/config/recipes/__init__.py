"""Recipes: tuned settings per environment, with expected evaluation points, and published settings.

A recipe is a TOML file. It is the default for its environments, and ``--recipe`` selects it by
name. Its table ``options`` holds with every strategy; the other table is named after the strategy
that it was tuned for, and holds only with that one.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from es_queue.config.run_config import STRATEGIES
from es_queue.errors import UsageError

__all__ = [
    "Expectation",
    "expected_points",
    "named_recipe",
    "recipe_for",
    "recipe_names",
    "settings_for_all",
]


@dataclass(frozen=True)
class Expectation:
    """An evaluation after ``steps`` counted training steps.

    reward: the lowest return of those in ``note``
    note:   the spread over seeds, and whether it was measured
    """

    steps: int
    reward: float
    note: str


def recipe_for(env_id: str) -> dict[str, Any]:
    """Setting values tuned for this environment id, by field name of RunConfig, with the strategy
    that they were tuned for; empty without a recipe.
    """
    return _settings(_recipe(env_id))


def settings_for_all(env_id: str) -> frozenset[str]:
    """The names of the recipe's settings that hold with every strategy."""
    return frozenset(_recipe(env_id).get("options", {}))


def expected_points(env_id: str) -> tuple[Expectation, ...]:
    """Evaluation points of the recipe, by number of steps; empty if there are none."""
    return tuple(Expectation(**point) for point in _recipe(env_id).get("expect", ()))


def recipe_names() -> list[str]:
    return sorted(_recipes_by_name())


def named_recipe(name: str) -> dict[str, Any]:
    """Setting values of the recipe with that name. Raises UsageError if there is none."""
    if name not in _recipes_by_name():
        raise UsageError(
            f"there is no recipe {name!r}; the recipes are {', '.join(recipe_names())}, or none"
        )
    return _settings(_recipes_by_name()[name])


def _settings(recipe: dict[str, Any]) -> dict[str, Any]:
    strategies = recipe.keys() & STRATEGIES.keys()
    tuned = {
        setting: value
        for strategy in strategies
        for setting, value in {"strategy": strategy, **recipe[strategy]}.items()
    }
    return {**recipe.get("options", {}), **tuned}


def _recipe(env_id: str) -> dict[str, Any]:
    """An id without a version is the newest version, as in Gymnasium."""
    versions = sorted(one for one in _recipes() if one.rpartition("-v")[0] == env_id)
    return _recipes().get(versions[-1] if versions else env_id, {})


@cache
def _recipes() -> dict[str, dict[str, Any]]:
    recipes: dict[str, dict[str, Any]] = {}
    for recipe in _load_files():
        recipes.update(dict.fromkeys(recipe.get("environments", ()), recipe))
    return recipes


@cache
def _recipes_by_name() -> dict[str, dict[str, Any]]:
    return {recipe["name"]: recipe for recipe in _load_files() if "name" in recipe}


@cache
def _load_files() -> list[dict[str, Any]]:
    paths = sorted(resources.files(__name__).iterdir(), key=lambda entry: entry.name)
    return [tomllib.loads(path.read_text("utf-8")) for path in paths if path.name.endswith(".toml")]
