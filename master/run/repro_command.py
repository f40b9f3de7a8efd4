"""The command that repeats a run: every setting that es-master would not choose by itself, as a
flag.
"""

from __future__ import annotations

import json
from pathlib import Path
from shlex import quote
from typing import Any

from es_queue.config.recipes import recipe_for
from es_queue.config.resolution import TUNED_SETTINGS, resolve
from es_queue.config.run_config import RunConfig, default_of
from es_queue.config.validation import ineffective_settings
from master.cli.flags import flag_name
from master.run.launch import format_warm_start


def repro_command(config: RunConfig, warm_start: Path | None = None) -> str:
    """``es-master --env … --seed …``: a new run of exactly this configuration. No server and no
    password is in it.
    """
    explicit = explicit_settings(config)
    values, base = config.to_dict(), resolve(explicit).to_dict()
    ineffective = ineffective_settings(config)
    words = [
        word
        for name in values
        if name in explicit
        or name == "seed"
        or (values[name] != base[name] and name not in ineffective)
        for word in format_flags(name, values[name])
    ]
    return " ".join(
        [
            "es-master",
            *words,
            *([f"--warm-start {quote(format_warm_start(warm_start))}"] if warm_start else []),
        ]
    )


def explicit_settings(config: RunConfig) -> dict[str, Any]:
    """The task, and of the method what is not the recipe's own: the rest of what es-master chooses
    follows from these.
    """
    task = (
        {"env": config.env}
        if config.env
        else {"objective": config.objective, "parameters": config.parameters}
    )
    recipe = recipe_for(config.env)
    return task | {
        name: getattr(config, name)
        for name in TUNED_SETTINGS
        if getattr(config, name) != recipe.get(name, default_of(name))
    }


def format_flags(name: str, value: Any) -> list[str]:
    """A setting as words of a shell's command line."""
    flag = f"--{flag_name(name)}"
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag_name(name)}"]
    if isinstance(value, dict):
        return [f"{flag} {quote(f'{key}={format_scalar(item)}')}" for key, item in value.items()]
    if name == "wrapper":
        return [f"{flag} {quote(wrapper)}" for wrapper in value]
    text = (
        ",".join(map(str, value))
        if isinstance(value, (list, tuple))
        else f"{value!r}"
        if isinstance(value, float)
        else str(value)
    )
    return [f"{flag}={quote(text)}" if text.startswith("-") else f"{flag} {quote(text)}"]


def format_scalar(value: Any) -> str:
    """A value of --env-arg: text as it is, unless it would be read as JSON."""
    try:
        json.loads(value)
    except (ValueError, TypeError):
        return value if isinstance(value, str) else json.dumps(value)
    return json.dumps(value)
