"""Write ``es_queue/config/algorithms/facts.py``: what the classes of strategies and policies
declare, readable without numpy. ``python -m tools.write_reference`` calls it.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path

from es_queue.config.declarations import ScaleRule
from es_queue.policies.base import Policy
from es_queue.policies.conv import ConvPolicy
from es_queue.policies.linear import LinearPolicy
from es_queue.policies.mlp import MlpPolicy
from es_queue.policies.recurrent import RecurrentPolicy
from es_queue.strategies.base import Strategy

FILE = Path(__file__).resolve().parents[1] / "es_queue" / "config" / "algorithms" / "facts.py"
HEAD = '''"""What the classes of strategies and policies declare, readable without numpy.

Written by ``python -m tools.write_reference``: edit the classes.
"""

from __future__ import annotations

from es_queue.config.declarations import PolicyFacts, ScaleRule, StrategyFacts
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


def written() -> str:
    """The text of the module."""
    return "\n".join([HEAD, *strategy_facts(), "", *policy_facts()]) + "\n"


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


def policy_facts() -> list[str]:
    lines = ["POLICIES: dict[str, PolicyFacts] = {"]
    for kind in POLICY_CLASSES:
        lines += [
            "    **dict.fromkeys(",
            f"        {words(kind.kinds)},",
            "        PolicyFacts(",
            f'            "{kind.__module__}:{kind.__qualname__}",',
            f"            {words(sorted(kind.settings))},",
            "        ),",
            "    ),",
        ]
    return [*lines, "}"]


def words(names: Iterable[str]) -> str:
    text = ", ".join(f'"{name}"' for name in names)
    return f"({text},)" if text and "," not in text else f"({text})"


def name_lines(field: str, names: tuple[str, ...]) -> list[str]:
    """A tuple of names, one per line if they are too many for one."""
    line = f"        {field}={words(names)},"
    if len(line) <= 100:
        return [line]
    return [f"        {field}=(", *(f'            "{name}",' for name in names), "        ),"]
