"""A setting that strategies declare. ``python -m tools.write_reference`` makes flags of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Setting:
    """A setting with its default, its sentence for ``--help`` and its bounds.

    Strategies that share a setting declare the same object. The configured value is
    ``config.<name>``.

    choices: of a text; custom: besides them, module:Name of the user's own
    low, high: bounds of a number, both allowed
    optimizers: those that use it; empty where it does not depend on the optimizer
    """

    name: str
    default: bool | int | float | str
    text: str
    unit: str = ""
    choices: tuple[str, ...] = ()
    custom: bool = False
    low: float | None = None
    high: float | None = None
    optimizers: tuple[str, ...] = ()
