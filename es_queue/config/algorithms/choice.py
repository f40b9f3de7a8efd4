"""``--strategy auto``: a strategy by the size of the policy, with the measurements in
docs/choosing.md.
"""

from __future__ import annotations

from dataclasses import fields, replace

from es_queue.config.algorithms.settings import StrategySettings
from es_queue.config.run_config import AUTO, RunConfig, users_of

#: The strategy for policies of up to ``MOST_SMALL`` parameters.
SMALL, MOST_SMALL = "snes", 2000
#: The environment seeds that are chosen with it. Seeds that a generation shares are better on some
#: tasks, but fail if the best action depends on the start of an episode.
SMALL_SEEDS = "slot"
#: The strategy for larger policies, and for given settings that it uses.
GENERAL = "pgpe"


def with_chosen_strategy(config: RunConfig, size: int) -> RunConfig:
    """The settings with a strategy for policies of ``size`` parameters, unless they name one."""
    if config.strategy != AUTO:
        return config
    by_size = SMALL if size <= MOST_SMALL else GENERAL
    strategy = strategy_of_settings(config) or by_size
    seeds = SMALL_SEEDS if strategy == SMALL and config.env_seeds == AUTO else config.env_seeds
    return replace(config, strategy=strategy, env_seeds=seeds)


def strategy_of_settings(config: RunConfig) -> str:
    """``GENERAL`` or ``SMALL`` if only one of them uses the settings that are not the default and
    that only strategies use; ``GENERAL`` if both or neither do; empty without such settings.
    """
    changed = [
        field.name
        for field in fields(StrategySettings)
        if getattr(config, field.name) != field.default
    ]
    has_pairs = config.env_seeds == "pair"
    if not changed and not has_pairs:
        return ""
    is_small = not has_pairs and all(SMALL in users_of(name) for name in changed)
    is_general = all(GENERAL in users_of(name) for name in changed)
    return SMALL if is_small and not is_general else GENERAL


def format_choice(requested: RunConfig, config: RunConfig, size: int) -> list[str]:
    """A note about the strategy if it was chosen."""
    if requested.strategy != AUTO:
        return []
    reason = (
        "for the given settings"
        if strategy_of_settings(requested)
        else f"for a policy of {size:,} parameters"
    )
    return [
        f"strategy {config.strategy} with env_seeds {config.env_seeds}, chosen {reason} "
        "(docs/choosing.md)"
    ]
