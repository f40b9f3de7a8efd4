"""Recipes: tuned settings per environment, with expected evaluation points, and published settings;
and the complete configuration of a new run: explicit settings, then recipes, then the defaults.

A recipe is a TOML file. It is the default for its environments, and ``--recipe`` selects it by
name. Its table ``options`` holds with every strategy; the other table is named after the strategy
that it was tuned for, and holds only with that one.
"""

from __future__ import annotations

import textwrap
import tomllib
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from es_queue.config.run_config import STRATEGIES, RunConfig, every_setting, users_of
from es_queue.config.settings import NONE
from es_queue.errors import UsageError

#: A recipe's search settings are tuned together: all are left out if one of these is changed.
TUNED_SETTINGS = ("strategy", "policy", "optimizer")
#: Settings of other groups in that set, because they depend on how fast the method learns.
PACE_SETTINGS = ("restart_deadlines", "step_limit")
#: Columns of a line about recipes.
LINE_WIDTH = 96


@dataclass(frozen=True)
class Expectation:
    """An evaluation after ``steps`` counted training steps. reward: the lowest return of those in
    ``note``, which is their spread over seeds
    """

    steps: int
    reward: float
    note: str


def resolve(
    values: dict[str, Any], inherited: Collection[str] = (), with_recipe: bool = True
) -> RunConfig:
    """The complete configuration of a new run: ``values``, else the environment's recipe, else the
    defaults.

    inherited: names in ``values`` that a named recipe has set; these may be useless
    with_recipe: whether the environment's recipe counts

    Raises UsageError for invalid or incompatible values, without ``env``, and for an explicit value
    without effect.
    """
    recipe = recipe_values(values, inherited) if with_recipe else {}
    explicit, given = values.keys() - inherited, {**recipe, **values}
    sentence = _refusal(given, explicit)
    if not sentence:
        return RunConfig.of(given, "the settings")
    without = {name: {one: given[one] for one in given if one != name} for name in recipe}
    if involved := [name for name in recipe if not _refusal(without[name], explicit)]:
        sentence += f" (the recipe for {values['env']} sets {', '.join(involved)})"
    raise UsageError(sentence)


def _refusal(values: dict[str, Any], explicit: Collection[str]) -> str:
    """Why these values are no configuration; empty if they are one."""
    try:
        useless = RunConfig.of(values, "the settings").useless()
    except UsageError as error:
        return str(error)
    return next((text for name, text in useless.items() if name in explicit), "")


def recipe_values(values: dict[str, Any], inherited: Collection[str] = ()) -> dict[str, Any]:
    """Settings that the recipe for ``values["env"]`` adds. Those that were tuned for its strategy
    hold only with it: the settings of its search not with another policy or optimizer, and its
    layers not with another policy.

    inherited: see :func:`resolve`; a named recipe has its own search
    """
    file, known = _recipe(str(values.get("env", ""))), every_setting()
    recipe = _settings(file)
    if values.get("strategy", recipe.get("strategy")) != recipe.get("strategy"):
        recipe = file.get("options", {})
    if values.get("policy", recipe.get("policy")) != recipe.get("policy"):
        recipe = without_layers(recipe)
    changed = {
        name
        for name, value in values.items()
        if name in known and value != recipe.get(name, known[name].default)
    }
    is_tuned = not inherited and not changed.intersection(TUNED_SETTINGS)

    def is_added(name: str) -> bool:
        is_search = known[name].group == "search" or users_of(name, "strategy")
        if name in values or (not is_tuned and (is_search or name in PACE_SETTINGS)):
            return False
        if name == "restart_deadlines" and values.get("eval_every") == 0:
            return False
        return not changed.intersection(known[name].follows)

    return {name: value for name, value in recipe.items() if is_added(name)}


def without_layers(recipe: dict[str, Any]) -> dict[str, Any]:
    """The settings of a recipe that hold with another policy than its own."""
    return {
        name: value
        for name, value in recipe.items()
        if name != "observe" and not users_of(name, "policy")
    }


def format_recipe(
    values: dict[str, Any], inherited: Collection[str] = (), name: str = ""
) -> tuple[str, ...]:
    """A note about the settings of each recipe, in lines; none if no setting comes from a recipe.

    inherited: names in ``values`` that the recipe ``name`` has set
    """
    if name == NONE:
        return ()
    sources = {
        f"the recipe {name}": {one: values[one] for one in inherited},
        f"the recipe for {values.get('env')}": {
            one: value
            for one, value in recipe_values(values, inherited).items()
            if value != every_setting()[one].default
        },
    }
    notes: list[str] = []
    for source, given in sources.items():
        if given:
            # A name and its value stay in one line.
            text = ", ".join(f"{one}\0{_shown(value)}" for one, value in given.items())
            lines = textwrap.fill(text, LINE_WIDTH, initial_indent="  ", subsequent_indent="  ")
            head = f"settings from {source} (--recipe none: plain defaults):"
            notes.append(f"{head}\n{lines}".replace("\0", " "))
    return tuple(notes)


def _shown(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


# --- the files


def recipe_for(env_id: str) -> dict[str, Any]:
    """Setting values tuned for this environment id, by field name of RunConfig, with the strategy
    that they were tuned for; empty without a recipe.
    """
    return _settings(_recipe(env_id))


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
    found = dict(recipe.get("options", {}))
    for strategy in recipe.keys() & STRATEGIES.keys():
        found |= {"strategy": strategy, **recipe[strategy]}
    return found


def _recipe(env_id: str) -> dict[str, Any]:
    """An id without a version is the newest version, as in Gymnasium."""
    recipes = {env: recipe for recipe in _load_files() for env in recipe.get("environments", ())}
    versions = sorted(one for one in recipes if one.rpartition("-v")[0] == env_id)
    return recipes.get(versions[-1] if versions else env_id, {})


def _recipes_by_name() -> dict[str, dict[str, Any]]:
    return {recipe["name"]: recipe for recipe in _load_files() if "name" in recipe}


@cache
def _load_files() -> list[dict[str, Any]]:
    paths = sorted(resources.files(__name__).iterdir(), key=lambda entry: entry.name)
    return [tomllib.loads(path.read_text("utf-8")) for path in paths if path.name.endswith(".toml")]
