"""Write ``es_queue/config/strategy_settings.py`` and ``policy_settings.py``: what the classes of
strategies and policies declare, readable without numpy. ``python -m tools.write_reference`` calls
it.
"""

from __future__ import annotations

import pkgutil
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

from es_queue.config.declarations import ScaleRule, Setting
from es_queue.policies.base import Policy
from es_queue.policies.conv import ConvPolicy
from es_queue.policies.linear import LinearPolicy
from es_queue.policies.mlp import MlpPolicy
from es_queue.policies.recurrent import RecurrentPolicy
from es_queue.strategies.base import Strategy

FOLDER = Path(__file__).resolve().parents[1] / "es_queue" / "config"
HEAD = '''"""What the classes in ``es_queue/{folder}`` declare, readable without numpy.

Written by ``python -m tools.write_reference``: edit the classes.
"""

from __future__ import annotations

from dataclasses import dataclass

from es_queue.config.declarations import {names}
'''

#: The classes of policies, in the order of ``--help``.
POLICY_CLASSES: tuple[type[Policy], ...] = (LinearPolicy, MlpPolicy, RecurrentPolicy, ConvPolicy)


def discover() -> dict[str, type[Strategy]]:
    """The strategies of es-queue by name: every module's classes that have a name."""
    kinds: dict[str, type[Strategy]] = {}
    folder = import_module("es_queue.strategies")
    for module in pkgutil.walk_packages(folder.__path__, f"{folder.__name__}."):
        for kind in vars(import_module(module.name)).values():
            if isinstance(kind, type) and issubclass(kind, Strategy) and vars(kind).get("name"):
                kinds[kind.name] = kind
    return dict(sorted(kinds.items()))


STRATEGIES = discover()


def written() -> dict[Path, str]:
    """The text of each module, by its path."""
    return {
        FOLDER / "strategy_settings.py": strategy_page(),
        FOLDER / "policy_settings.py": policy_page(),
    }


def strategy_page() -> str:
    used = {name: list(kind.used_settings().values()) for name, kind in STRATEGIES.items()}
    lines = [
        HEAD.format(
            folder="strategies", names="Grows, ScaleRule, StrategyFacts, WithoutEffect, option"
        ),
        *strategy_facts(),
        *optimizer_users(declared(used).values()),
        *settings_class("StrategySettings", "strategies", "search", used),
    ]
    return "\n".join(lines) + "\n"


def policy_page() -> str:
    kinds = {name: kind for kind in POLICY_CLASSES for name in kind.kinds}
    used = {name: list(kind.settings) for name, kind in kinds.items()}
    lines = [
        HEAD.format(folder="policies", names="PolicyFacts, option"),
        "POLICIES: dict[str, PolicyFacts] = {",
        *(
            line
            for name, kind in kinds.items()
            for line in (
                f'    "{name}": PolicyFacts(',
                f'        "{kind.__module__}:{kind.__qualname__}",',
                f"        {words(sorted(setting.name for setting in kind.settings))},",
                "    ),",
            )
        ),
        "}",
        *settings_class("PolicySettings", "policies", "policy", used),
    ]
    return "\n".join(lines) + "\n"


def declared(used: Mapping[str, Iterable[Setting]]) -> dict[str, Setting]:
    """All settings of classes in the order of their names. Raises ValueError for one name that two
    classes declare differently.
    """
    known: dict[str, Setting] = {}
    for user, settings in used.items():
        for setting in settings:
            if known.setdefault(setting.name, setting) != setting:
                raise ValueError(f"{user} declares the setting {setting.name} unlike another class")
    return dict(sorted(known.items()))


def strategy_facts() -> list[str]:
    lines = ["STRATEGIES: dict[str, StrategyFacts] = {"]
    for name, kind in STRATEGIES.items():
        facts = kind.facts()
        lines += [
            f'    "{name}": StrategyFacts(',
            f'        "{facts.path}",',
            f"        pairs={facts.pairs},",
            *name_lines("settings", facts.settings),
            *(["        asynchronous=True,"] if facts.asynchronous else []),
            *([f"        optimizers={words(facts.optimizers)},"] if facts.optimizers else []),
            *scale_lines(facts.scale_rules),
            "    ),",
        ]
    return [*lines, "}"]


def scale_lines(rules: Mapping[str, ScaleRule]) -> list[str]:
    text = ", ".join(
        f'"{name}": ScaleRule({rule.noise}, {rule.rate})' for name, rule in rules.items()
    )
    line = f"        scale_rules={{{text}}},"
    if len(line) <= 100:
        return [line] if rules else []
    parts = (f"            {part}," for part in text.replace("), ", ")|").split("|"))
    return ["        scale_rules={", *parts, "        },"]


def optimizer_users(settings: Iterable[Setting]) -> list[str]:
    return [
        "#: The optimizers that use a setting, for settings that not all of them use.",
        "OPTIMIZER_USERS: dict[str, tuple[str, ...]] = {",
        *(
            f'    "{setting.name}": {words(setting.optimizers)},'
            for setting in settings
            if setting.optimizers
        ),
        "}",
    ]


def settings_class(
    name: str, owners: str, group: str, used: Mapping[str, list[Setting]]
) -> list[str]:
    lines = [
        "",
        "",
        "@dataclass(frozen=True)",
        f"class {name}:",
        f'    """The settings that {owners} declare; ``RunConfig`` has them all."""',
    ]
    for setting in declared(used).values():
        users = [user for user, settings in used.items() if setting in settings]
        lines += [
            "",
            f"    {setting.name}: {type_name(setting.default)} = option(",
            f"        {literal(setting.default)},",
            f'        "{group}",',
            *text_lines(sentence(setting, users if len(users) < len(used) else [])),
            *([f"        unit={literal(setting.unit)},"] if setting.unit else []),
            *name_lines("allowed", setting.choices),
            *(
                [f"        allowed=({setting.low}, {setting.high}),"]
                if (setting.low, setting.high) != (None, None)
                else []
            ),
            *([f'        default_word="{setting.default_word}",'] if setting.default_word else []),
            *rule_lines(setting),
            "    )",
        ]
    return lines


def rule_lines(setting: Setting) -> list[str]:
    if not setting.rules:
        return []
    lines = ["        rules=("]
    for rule in setting.rules:
        values = [getattr(rule, field.name) for field in fields(rule)]
        lines += [
            f"            {type(rule).__name__}(",
            *(f"                {literal(value)}," for value in values),
            "            ),",
        ]
    return [*lines, "        ),"]


def sentence(setting: Setting, users: list[str]) -> str:
    """The text of a setting with its users; none if all are."""
    if setting.name == "optimizer":
        users = [f"{user}: {', '.join(STRATEGIES[user].optimizers)}" for user in users]
    separator = "; " if setting.name == "optimizer" else ", "
    return f"{setting.text} ({separator.join(users)})" if users else setting.text


def type_name(default: Any) -> str:
    return "tuple[int, ...]" if isinstance(default, tuple) else type(default).__name__


def literal(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def words(names: Iterable[str]) -> str:
    text = ", ".join(map(literal, names))
    return f"({text},)" if text and "," not in text else f"({text})"


def name_lines(field: str, names: Any) -> list[str]:
    """A tuple of names, one per line if they are too many for one."""
    if not names:
        return [] if field == "allowed" else [f"        {field}=(),"]
    line = f"        {field}={words(names)},"
    if len(line) <= 100:
        return [line]
    return [f"        {field}=(", *(f'            "{name}",' for name in names), "        ),"]


def text_lines(text: str) -> list[str]:
    if len(text) <= 89:
        return [f'        "{text}",']
    parts = textwrap.wrap(text, 90, drop_whitespace=False, break_on_hyphens=False)
    head, *rest = (f'"{part}"' for part in parts)
    return [f"        {head}", *(f"        {part}" for part in rest[:-1]), f"        {rest[-1]},"]
