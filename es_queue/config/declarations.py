"""How a setting is declared, and what is known of a strategy without importing it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


def option(
    default: Any,
    group: str,
    *,
    text: str,
    unit: str = "",
    choices: tuple[str, ...] = (),
    custom: bool = False,
    low: float | None = None,
    high: float | None = None,
) -> Any:
    """A dataclass field with what ``--help`` and the checks need: group, sentence, unit, allowed
    values.

    custom: besides the choices, the name of something of the user's own, module:Name
    """
    metadata = {
        "group": group,
        "text": text,
        "unit": unit,
        "choices": choices,
        "own": custom,
        "low": low,
        "high": high,
    }
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class StrategyFacts:
    """What a strategy's class says of itself, for checks that load no numpy.

    pairs: whether a slot is a pair θ ± σε; asynchronous: whether it takes ``--schedule async``
    optimizers: those that it can use, its own choice first; settings: names of those it uses
    """

    pairs: bool
    asynchronous: bool
    optimizers: tuple[str, ...]
    settings: tuple[str, ...]
