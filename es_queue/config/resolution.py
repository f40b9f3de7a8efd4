"""The complete configuration of a new run: explicit settings, then the recipe, then the
defaults.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from es_queue.config.recipes import recipe_for, settings_for_all
from es_queue.config.run_config import RunConfig, every_setting, users_of
from es_queue.config.settings import NONE
from es_queue.errors import UsageError

#: A recipe's search settings are tuned together: all are left out if one of these is changed.
TUNED_SETTINGS = ("strategy", "policy", "optimizer")
#: Settings of other groups in that set, because they depend on how fast the method learns.
PACE_SETTINGS = ("restart_deadlines", "step_limit")


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
    env, known = str(values.get("env", "")), every_setting()
    recipe = recipe_for(env)
    if not recipe:
        return {}
    if values.get("strategy", recipe.get("strategy")) != recipe.get("strategy"):
        recipe = {name: value for name, value in recipe.items() if name in settings_for_all(env)}
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
    """The line about settings that come from recipes, if any do.

    inherited: names in ``values`` that the recipe ``name`` has set
    """
    if name == NONE:
        return ()
    known = every_setting()
    added = {
        one: value
        for one, value in recipe_values(values, inherited).items()
        if value != known[one].default
    }
    sources = {f"the recipe {name}": {one: values[one] for one in inherited}}
    sources[f"the recipe for {values.get('env')}"] = added
    texts = [
        f"from {source}: {', '.join(f'{one} {_shown(value)}' for one, value in given.items())}"
        for source, given in sources.items()
        if given
    ]
    return (f"settings {'; '.join(texts)} (--recipe none: plain defaults)",) if texts else ()


def _shown(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
