"""Write ``es_queue/config/strategy_settings.py``, what strategies' classes say, fit to be read
without numpy. ``python -m tools.write_reference`` calls it.
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from es_queue.strategies import STRATEGIES
from es_queue.strategies.setting import Setting

PAGE = Path(__file__).resolve().parents[1] / "es_queue" / "config" / "strategy_settings.py"
HEAD = '''"""What the classes in ``es_queue/strategies`` say of themselves, readable without numpy.

Written by ``python -m tools.write_reference``: edit the classes.
"""

from __future__ import annotations

from dataclasses import dataclass

from es_queue.config.declarations import StrategyFacts, option
'''


def written() -> str:
    """The text of the module."""
    return "\n".join([HEAD, *facts(), *dependencies(), "", *settings()]) + "\n"


def declared() -> dict[str, Setting]:
    """All strategies' settings in the order of their names. Raises ValueError for one name that
    two strategies declare differently.
    """
    known: dict[str, Setting] = {}
    for kind in STRATEGIES.values():
        for name, setting in kind.used_settings().items():
            if known.setdefault(name, setting) != setting:
                raise ValueError(f"{kind.name} declares the setting {name} unlike another strategy")
    return dict(sorted(known.items()))


def facts() -> list[str]:
    lines = ["STRATEGIES: dict[str, StrategyFacts] = {"]
    for name, kind in STRATEGIES.items():
        lines += [
            f'    "{name}": StrategyFacts(',
            f"        pairs={kind.per_slot == 2},",
            f"        asynchronous={kind.asynchronous},",
            f"        optimizers={words(kind.optimizers)},",
            *name_lines("settings", sorted(kind.used_settings())),
            "    ),",
        ]
    return [*lines, "}"]


def dependencies() -> list[str]:
    return [
        "#: The optimizers that use a setting, for settings that not all of them use.",
        "OPTIMIZER_USERS: dict[str, tuple[str, ...]] = {",
        *(
            f'    "{name}": {words(setting.optimizers)},'
            for name, setting in declared().items()
            if setting.optimizers
        ),
        "}",
    ]


def settings() -> list[str]:
    lines = [
        "",
        "@dataclass(frozen=True)",
        "class StrategySettings:",
        '    """The settings that strategies declare; ``RunConfig`` has them all."""',
    ]
    for setting in declared().values():
        lines += [
            "",
            f"    {setting.name}: {type(setting.default).__name__} = option(",
            f"        {literal(setting.default)},",
            '        "search",',
            *text_lines(sentence(setting)),
            *([f"        unit={literal(setting.unit)},"] if setting.unit else []),
            *name_lines("choices", setting.choices),
            *(["        custom=True,"] if setting.custom else []),
            *(
                f"        {side}={literal(bound)},"
                for side, bound in (("low", setting.low), ("high", setting.high))
                if bound is not None
            ),
            "    )",
        ]
    return lines


def sentence(setting: Setting) -> str:
    """The text of a setting with the strategies that use it."""
    users = [kind for kind in STRATEGIES.values() if setting.name in kind.used_settings()]
    if setting.name == "optimizer":
        named = [f"{user.name}: {', '.join(user.optimizers)}" for user in users]
        return f"{setting.text} ({'; '.join(named)})"
    return f"{setting.text} ({', '.join(user.name for user in users)})"


def literal(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def words(names: tuple[str, ...]) -> str:
    text = ", ".join(map(literal, names))
    return f"({text},)" if len(names) == 1 else f"({text})"


def name_lines(field: str, names: Any) -> list[str]:
    """A tuple of several names, one per line."""
    if not names:
        return [] if field == "choices" else [f"        {field}=(),"]
    return [f"        {field}=(", *(f'            "{name}",' for name in names), "        ),"]


def text_lines(text: str) -> list[str]:
    if len(text) <= 84:
        return [f'        text="{text}",']
    parts = textwrap.wrap(text, 82, drop_whitespace=False, break_on_hyphens=False)
    return ["        text=(", *(f'            "{part}"' for part in parts), "        ),"]
