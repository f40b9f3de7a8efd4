"""The settings that can change on resume or during a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from es_queue.config.run_config import flag_name, option_fields
from es_queue.config.validation import checked_value, number_or_text
from es_queue.errors import UsageError
from es_queue.text import format_suggestion

#: What --resume may change: how long a run continues and how its end is measured, not its training.
BUDGET_OPTIONS = ("generations", "max_steps", "max_seconds", "target_reward", "final_episodes")
RESUMABLE = (*BUDGET_OPTIONS, "audit", "strict", "keep_generations")
#: What --set may change in a running run, from a generation on.
CHANGEABLE = (
    *BUDGET_OPTIONS,
    "scale",
    "learning_rate",
    "sigma",
    "l2",
    "weight_decay",
    "learning_rate_schedule",
    "sigma_schedule",
    "decay_schedule",
)


def validate_resume_changes(values: dict[str, Any]) -> dict[str, Any]:
    """Check changes from Python for a resumed run. Raises UsageError."""
    fixed = [name for name in values if name not in RESUMABLE]
    if fixed:
        raise UsageError(
            f"changes has {', '.join(map(str, fixed))}, but a resumed run can change only "
            f"{', '.join(RESUMABLE)}"
        )
    return {
        name: checked_value(option_fields()[name], value, "changes")
        for name, value in values.items()
    }


def validate_changes(values: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Check changes for a running run; text with a number counts as the number. Raises
    UsageError.
    """
    checked = {}
    for name, value in values.items():
        option = option_fields().get(name)
        if option is None:
            fix = format_suggestion(str(name)[:60], CHANGEABLE) or f"use {', '.join(CHANGEABLE)}"
            raise UsageError(f"{str(name)[:60]!r} in {source} is no setting: {fix}")
        if name not in CHANGEABLE:
            raise UsageError(
                f"{name} cannot change during a run, but {source} sets it: set only "
                f"{', '.join(CHANGEABLE)}, or begin a new run with --{flag_name(name)} VALUE and "
                "--warm-start RUN"
            )
        numeric = option.type in ("int", "float") and isinstance(value, str)
        checked[name] = checked_value(option, number_or_text(value) if numeric else value, source)
    return checked
