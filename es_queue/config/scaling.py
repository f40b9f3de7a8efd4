"""``scale``: a search enlarged for about K times the workers, as a pure function of the settings.

A gradient estimated from K times the individuals has less noise, so the search can take longer
steps, and needs fewer generations: McCandlish, Kaplan, Amodei, OpenAI Dota Team 2018, An empirical
model of large-batch training, https://arxiv.org/abs/1812.06162, equations 2.10 and 2.11, with the
population as the batch. docs/scale.md has what was measured. Plain float64 operations, so the bits
are the same everywhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from es_queue.config.run_config import FIXED, STRATEGIES, RunConfig, own_settings
from es_queue.config.schedules import RateFactors, parse_deadlines, parse_rate_schedule
from es_queue.config.settings import declared
from es_queue.environments.episode_rules import parse_step_limit

#: The largest ``scale``.
LARGEST_SCALE = 1024.0


@dataclass(frozen=True)
class ScaleRule:
    """How a strategy uses a larger population.

    noise: the gradient noise scale, in populations of a recipe: beyond that many, more individuals
    hardly save generations; 0: the strategy needs as many generations
    rate: exponent of the gain in the learning rate: 1 for a step in proportion to the gradient, a
    half for one of a given length
    """

    noise: float = 0.0
    rate: float = 0.0


class ScaleFactors(NamedTuple):
    """learning_rate: its factor; speed: how many times as fast schedules of generations run"""

    learning_rate: float
    speed: float


def scale_factors(config: RunConfig) -> ScaleFactors:
    """The factors of a config's ``scale``; a user's own strategy has only the population.

    Schedules run by the root of the gain that the model predicts: the few runs in docs/scale.md
    needed more generations than it does.
    """
    rule = ScaleRule()
    if config.scale != 1 and config.strategy in STRATEGIES:
        kind = STRATEGIES[config.strategy]
        rule = kind.scale_rules.get(kind.optimizer_name(config), rule)
    gain = (1 + rule.noise) / (1 + rule.noise / config.scale)
    return ScaleFactors(_power(gain, rule.rate), math.sqrt(gain))


def scaled(config: RunConfig) -> RunConfig:
    """The settings that a run with this ``scale`` uses, at a scale of 1; its rates also have
    ``scale_factors``.
    """
    if config.scale == 1:
        return config
    return replace(config, scale=1.0, **scaled_settings(config))


def scaled_settings(config: RunConfig) -> dict[str, Any]:
    scale, speed = config.scale, scale_factors(config).speed
    values: dict[str, Any] = {}
    for name, one in (declared(RunConfig) | FIXED).items():
        if name in ("population", "population_max"):
            before = getattr(config, name)
            larger = int(before * scale)
            larger -= larger % 2 if before % 2 == 0 else 0  # so that pairs stay whole
            values[name] = min(larger, int(one.high or 0))
    values["min_steps"] = int(config.min_steps * scale)
    for name, one in own_settings("strategy", config.strategy).items():
        if one.grows:
            count = getattr(config, name) or min(one.grows_from, config.population)
            values[name] = int(count * _power(scale, one.grows))
    values["eval_every"] = every = math.ceil(config.eval_every / speed)
    if config.target_every > 1:  # a multiple of the other
        values["target_every"] = every * math.ceil(config.target_every / speed / every)
    values["step_limit"] = _faster_limit(config.step_limit, speed)
    values["restart_deadlines"] = _later_deadlines(config.restart_deadlines, scale / speed)
    return {name: value for name, value in values.items() if value != getattr(config, name)}


def rate_factors(config: RunConfig, generation: int) -> RateFactors:
    """The factors of a config's schedules and of its ``scale`` in a generation. Raises UsageError
    for an invalid form.
    """
    learning_rate, sigma, decay = (
        parse_rate_schedule(getattr(config, name, "constant")).factor(generation)
        for name in ("learning_rate_schedule", "sigma_schedule", "decay_schedule")
    )
    return RateFactors(learning_rate * scale_factors(config).learning_rate, sigma, decay)


def format_scaling(config: RunConfig) -> str:
    factors = scale_factors(config)
    changed = [
        f"{name} {getattr(config, name)} → {value}"
        for name, value in scaled_settings(config).items()
    ]
    names = ("learning rate", "speed of schedules")
    changed += [
        f"{name} × {factor:.3g}" for name, factor in zip(names, factors, strict=True) if factor != 1
    ]
    return f"scale {config.scale:g}: {', '.join(changed) or 'all settings as they are'}"


def _power(base: float, exponent: float) -> float:
    """``base`` to the power of 0, a half or 1."""
    return {0.0: 1.0, 0.5: math.sqrt(base), 1.0: base}[exponent]


def _faster_limit(text: str, speed: float) -> str:
    """The rule of a step limit that grows as much in fewer generations."""
    rule = parse_step_limit(text)
    if rule.kind != "adaptive" or speed == 1:
        return text
    ceiling = "" if rule.ceiling is None else f",{rule.ceiling}"
    ratio = min(1000.0, 1 + (rule.ratio - 1) * speed)
    return f"adaptive:{rule.start},{rule.fraction!r},{ratio:.6g}{ceiling}"


def _later_deadlines(text: str, factor: float) -> str:
    """Deadlines after more steps, in proportion to those of the search."""
    if factor == 1:
        return text
    deadlines = parse_deadlines(text)
    return ",".join(f"{line.steps * factor:.0f}={line.least:g}" for line in deadlines) or text
