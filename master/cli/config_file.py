"""The file of --config: TOML with es-queue's settings, or JSON of evolution-strategies-starter."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from es_queue.config.parsing import FORMER_NAMES, format_unknown_option
from es_queue.config.run_config import option_fields
from es_queue.config.validation import checked_value
from es_queue.errors import UsageError
from master.cli.flags import LAUNCH_NAMES


def read_config_file(path: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Checked settings of a --config file, and notes about them. Raises UsageError."""
    if path.suffix == ".json":
        # start-up: only for a .json file
        from master.cli.starter_file import read_starter_file

        return read_starter_file(path)
    return read_settings(path), ()


def read_settings(path: Path) -> dict[str, Any]:
    """Checked settings from a flat TOML file, its names with dashes or underscores. Raises
    UsageError.
    """
    values: dict[str, Any] = {}
    for key, value in _read_toml(path).items():
        name = key.replace("-", "_")
        name = FORMER_NAMES.get(name, name)
        if name in values:
            raise UsageError(
                f"{path} has {name} twice, with a dash and with an underscore: keep one"
            )
        if name in LAUNCH_NAMES:
            raise UsageError(
                f"{path} has {key!r}, which only the command line takes: use "
                f"--{name.replace('_', '-')}"
            )
        if name not in option_fields():
            raise UsageError(format_unknown_option(key, str(path)))
        values[name] = checked_value(option_fields()[name], value, str(path))
    return values


def _read_toml(path: Path) -> dict[str, Any]:
    # start-up: only --config needs it
    from master.cli.starter_file import read_given

    text = ""
    try:
        text = read_given(path).decode("utf-8")
        return tomllib.loads(text)
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not UTF-8 text, as TOML must be") from None
    except (
        ValueError,
        RecursionError,
    ) as error:  # ValueError also covers a number of thousands of digits
        reason, _, place = str(error).partition(" (at ")
        line_match = re.search(r"line (\d+)", place)
        line = line_match.group(1) if line_match else max(1, len(text.splitlines()))
        raise UsageError(f"{path}, line {line}: not TOML: {reason}") from None
