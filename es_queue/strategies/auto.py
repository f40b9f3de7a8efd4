"""``--strategy auto``: a strategy by the size of the policy, with the measurements in
docs/choosing.md.
"""

from __future__ import annotations

from dataclasses import replace

from es_queue.config.run_config import STRATEGIES, RunConfig, users_of
from es_queue.config.settings import AUTO, declared, join
from es_queue.strategies.pgpe import PGPE
from es_queue.strategies.snes import SNES

#: The strategy for policies of up to ``MOST_SMALL`` parameters.
SMALL, MOST_SMALL = SNES, 2000
#: The environment seeds that are chosen with it. Seeds that a generation shares are better on some
#: tasks, but fail if the best action depends on the start of an episode.
SMALL_SEEDS = "slot"
#: The strategy for larger policies, and for given settings that it uses.
GENERAL = PGPE


class Auto:
    """Has the settings of both strategies that it chooses from."""

    class Settings(PGPE.Settings, SNES.Settings):
        pass

    asynchronous = True

    @classmethod
    def check(cls, config: RunConfig) -> None:
        chosen = strategy_of_settings(config) or GENERAL.name
        for name in changed_settings(config):
            users = users_of(name, "strategy")
            if chosen not in users:
                why = f"the strategy {chosen}, which auto chooses for the given settings, does not"
                fix = f"leave it out, or use the strategy {join(users)}"
                raise config.refused(name, f"{why} use it: {fix}")
        if strategy_of_settings(config):
            STRATEGIES[chosen].check_own(replace(config, strategy=chosen))


def changed_settings(config: RunConfig) -> list[str]:
    """The strategies' own settings that do not have their defaults."""
    own = declared(Auto.Settings)
    return [name for name, one in own.items() if getattr(config, name) != one.default]


def with_chosen_strategy(config: RunConfig, size: int) -> RunConfig:
    """The settings with a strategy for policies of ``size`` parameters, unless they name one."""
    if config.strategy != AUTO or config.model:
        return config
    by_size = (SMALL if size <= MOST_SMALL else GENERAL).name
    strategy = strategy_of_settings(config) or by_size
    is_small = strategy == SMALL.name and config.env_seeds == AUTO
    return replace(
        config, strategy=strategy, env_seeds=SMALL_SEEDS if is_small else config.env_seeds
    )


def strategy_of_settings(config: RunConfig) -> str:
    """The one strategy of the two that has the settings that differ from their defaults; the
    general one if both or neither do; empty without such settings.
    """
    changed = changed_settings(config)
    has_pairs = config.env_seeds == "pair"
    if not changed and not has_pairs:
        return ""
    small, general = (set(changed) <= declared(kind.Settings).keys() for kind in (SMALL, GENERAL))
    return SMALL.name if small and not has_pairs and not general else GENERAL.name


def format_choice(requested: RunConfig, config: RunConfig, size: int) -> list[str]:
    """A note about the strategy if it was chosen."""
    if requested.strategy != AUTO or requested.model:
        return []
    is_given = bool(strategy_of_settings(requested))
    reason = "the given settings" if is_given else f"a policy of {size:,} parameters"
    return [
        f"strategy {config.strategy} with env_seeds {config.env_seeds}, chosen for {reason} "
        "(docs/choosing.md)"
    ]
