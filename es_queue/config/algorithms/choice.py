"""``--strategy auto``: a strategy by the size of the policy, as measured in docs/choosing.md."""

from __future__ import annotations

from dataclasses import fields

from es_queue.config.algorithms.settings import StrategySettings
from es_queue.config.run_config import AUTO, RunConfig

#: For policies of up to so many parameters, if no setting of a strategy is given.
SMALL, MOST_SMALL = "snes", 2000
#: For all others.
GENERAL = "pgpe"


def chosen_strategy(config: RunConfig, size: int) -> str:
    """The strategy for policies of ``size`` parameters."""
    if config.strategy != AUTO:
        return config.strategy
    is_plain = all(
        getattr(config, field.name) == field.default for field in fields(StrategySettings)
    )
    return SMALL if is_plain and size <= MOST_SMALL else GENERAL


def format_choice(requested: RunConfig, config: RunConfig, size: int) -> list[str]:
    """A note about the strategy if it was chosen."""
    if requested.strategy != AUTO:
        return []
    return [
        f"strategy {config.strategy}, chosen for a policy of {size:,} parameters (docs/choosing.md)"
    ]
