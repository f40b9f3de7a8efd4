"""The complete configuration of a new run: explicit settings, then the recipe, then the
defaults.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from es_queue.config.algorithms.settings import PolicySettings
from es_queue.config.declarations import Conflict, GivesWay
from es_queue.config.parsing import config_from_values
from es_queue.config.recipes import recipe_for, settings_for_all
from es_queue.config.run_config import NONE, RunConfig, default_of, option_fields
from es_queue.config.validation import ineffective_settings, is_met
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
    explicit = values.keys() - inherited
    try:
        return _checked({**recipe, **values}, explicit)
    except UsageError as error:
        sentence = str(error)
    if involved := _involved(recipe, values, explicit, sentence):
        sentence += f" (the recipe for {values['env']} sets {', '.join(involved)})"
    raise UsageError(sentence)


def _involved(
    recipe: dict[str, Any], values: dict[str, Any], explicit: Collection[str], sentence: str
) -> list[str]:
    """The recipe's settings that take part in the refusal ``sentence``: with one of them it
    remains, or without one of them there is none. Empty if the user's values are refused anyway.
    """
    if _error(values, explicit) == sentence:
        return []
    return [
        name
        for name, value in recipe.items()
        if _error({name: value, **values}, explicit) == sentence
        or not _error({key: recipe[key] for key in recipe if key != name} | values, explicit)
    ]


def _checked(values: dict[str, Any], explicit: Collection[str]) -> RunConfig:
    """The configuration of these values. Raises UsageError."""
    config = config_from_values(values, "the settings")
    for name, sentence in ineffective_settings(config).items():
        if name in explicit:
            raise UsageError(sentence)
    return config


def _error(values: dict[str, Any], explicit: Collection[str]) -> str:
    """Why the values are refused; empty if they are not."""
    try:
        _checked(values, explicit)
    except UsageError as error:
        return str(error)
    return ""


def recipe_values(values: dict[str, Any], inherited: Collection[str] = ()) -> dict[str, Any]:
    """Settings that the recipe for ``values["env"]`` adds. Those that were tuned for its strategy
    hold only with it: the settings of its search not with another policy or optimizer, and its
    layers not with another policy.

    inherited: see :func:`resolve`; a named recipe has its own search
    """
    env = str(values.get("env", ""))
    recipe = recipe_for(env)
    if values.get("strategy", recipe.get("strategy")) != recipe.get("strategy"):
        recipe = {name: value for name, value in recipe.items() if name in settings_for_all(env)}
    if values.get("policy", recipe.get("policy")) != recipe.get("policy"):
        # Another policy may not use the recipe's layers.
        shape = {"observe", *PolicySettings.__annotations__}
        recipe = {name: value for name, value in recipe.items() if name not in shape}
    tuned = not inherited and all(
        values[name] == recipe.get(name, default_of(name))
        for name in TUNED_SETTINGS
        if name in values
    )
    options = option_fields()
    return {
        name: value
        for name, value in recipe.items()
        if name not in values
        and (tuned or (options[name].metadata["group"] != "search" and name not in PACE_SETTINGS))
        and not _is_excluded(name, values, recipe)
    }


def format_recipe(
    values: dict[str, Any], inherited: Collection[str] = (), name: str = ""
) -> tuple[str, ...]:
    """The line about settings that come from recipes, if any do.

    inherited: names in ``values`` that the recipe ``name`` has set
    """
    if name == NONE:
        return ()
    added = recipe_values(values, inherited)
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


def _is_excluded(name: str, values: dict[str, Any], recipe: dict[str, Any]) -> bool:
    """Whether explicit ``values`` keep a recipe from setting ``name``."""
    options = option_fields()
    changed = {
        other: value != recipe.get(other, options[other].default)
        for other, value in values.items()
        if other in options
    }
    return any(
        isinstance(rule, Conflict | GivesWay)
        and rule.name in changed
        and is_met(rule, values[rule.name], changed[rule.name])
        for rule in options[name].metadata["rules"]
    ) or any(
        is_changed
        and isinstance(rule, Conflict)
        and rule.name == name
        and is_met(rule, recipe[name], recipe[name] != options[name].default)
        for other, is_changed in changed.items()
        for rule in options[other].metadata["rules"]
    )
