"""``--strategy auto``: a strategy by the size of the policy, as measured in docs/choosing.md."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields

from es_queue.config.algorithms.settings import StrategySettings
from es_queue.config.run_config import AUTO, RunConfig, users_of

#: For policies of up to so many parameters.
SMALL, MOST_SMALL = "snes", 2000
#: For larger ones, and for all if a setting is given that only strategies use and that it uses.
GENERAL = "pgpe"


def chosen_strategy(config: RunConfig, size: int) -> str:
    """The strategy for policies of ``size`` parameters."""
    if config.strategy != AUTO:
        return config.strategy
    return strategy_of_settings(config) or (SMALL if size <= MOST_SMALL else GENERAL)


def strategy_of_settings(config: RunConfig, explicit: Collection[str] = ()) -> str:
    """Of the two, the one that uses all settings of strategies that are given, ``GENERAL`` if both
    or neither do; empty if none is given.

    explicit: settings that are given, although they may have the default's value
    """
    given = [
        field.name
        for field in fields(StrategySettings)
        if field.name in explicit or getattr(config, field.name) != field.default
    ]
    has_pairs = config.env_seeds == "pair"
    if not given and not has_pairs:
        return ""
    able = [
        strategy
        for strategy in (GENERAL, SMALL)
        if all(strategy in users_of(name) for name in given)
        and not (has_pairs and strategy == SMALL)
    ]
    return next(iter(able), GENERAL)


def format_choice(requested: RunConfig, config: RunConfig, size: int) -> list[str]:
    """A note about the strategy if it was chosen."""
    if requested.strategy != AUTO:
        return []
    return [
        f"strategy {config.strategy}, chosen for a policy of {size:,} parameters (docs/choosing.md)"
    ]
