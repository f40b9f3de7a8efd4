"""Checks of settings: each value against its field, then all values together."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import Field, fields
from typing import TYPE_CHECKING, Any

from es_queue.config.action_bins import parse_bins
from es_queue.config.algorithms.choice import GENERAL, strategy_of_settings
from es_queue.config.algorithms.facts import STRATEGIES
from es_queue.config.algorithms.settings import (
    OPTIMIZER_USERS,
    PolicySettings,
    StrategySettings,
)
from es_queue.config.declarations import Conflict, GivesWay, StrategyFacts, WithoutEffect
from es_queue.config.episode_rules import (
    parse_bound,
    parse_deadlines,
    parse_patience,
    parse_stall,
    parse_step_limit,
    parse_target,
)
from es_queue.config.observe import parse_observe
from es_queue.config.run_config import ASYNC, AUTO, flag_name, option_fields, users_of
from es_queue.config.schedules import parse_schedule
from es_queue.errors import UsageError
from es_queue.text import format_suggestion

if TYPE_CHECKING:
    from es_queue.config.run_config import RunConfig

#: The name of the user's own code.
CUSTOM_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
#: Text settings that a TOML file may also give as a plain number.
NUMBERS_AS_TEXT = ("step_limit", "reward_floor", "fitness_cap", "target_reward")
#: Fewer episodes are too little evidence to discard training.
ROLLBACK_EPISODES = 50
#: From here on, a float no longer represents every whole number.
EXACT_FLOAT = 2**53


def checked_value(field: Field[Any], value: Any, source: str) -> Any:
    """``value`` in the field's type, within the choices and bounds of its metadata.

    Lists and comma-separated text become tuples, whole floats (``1e6``) become ints, a word such as
    ``auto`` becomes the default number, a table or a list of ``key=value`` becomes ``env_arg``.
    Raises UsageError with one sentence: the field, the value, its ``source`` and the fix.
    """
    kind = str(field.type)
    if isinstance(value, str) and value and value == field.metadata.get("default_word"):
        return field.default
    if field.name == "env_arg":
        return _env_arg(value, source)
    if kind.startswith("tuple"):
        return _items(field, value, source)
    return CHECKS[kind](field, value, source)


def _bool(field: Field[Any], value: Any, source: str) -> bool:
    if not isinstance(value, bool):
        raise _usage_error(field.name, value, source, "use true or false")
    return value


def _int(field: Field[Any], value: Any, source: str) -> int:
    if isinstance(value, float) and value.is_integer() and abs(value) <= EXACT_FLOAT:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or _is_outside(field, value):
        raise _usage_error(field.name, value, source, f"use a whole number{_format_range(field)}")
    return value


def _float(field: Field[Any], value: Any, source: str) -> float:
    fix = f"use a finite number{_format_range(field)}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _usage_error(field.name, value, source, fix)
    try:
        number = float(value)
    except OverflowError:
        raise _usage_error(field.name, value, source, fix) from None
    if not math.isfinite(number) or _is_outside(field, number):
        raise _usage_error(field.name, value, source, fix)
    return number


def _text(field: Field[Any], value: Any, source: str) -> str:
    if (
        field.name in NUMBERS_AS_TEXT
        and isinstance(value, int | float)
        and not isinstance(value, bool)
    ):
        value = repr(value)
    choices, custom = field.metadata["choices"], field.metadata["own"]
    if (
        choices
        and value not in choices
        and not (custom and isinstance(value, str) and CUSTOM_NAME.fullmatch(value))
    ):
        fix = f"use {_format_choices((*choices, *filter(None, (custom,))))}"
        if near := format_suggestion(str(value), choices):
            fix += f" ({near})"
        raise _usage_error(field.name, value, source, fix)
    # Settings are printed on terminals, so they must not contain escape sequences.
    if not isinstance(value, str) or not value.isprintable():
        raise _usage_error(field.name, value, source, "use printable text")
    return value


Check = Callable[[Field[Any], Any, str], Any]
CHECKS: dict[str, Check] = {"bool": _bool, "int": _int, "float": _float, "str": _text}


def _items(field: Field[Any], value: Any, source: str) -> tuple[Any, ...]:
    """A tuple from a list, a tuple or comma-separated text; each item is checked like a value."""
    is_numbers = field.type == "tuple[int, ...]"
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",")] if value.strip() else []
        value = [number_or_text(part) for part in value] if is_numbers else value
    if not isinstance(value, list | tuple):
        raise _usage_error(field.name, value, source, "use a list, or text with commas")
    if field.name == "hidden" and not value:
        raise _usage_error(
            field.name,
            value,
            source,
            "use at least one width, or the policy linear, which has no hidden layer",
        )
    if is_numbers and not value:
        raise _usage_error(field.name, value, source, "use at least one number")
    check = CHECKS["int" if is_numbers else "str"]
    items = tuple(check(field, item, source) for item in value)
    for item in items if field.name == "wrapper" else ():
        if not re.fullmatch(r"[\w.]+:[\w.]+", item):
            raise _usage_error(field.name, item, source, "use module:Class")
    return items


def _env_arg(value: Any, source: str) -> tuple[tuple[str, Any], ...]:
    """Pairs from a table, a list of ``key=value`` (values as JSON scalars, else text) or pairs."""
    given = list(value.items()) if isinstance(value, dict) else value
    if isinstance(given, str):
        given = [given]
    if not isinstance(given, list | tuple):
        raise _usage_error("env_arg", value, source, "use a table, or a list of key=value")
    pairs = tuple(_pair(item, source) for item in given)
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"env_arg has {name!r} twice in {source}: give each key once")
    return pairs


def _pair(given: Any, source: str) -> tuple[str, Any]:
    if isinstance(given, str):
        key, equals, text = given.partition("=")
        given = (key, _json_scalar(text)) if equals else given
    if not isinstance(given, list | tuple) or len(given) != 2:
        raise _usage_error("env_arg", given, source, "use key=value")
    key, value = given
    if not isinstance(key, str) or not key.isidentifier():
        raise _usage_error("env_arg", key, source, "use a Python argument name before the =")
    if not _is_storable(value):
        raise _usage_error(
            f"env_arg {key}", value, source, "use text, a finite number, true, false or null"
        )
    return key, value


def _is_storable(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    # TOML's hexadecimal form allows ints of any length, JSON's decimal form does not.
    return (
        value is None or isinstance(value, str) or (isinstance(value, int) and abs(value) < 2**64)
    )


def _json_scalar(text: str) -> Any:
    """``3``, ``0.5``, ``true``, ``null`` and ``"3"`` as JSON reads them; anything else as text."""
    try:
        value = json.loads(text, parse_constant=_not_json)
    except (ValueError, RecursionError):
        return text
    return text if isinstance(value, list | dict) else value


def _not_json(constant: str) -> Any:
    raise ValueError(constant)  # NaN and Infinity are Python's additions to JSON: they stay text


def number_or_text(text: str) -> int | float | str:
    """A number on a command line (``64``, ``1e6``) as that number, other text unchanged."""
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text


def validate_combinations(config: RunConfig) -> None:
    """Raise UsageError if settings that are valid on their own cannot be combined."""
    _validate_task(config)
    _validate_forms(config)
    _validate_population(config)
    _validate_conflicts(config)
    _validate_async(config)
    if config.strategy in STRATEGIES:
        validate_strategy(config, STRATEGIES[config.strategy])
    validate_strategy_settings(config)
    if config.rollback and (config.eval_every == 0 or config.eval_episodes < ROLLBACK_EPISODES):
        raise UsageError(
            f"rollback needs evaluations of at least {ROLLBACK_EPISODES} episodes, but "
            f"eval_every is {config.eval_every} and "
            f"eval_episodes is {config.eval_episodes}: set --eval-episodes {ROLLBACK_EPISODES} "
            "or more, or leave rollback out"
        )
    if config.eval_every == 0 and config.target_reward not in ("auto", "none"):
        raise UsageError(
            f"target_reward is {config.target_reward}, but eval_every is 0 and only evaluations "
            "are compared with it: "
            "set eval_every to 1 or more, or target_reward to none"
        )
    cap = parse_bound("fitness_cap", config.fitness_cap)
    target = parse_target(config.target_reward)
    if cap is not None and isinstance(target, float) and target > cap and not config.reward_shift:
        raise UsageError(
            f"target_reward is {config.target_reward}, but a search gains nothing above its "
            f"fitness_cap of {config.fitness_cap}: use a larger fitness_cap, or none"
        )
    if config.target_every > 1 and config.target_every % max(1, config.eval_every):
        raise UsageError(
            f"target_every is {config.target_every}, but only every {config.eval_every}th "
            "generation has an evaluation to compare: use a multiple of eval_every"
        )


def _validate_task(config: RunConfig) -> None:
    if config.env and config.objective:
        raise UsageError(
            f"env is {config.env} and objective is {config.objective}: a run has one of "
            "them, so leave the other out"
        )
    if not config.task:
        raise UsageError(
            "env is not given: name the environment to train with --env, for example --env "
            "BipedalWalker-v3"
        )
    if config.env and config.parameters:
        raise UsageError(
            f"parameters is {config.parameters}, but the environment decides how many its "
            "policy has: leave it out, or use objective instead of env"
        )
    if not config.objective:
        return
    if not CUSTOM_NAME.fullmatch(config.objective):
        raise UsageError(f"objective is {config.objective!r}: use module:function")
    if not config.parameters:
        raise UsageError(
            f"objective is {config.objective}, but parameters is 0: set --parameters to "
            "the length of its vector"
        )
    if config.behaviour != "auto":
        raise UsageError(
            f"behaviour is {config.behaviour}, but an objective returns its own: leave it out, and "
            "return (number, behaviour)"
        )
    if config.backend not in ("auto", "stock"):
        raise UsageError(
            f"backend is {config.backend}, but an objective runs only on stock: leave backend at "
            "auto"
        )


def _validate_forms(config: RunConfig) -> None:
    parse_step_limit(config.step_limit)
    parse_bound("reward_floor", config.reward_floor)
    parse_bound("fitness_cap", config.fitness_cap)
    parse_patience(config.patience)
    parse_stall(config.stall)
    parse_deadlines(config.restart_deadlines)
    parse_bins(config.action_bins)
    parse_observe(config.observe)
    parse_target(config.target_reward)
    _validate_schedules(config)


def _validate_schedules(config: RunConfig) -> None:
    schedules = {
        name: parse_schedule(name, getattr(config, name))
        for name in ("learning_rate_schedule", "sigma_schedule", "decay_schedule")
    }
    if schedules["sigma_schedule"].lowest <= 0:
        raise UsageError(
            f"sigma_schedule is {config.sigma_schedule}, but a run learns nothing "
            "without perturbations: use factors above 0"
        )
    if config.decay_schedule != "constant" and not (config.l2 or config.weight_decay):
        raise UsageError(
            f"decay_schedule is {config.decay_schedule}, but l2 and weight_decay are 0: set "
            "one of them, or leave the schedule out"
        )


def _validate_conflicts(config: RunConfig) -> None:
    defaults = {field.name: field.default for field in fields(config)}
    for field in fields(config):
        value = getattr(config, field.name)
        for rule in field.metadata["rules"] if value != field.default else ():
            if not isinstance(rule, Conflict):
                continue
            other = getattr(config, rule.name)
            if is_met(rule, other, other != defaults[rule.name]):
                raise UsageError(
                    f"{field.name} is {value}, but {rule.name} {rule.reason}: {rule.fix}"
                )


def is_met(rule: Conflict | GivesWay, value: Any, is_changed: bool) -> bool:
    """Whether a rule names the ``value`` of its other setting."""
    return is_changed if rule.value is None else bool(value == rule.value)


def _validate_async(config: RunConfig) -> None:
    if config.schedule != ASYNC:
        return
    if parse_step_limit(config.step_limit).kind not in ("env", "fixed"):
        raise UsageError(
            f"schedule is async, but a step_limit of {config.step_limit} is adapted to whole "
            "generations: use env or a number, or the schedule sync"
        )


def _validate_population(config: RunConfig) -> None:
    population, largest = config.population, config.population_max
    if config.truncation > population:
        raise UsageError(
            f"truncation is {config.truncation}, but a population has {population} "
            f"individuals: use at most {population}"
        )
    if largest and largest < population:
        raise UsageError(
            f"population_max is {largest}, below the population of {population}: use "
            f"{population} or more, or auto"
        )
    for name in ("population", "population_max"):
        most, value = option_fields()[name].metadata["high"], getattr(config, name)
        if value * config.scale > most:
            raise UsageError(
                f"scale is {config.scale:g}, but {name} {value} can grow to {most}: use a scale "
                f"of at most {most // value}"
            )
    if largest and not config.min_steps:
        raise UsageError(
            f"population_max is {largest}, but only min_steps lets the population grow: set "
            "min_steps as well"
        )


def validate_strategy(config: RunConfig, facts: StrategyFacts) -> None:
    """Refuse settings that a strategy with these facts does not support. Raises UsageError."""
    strategy, population = config.strategy, config.population
    individuals = 2 if facts.pairs else 1
    for name in ("population", "population_max"):
        if getattr(config, name) % individuals:
            raise UsageError(
                f"{name} is {getattr(config, name)}, but {strategy} samples mirrored pairs: use "
                "an even number"
            )
    if config.env_seeds == "pair" and not facts.pairs:
        raise UsageError(
            f"env_seeds is pair, but {strategy} samples no pairs: use generation or slot"
        )
    most = population // individuals
    if config.top > most:
        raise UsageError(
            f"top is {config.top}, but a population of {population} has {most} pairs: use at most "
            f"{most}"
        )
    if config.schedule == ASYNC and not facts.asynchronous:
        able = tuple(name for name, other in STRATEGIES.items() if other.asynchronous)
        fix = "set asynchronous = True in its class"
        if strategy in STRATEGIES:
            fix = f"the strategy {_format_choices(able)}"
        raise UsageError(
            f"schedule is async, but {strategy} learns from whole generations: use the schedule "
            f"sync, or {fix}"
        )
    if config.optimizer not in ("auto", *facts.optimizers):
        known = _format_choices(("auto", *facts.optimizers))
        fix = f"use {known}" if facts.optimizers else "leave it at auto"
        raise UsageError(f"optimizer is {config.optimizer}, but {strategy} does not take it: {fix}")


def ineffective_settings(config: RunConfig) -> dict[str, str]:
    """Settings that another setting makes useless, each with the error for an explicit value."""
    return {
        field.name: (
            f"{field.name} is {getattr(config, field.name):g}, but {rule.reason}: leave "
            f"{field.name} out, or {rule.fix}"
        )
        for field in fields(config)
        for rule in field.metadata["rules"]
        if isinstance(rule, WithoutEffect) and getattr(config, rule.name) == rule.value
    }


def validate_strategy_settings(config: RunConfig) -> None:
    """Refuse a setting that the chosen strategy or policy would ignore. Raises UsageError."""
    changed = {
        option_field.name
        for option_field in fields(config)
        if getattr(config, option_field.name) != option_field.default
    }
    owners = {
        **dict.fromkeys(StrategySettings.__annotations__, "strategy"),
        **dict.fromkeys(PolicySettings.__annotations__, "policy"),
    }
    strategy = config.strategy
    if strategy == AUTO:
        strategy = strategy_of_settings(config) or GENERAL
    choices = {"strategy": strategy, "policy": config.policy}
    for name, chooser in owners.items():
        chosen, users = choices[chooser], users_of(name)
        if CUSTOM_NAME.fullmatch(chosen):  # the user's own strategy decides what it uses
            continue
        if name in changed and chosen not in users:
            raise _unused_option_error(config, name, chooser, chosen, users)
    if strategy not in STRATEGIES:
        return
    offered = STRATEGIES[strategy].optimizers
    optimizer = config.optimizer if config.optimizer != AUTO else next(iter(offered), "")
    for name, users in OPTIMIZER_USERS.items():
        if name in changed and optimizer not in users:
            raise _unused_option_error(
                config,
                name,
                "optimizer",
                optimizer,
                tuple(user for user in users if user in offered),
            )


def _unused_option_error(
    config: RunConfig, name: str, chooser: str, chosen: str, users: tuple[str, ...]
) -> UsageError:
    value = getattr(config, name)
    text = ",".join(map(str, value)) if isinstance(value, tuple) else value
    noun = f"{chooser} {chosen}"
    if chooser == "strategy" and config.strategy == AUTO:
        noun += ", which auto chooses for the given settings,"
    if value is False:
        text = f"False (--no-{flag_name(name)})"
    return UsageError(
        f"{name} is {text}, but the {noun} does not use it: leave it out, or "
        f"use the {chooser} {_format_choices(users)}"
    )


def _is_outside(field: Field[Any], number: float) -> bool:
    low, high = field.metadata.get("low"), field.metadata.get("high")
    if low == -1 and number != -1 and field.metadata.get("default_word"):
        low = 0
    return (low is not None and number < low) or (high is not None and number > high)


def _format_range(field: Field[Any]) -> str:
    low, high = field.metadata.get("low"), field.metadata.get("high")
    low, high = (
        int(bound) if bound is not None and bound == int(bound) else bound for bound in (low, high)
    )
    word = field.metadata.get("default_word")
    if word and low == -1:  # the word represents this number
        low = 0
    otherwise = f", or {word}" if word else ""
    if high is not None:
        return f" from {low} to {high}{otherwise}"
    return otherwise if low is None else f" of {low} or more{otherwise}"


def _format_choices(words: tuple[str, ...]) -> str:
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _usage_error(name: str, value: Any, source: str, fix: str) -> UsageError:
    return UsageError(f"{name} is {_format_value(value)} in {source}: {fix}")


def _format_value(value: Any) -> str:
    """A value as people write it, short enough for a sentence."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an int of thousands of digits, or deep nesting
        return f"too large a value of type {type(value).__name__} to show"
    return text if len(text) <= 60 else text[:60] + "..."
