"""Declarations of settings, and facts about strategies and policies, readable without numpy."""

from __future__ import annotations

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
class Setting:
    """A setting that strategies or policies declare. ``python -m tools.write_reference`` makes its
    flag.

    Classes that share a setting declare the same object. Its value is ``config.<name>``.

    choices: of a text; a form such as module:Class among them allows the user's own code
    low, high: bounds of a number, inclusive
    optimizers: those that use it; empty if all do
    default_word: a word, such as ``auto``, that is shown for the default number
    without_effect: values of other settings that make it useless
    """

    name: str
    default: bool | int | float | str | tuple[int, ...]
    text: str
    unit: str = ""
    choices: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    optimizers: tuple[str, ...] = ()
    default_word: str = ""
    without_effect: tuple[WithoutEffect, ...] = ()


@dataclass(frozen=True)
class StrategyFacts:
    """Declarations of a strategy's class.

    pairs: whether a slot is a pair θ ± σε; asynchronous: whether it allows ``--schedule async``
    optimizers: those it can use, its default first; settings: names of those it uses
    """

    pairs: bool
    asynchronous: bool
    optimizers: tuple[str, ...]
    settings: tuple[str, ...]


def option(
    default: Any,
    group: str,
    text: str,
    *,
    unit: str = "",
    allowed: tuple[str, ...] | Bounds = (),
    default_word: str = "",
    without_effect: tuple[WithoutEffect, ...] = (),
) -> Any:
    """A dataclass field with its data for ``--help`` and the checks.

    text: the sentence of ``--help``
    allowed: the choices, or the lowest and the highest number, None for no bound
    default_word, without_effect: as in a :class:`Setting`
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
        "without_effect": without_effect,
    }
    return field(default=default, metadata=metadata)
