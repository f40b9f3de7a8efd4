"""The strategies, one file each; ``make_strategy`` makes the configured one."""

from __future__ import annotations

from inspect import isabstract

import numpy as np

from es_queue.config.run_config import STRATEGIES, RunConfig
from es_queue.config.scaling import rate_factors, scaled
from es_queue.config.settings import AUTO
from es_queue.errors import UsageError
from es_queue.strategies.base import (
    Batch,
    NoiseRows,
    State,
    Strategy,
    strategy_failure,
    validate_individuals,
)
from es_queue.user_code import load_attribute

__all__ = [
    "STRATEGIES",
    "Batch",
    "NoiseRows",
    "State",
    "Strategy",
    "make_strategy",
    "strategy_class",
]


def make_strategy(config: RunConfig, size: int, generation: int = 0) -> Strategy:
    """The configured strategy for policies of ``size`` parameters, at its ``scale``, with its rates
    as scheduled for a generation. Raises UsageError.
    """
    if config.strategy == AUTO and not config.model:
        # start-up: of runs whose settings name no strategy
        from es_queue.strategies.auto import with_chosen_strategy

        config = with_chosen_strategy(config, size)
    kind = strategy_class(config)
    if ":" in config.strategy:
        config = config.completed(kind)
    requested, config = config, scaled(config)
    kind.check(config)
    if kind.wants_behaviour and ":" in config.strategy and config.behaviour == AUTO:
        raise UsageError(
            f"the strategy {config.strategy} compares behaviours, but behaviour is auto: name a "
            "descriptor with --behaviour"
        )
    if size < 1:
        raise UsageError("the policy has no parameters to train")
    return kind(config, size, rate_factors(requested, generation))


def try_strategy(strategy: Strategy) -> None:
    """Test a user's own strategy before the run begins. Raises StrategyFailure."""
    if ":" not in strategy.config.strategy:
        return
    method = "start"
    try:
        state = strategy.start(np.zeros(strategy.size, np.float32))
        method = "published"
        published = strategy.published(state)
        method = "ask"
        noise = np.zeros((1, strategy.size), np.float32)
        individuals = strategy.ask(published, strategy.sigma(state), noise)
    except Exception as error:
        raise strategy_failure(strategy, method, error) from error
    validate_individuals(strategy, individuals, (1, strategy.per_slot, strategy.size))


def strategy_class(config: RunConfig) -> type[Strategy]:
    """The configured strategy's class, averaged if configured. Raises UsageError."""
    if config.model:
        # start-up: of models
        from es_queue.strategies.model_es import ModelES

        return ModelES
    if ":" not in config.strategy and config.strategy not in STRATEGIES:
        raise UsageError(
            f"there is no strategy {config.strategy!r}; choose {', '.join(STRATEGIES)}"
        )
    kind: type[Strategy] = STRATEGIES.get(config.strategy) or load_strategy_class(config.strategy)
    if getattr(config, "average_decay", 0) and hasattr(kind.Settings, "average_decay"):
        # start-up: few runs average
        from es_queue.strategies.averaged import averaged

        kind = averaged(kind)
    return kind


def load_strategy_class(path: str) -> type[Strategy]:
    loaded = load_attribute(f"strategy {path}", path, UsageError)
    if not (isinstance(loaded, type) and issubclass(loaded, Strategy)) or isabstract(loaded):
        raise UsageError(
            f"the strategy {path} is not a class that extends es_queue.strategies.Strategy and "
            "defines tell"
        )
    for fact, name, base in (
        ("reevaluates", "candidates", "ReevaluationSettings"),
        ("wants_behaviour", "behaviour", "BehaviourSettings"),
    ):
        if getattr(loaded, fact) and not hasattr(loaded.Settings, name):
            raise UsageError(
                f"the strategy {path} has {fact} = True, but no settings for it: let its class "
                f"Settings extend es_queue.strategies.base.{base}"
            )
    if loaded.per_slot not in (1, 2):
        raise UsageError(
            f"the strategy {path} has {loaded.per_slot} individuals per slot: use one, or two "
            "for pairs"
        )
    return loaded
