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
    explicit = values.keys() - inherited
    config, sentence = _checked({**recipe, **values}, explicit)
    if config is not None:
        return config
    # The recipe's settings that take part: with one of them the refusal remains, or without one of
    # them there is none. The user's values may be refused anyway.
    involved = [
        name
        for name, value in recipe.items()
        if _checked({name: value, **values}, explicit)[1] == sentence
        or not _checked({k: recipe[k] for k in recipe if k != name} | values, explicit)[1]
    ]
    if involved and _checked(values, explicit)[1] != sentence:
        sentence += f" (the recipe for {values['env']} sets {', '.join(involved)})"
    raise UsageError(sentence)


def _checked(
    values: dict[str, Any], explicit: Collection[str]
) -> tuple[RunConfig, str] | tuple[None, str]:
    """The configuration of these values, or why they are refused."""
    try:
        config = RunConfig.of(values, "the settings")
    except UsageError as error:
        return None, str(error)
    useless = next((text for name, text in config.useless().items() if name in explicit), "")
    return (None, useless) if useless else (config, "")


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
        # Another policy may not use the recipe's layers.
        recipe = {
            name: value
            for name, value in recipe.items()
            if name != "observe" and not users_of(name, "policy")
        }
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
