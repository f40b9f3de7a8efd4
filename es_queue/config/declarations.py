"""How settings are declared, and facts about strategies and policies, readable without numpy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Bounds = tuple[float | None, float | None]


@dataclass(frozen=True)
class WithoutEffect:
    """A value of another setting that makes a setting useless.

    reason, fix: why, and what else to set, in the error for an explicit value
    """

    name: str
    value: bool | int | float | str
    reason: str
    fix: str


@dataclass(frozen=True)
class Conflict:
    """Another setting that a setting cannot be combined with, unless this one has its default.

    name, reason, fix: parts of the error
    value: the other's value that conflicts, None for all but its default
    """

    name: str
    reason: str
    fix: str
    value: bool | int | float | str | None = None


@dataclass(frozen=True)
class GivesWay:
    """A setting whose explicit value, if it differs from a recipe's, keeps the recipe from setting
    another one.
    """

    name: str
    value: None = None


@dataclass(frozen=True)
class Grows:
    """A count that grows with a power of ``scale``.

    auto: the number that 0 stands for, or fewer in a smaller population
    """

    exponent: float
    auto: int = 0


Rule = WithoutEffect | Conflict | GivesWay | Grows


@dataclass(frozen=True)
class ScaleRule:
    """How a strategy uses a larger population (``es_queue.config.scaling``).

    noise: the gradient noise scale, in populations of a recipe: beyond that many, more individuals
    hardly save generations; 0: the strategy needs as many generations
    rate: exponent of the gain in the learning rate: 1 for a step in proportion to the gradient, a
    half for one of a given length
    """

    noise: float = 0.0
    rate: float = 0.0


@dataclass(frozen=True)
class StrategyFacts:
    """Declarations of a strategy's class.

    path: module:Class
    pairs: whether a slot is a pair θ ± σε; asynchronous: whether it allows ``--schedule async``
    optimizers: those it can use, its default first; settings: names of those it uses
    scale_rules: one per optimizer, or one named "" without optimizers
    """

    path: str
    pairs: bool
    settings: tuple[str, ...]
    asynchronous: bool = False
    optimizers: tuple[str, ...] = ()
    scale_rules: Mapping[str, ScaleRule] = field(default_factory=dict)


@dataclass(frozen=True)
class PolicyFacts:
    """Declarations of a policy's class. path: module:Class; settings: names of those it uses"""

    path: str
    settings: tuple[str, ...]


def option(
    default: Any,
    group: str,
    text: str,
    *,
    unit: str = "",
    allowed: tuple[str, ...] | Bounds = (),
    default_word: str = "",
    rules: tuple[Rule, ...] = (),
) -> Any:
    """A dataclass field with its data for ``--help`` and the checks.

    text: the sentence of ``--help``
    allowed: choices, where a form such as module:Class allows the user's own code; or the lowest
    and highest number, None for no bound
    default_word: replaces the default number for people, such as ``auto``
    rules: how it depends on other settings
    """
    choices = tuple(value for value in allowed if isinstance(value, str))
    low, high = allowed if allowed and not choices else (None, None)
    metadata = {
        "group": group,
        "text": text,
        "unit": unit,
        "choices": tuple(choice for choice in choices if ":" not in choice),
        "own": "".join(choice for choice in choices if ":" in choice),
        "low": low,
        "high": high,
        "default_word": default_word,
        "rules": rules,
    }
    return field(default=default, metadata=metadata)
