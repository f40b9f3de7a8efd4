"""``--strategy auto``: a strategy by the size of the policy, as measured in docs/choosing.md."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields, replace

from es_queue.config.algorithms.settings import StrategySettings
from es_queue.config.run_config import AUTO, RunConfig, users_of

#: For policies of up to so many parameters.
SMALL, MOST_SMALL = "snes", 2000
#: Its environment seeds. If a generation shares them and the best action depends on the start of an
#: episode, sigma shrinks around what suits one start (docs/choosing.md).
SMALL_SEEDS = "slot"
#: For larger ones, and for all if a setting is given that only strategies use and that it uses.
GENERAL = "pgpe"


def with_chosen_strategy(config: RunConfig, size: int) -> RunConfig:
    """The settings with a strategy for policies of ``size`` parameters, unless they name one."""
    if config.strategy != AUTO:
        return config
    by_size = SMALL if size <= MOST_SMALL else GENERAL
    return with_strategy(config, strategy_of_settings(config) or by_size)


def with_strategy(config: RunConfig, strategy: str) -> RunConfig:
    """The settings with a chosen strategy, and its environment seeds unless they are given."""
    seeds = SMALL_SEEDS if strategy == SMALL and config.env_seeds == AUTO else config.env_seeds
    return replace(config, strategy=strategy, env_seeds=seeds)


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
