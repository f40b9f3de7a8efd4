"""Makes settings from outside (flags, TOML, stored JSON) into a checked RunConfig."""

from __future__ import annotations

from typing import Any

from es_queue.config.run_config import RunConfig, option_fields
from es_queue.config.validation import checked_value, validate_combinations
from es_queue.errors import DecodeError, UsageError
from es_queue.files import parse_json
from es_queue.text import format_suggestion

MAX_JSON = 2**20
#: Names the source of a setting in error sentences.
COMMAND_LINE = "the command line"


def config_from_json(text: str | bytes) -> RunConfig:
    """Read what ``RunConfig.to_json`` wrote. Raises UsageError for anything else."""
    if len(text) > MAX_JSON:
        raise UsageError(f"the configuration has {len(text)} bytes, more than {MAX_JSON}")
    try:
        data = parse_json(text, MAX_JSON)
    except DecodeError as error:
        raise UsageError(f"the configuration is not JSON: {error}") from None
    return config_from_values(data, "the stored configuration")


def config_from_values(values: Any, source: str) -> RunConfig:
    """A checked RunConfig from a mapping of plain values; ``source`` names their origin in error
    messages. Raises UsageError.
    """
    if not isinstance(values, dict):
        raise UsageError(f"the settings of {source} are not a JSON object")
    known = option_fields()
    for name in values:
        if name not in known:
            raise UsageError(format_unknown_option(name, source))
    config = RunConfig(
        **{name: checked_value(known[name], value, source) for name, value in values.items()}
    )
    validate_combinations(config)
    return config


def format_unknown_option(name: str, source: str) -> str:
    hint = format_suggestion(name.replace("-", "_"), option_fields())
    return (
        f"{source} has the unknown option {name!r}; "
        f"{hint or 'es-master --help-all lists all options'}"
    )
