"""Tuned settings by environment id, one TOML file a recipe, with the evaluation points to expect of them."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

__all__ = ["Expectation", "expected_points", "recipe_for"]


@dataclass(frozen=True)
class Expectation:
    """What an evaluation gave after ``steps`` counted training steps.

    reward: a return, the lower end of the spread that ``note`` tells
    note:   the spread over seeds, and where it was measured
    """

    steps: int
    reward: float
    note: str


def recipe_for(env_id: str) -> dict[str, Any]:
    """Option values tuned for this environment id, by the names of RunConfig's fields; empty when there are none."""
    return dict(_recipes().get(env_id, {}).get("options", {}))


def expected_points(env_id: str) -> tuple[Expectation, ...]:
    """Evaluation points of the recipe by rising steps, fit to show beside a run's own; empty when there are none."""
    return tuple(Expectation(**point) for point in _recipes().get(env_id, {}).get("expect", ()))


@cache
def _recipes() -> dict[str, dict[str, Any]]:
    """Every recipe under every environment id that it names."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(resources.files(__name__).iterdir(), key=lambda entry: entry.name):
        if path.name.endswith(".toml"):
            recipe = tomllib.loads(path.read_text("utf-8"))
            found.update(dict.fromkeys(recipe["environments"], recipe))
    return found
