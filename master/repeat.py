"""The command that repeats a run: every setting that es-master would not choose by itself, as a flag."""

from __future__ import annotations

import json
from pathlib import Path
from shlex import quote
from typing import Any

from es_queue.config import RunConfig, default_of
from es_queue.recipes import recipe_for
from master.flags import dashed
from master.options import TUNED_TOGETHER, beginning_again, resolve


def repeating(config: RunConfig, warm_start: Path | None = None) -> str:
    """``es-master --env … --seed …``: a new run of exactly this configuration. No server and no password is in it."""
    said = said_first(config)
    own, base = config.to_dict(), resolve(said).to_dict()
    words = [word for name in own if name in said or name == "seed" or own[name] != base[name] for word in flags_of(name, own[name])]
    return " ".join(["es-master", *words, *([f"--warm-start {quote(beginning_again(warm_start))}"] if warm_start else [])])


def said_first(config: RunConfig) -> dict[str, Any]:
    """The task, and of the method what is not the recipe's own: the rest of what es-master chooses follows from these."""
    task = {"env": config.env} if config.env else {"objective": config.objective, "parameters": config.parameters}
    recipe = recipe_for(config.env)
    return task | {name: getattr(config, name) for name in TUNED_TOGETHER if getattr(config, name) != recipe.get(name, default_of(name))}


def flags_of(name: str, value: Any) -> list[str]:
    """A setting as words of a shell's command line."""
    flag = f"--{dashed(name)}"
    if isinstance(value, bool):
        return [flag if value else f"--no-{dashed(name)}"]
    if isinstance(value, dict):
        return [f"{flag} {quote(f'{key}={scalar(one)}')}" for key, one in value.items()]
    if name == "wrapper":
        return [f"{flag} {quote(one)}" for one in value]
    text = ",".join(map(str, value)) if isinstance(value, (list, tuple)) else f"{value!r}" if isinstance(value, float) else str(value)
    return [f"{flag}={quote(text)}" if text.startswith("-") else f"{flag} {quote(text)}"]


def scalar(value: Any) -> str:
    """A value of --env-arg: text as it is, unless it would be read as JSON."""
    try:
        json.loads(value)
    except (ValueError, TypeError):
        return value if isinstance(value, str) else json.dumps(value)
    return json.dumps(value)
