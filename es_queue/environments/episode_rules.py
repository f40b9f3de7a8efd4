"""The settings of environments and of objectives, and the rules of episodes: what the policy
observes, how its outputs become actions, how rewards become fitness, and when an episode ends.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from es_queue.config.settings import NONE, Setting, is_plain, setting, without_numpy
from es_queue.errors import UsageError
from es_queue.text import LARGEST_WHOLE, parse_finite, parse_number_ranges, parse_whole

#: Steps of an episode if neither the environment nor the user sets a limit.
DEFAULT_LIMIT = 10_000
#: The smallest positive number: the lower bound of positive settings.
ABOVE_ZERO = math.ulp(0.0)


@dataclass(frozen=True)
class StepLimitRule:
    """The step limit of training episodes, per generation.

    kind:     "env", "fixed", "adaptive" or "mean"
    start:    steps of generation 0 ("fixed": of every generation; unused by "env" and "mean")
    fraction: adaptive: the limit grows if at least this fraction of the episodes reached it
    ratio:    multiplies the limit (adaptive) or the mean length (mean)
    ceiling:  adaptive: the highest limit, in steps; None if the user sets none
    """

    kind: str
    start: int = 0
    fraction: float = 0.0
    ratio: float = 0.0
    ceiling: int | None = None

    def initial_limit(self, env_limit: int | None) -> int:
        """The limit of generation 0, in steps; ``env_limit`` is the environment's own, or None."""
        cap = self._cap(env_limit)
        return min(self.start, cap) if self.kind in ("fixed", "adaptive") else cap

    def next_limit(self, current: int, lengths: Iterable[int], env_limit: int | None) -> int:
        """The limit of the next generation, in steps, from the current limit and the lengths
        (steps) of the counted episodes, in any order. It does not change without episodes.
        """
        if self.kind in ("env", "fixed"):
            return current
        counted = [int(length) for length in lengths]
        if not counted:
            return current
        cap = self._cap(env_limit)
        if self.kind == "mean":
            return min(cap, max(1, math.ceil(self.ratio * sum(counted) / len(counted))))
        reached = sum(length >= current for length in counted)
        # Divided, not multiplied: 7 of 100 is the same float as 0.07, while 0.07 * 100 is above 7.
        if reached / len(counted) < self.fraction:
            return current
        return min(cap, max(current + 1, int(self.ratio * current)))

    def _cap(self, env_limit: int | None) -> int:
        if self.kind == "fixed":
            return env_limit or LARGEST_WHOLE
        if self.ceiling is None:
            return env_limit or DEFAULT_LIMIT
        return min(self.ceiling, env_limit or LARGEST_WHOLE)


@dataclass(frozen=True)
class Patience:
    """Ends an episode after ``steps`` steps in which its fitness does not exceed its best so far by
    at least ``gain``.
    """

    steps: int
    gain: float


@dataclass(frozen=True)
class Stall:
    """Ends an episode when |observation[index]| < ``below`` for ``steps`` steps in a row."""

    index: int
    below: float
    steps: int


@dataclass(frozen=True)
class EpisodeRules:
    """Rules of an episode in addition to the environment's own.

    limit:        steps after which it is cut
    reward_shift: subtracted from each reward in the fitness
    reward_floor: the least shifted reward in the fitness; None for no floor
    by_sign:      the fitness sums the signs of the rewards instead
    life_loss:    a lost life ends the episode
    """

    limit: int
    reward_shift: float = 0.0
    reward_floor: float | None = None
    patience: Patience | None = None
    stall: Stall | None = None
    by_sign: bool = False
    life_loss: bool = False

    @property
    def is_return(self) -> bool:
        """Whether the fitness is the sum of the rewards, and ends no episode."""
        shaped = self.reward_shift or self.reward_floor is not None or self.by_sign
        return not (shaped or self.patience or self.stall)


def evaluation_rules(config: Any, step_limit: int | None) -> EpisodeRules:
    """The environment's own rewards, ends and, unless the setting gives another, ``step_limit``."""
    return EpisodeRules(config.eval_step_limit or step_limit or DEFAULT_LIMIT)


def training_rules(config: Any, limit: int, by_sign: bool) -> EpisodeRules:
    return EpisodeRules(
        limit=limit,
        reward_shift=config.reward_shift,
        reward_floor=parse_bound(config.reward_floor),
        patience=parse_patience(config.patience),
        stall=parse_stall(config.stall),
        by_sign=by_sign or config.reward_clip,
        life_loss=config.life_loss,
    )


# --- what settings' texts mean; ValueError for others


def parse_step_limit(text: str) -> StepLimitRule:
    kind, _, rest = text.partition(":")
    if text == "env":
        return StepLimitRule("env")
    if kind == "mean":
        return StepLimitRule("mean", ratio=parse_finite(rest, ABOVE_ZERO, 1000))
    if kind != "adaptive":
        return StepLimitRule("fixed", start=parse_whole(text, 1))
    first, fraction, ratio, *most = rest.split(",")
    start = parse_whole(first, 1)
    return StepLimitRule(
        "adaptive",
        start,
        parse_finite(fraction, ABOVE_ZERO, 1),
        parse_finite(ratio, 1, 1000),
        # A ceiling below the start would make the limit fall once and then seem to adapt.
        parse_whole(",".join(most), start) if most else None,
    )


def parse_patience(text: str) -> Patience | None:
    if text == "none":
        return None
    steps, gain = text.split(",")
    return Patience(parse_whole(steps, 1), parse_finite(gain, 0))


def parse_stall(text: str) -> Stall | None:
    if text == "none":
        return None
    index, below, steps = text.split(":")
    # A bound of zero would never hold, since |x| < 0 is false.
    return Stall(parse_whole(index, 0), parse_finite(below, ABOVE_ZERO), parse_whole(steps, 1))


def parse_bound(text: str) -> float | None:
    """A finite number, or None for ``none``."""
    return None if text == NONE else parse_finite(text)


MAX_BINS = 1000


def parse_bins(text: str) -> tuple[float, ...]:
    """Action bins: each number of a box action is one of a few values, the one with the largest
    output (Salimans et al. 2017, section 4.1). From -1 (the lower bound) to 1 (the upper),
    ascending; () for none.
    """
    kind, _, rest = text.partition(":")
    if text == "none":
        return ()
    if kind == "uniform":
        last = parse_whole(rest, 2) - 1
        values = tuple(2 * place / last - 1 for place in range(min(last, MAX_BINS) + 1))
    elif kind == "custom":
        values = tuple(parse_finite(value, -1, 1) for value in rest.split(","))
    else:
        raise ValueError
    if not 2 <= len(values) <= MAX_BINS or sorted(set(values)) != list(values):
        raise ValueError
    return values


MOST_NUMBERS, HIGHEST_NUMBER = 2**16, 2**24


def parse_observe(text: str) -> tuple[int, ...] | None:
    """The indices in a text such as ``0-13,20``; None for ``all``."""
    if text == "all":
        return None
    try:
        return parse_number_ranges(text, "number", MOST_NUMBERS, HIGHEST_NUMBER)
    except ValueError as error:
        raise ValueError(f"{error}, or all") from None


def parse_bounds(text: str) -> list[tuple[float, float]]:
    """The (lowest, highest) pairs of ``LOW:HIGH,…``. Raises ValueError, whose text is the fix."""
    bounds = []
    for pair in text.split(","):
        try:
            low, high = map(parse_finite, pair.split(":"))
        except ValueError:
            raise ValueError(
                "use LOW:HIGH, for each number or once for all, joined by commas, such as "
                "-1:1,0:300"
            ) from None
        if not (low < high and math.isfinite(high - low)):
            raise ValueError(f"{pair} encloses nothing: write the smaller number first")
        bounds.append((low, high))
    return bounds


def read_wrappers(one: Setting, value: Any, source: str) -> tuple[str, ...]:
    """``module:Class`` each, from a list, or from text with commas."""
    items: tuple[str, ...] = replace(one, read=None).checked(value, source)
    for item in items:
        if not re.fullmatch(r"[\w.]+:[\w.]+", item):
            raise one.refused(item, source, "use module:Class")
    return items


#: Names of --info.
MOST_INFO = 16


def read_info(one: Setting, value: Any, source: str) -> tuple[str, ...]:
    """Up to 16 different names of letters that have no meaning in a table or a file."""
    names: tuple[str, ...] = replace(one, read=None).checked(value, source)
    for name in names:
        if not re.fullmatch(r"[\w./-]{1,50}", name):
            raise one.refused(name, source, "use a key of letters, digits and _ . / -")
    if len(names) > MOST_INFO:
        raise one.refused(value, source, f"use at most {MOST_INFO} names")
    return tuple(dict.fromkeys(names))


def read_arguments(one: Setting, value: Any, source: str) -> tuple[tuple[str, Any], ...]:
    """Pairs from a table, a list of ``key=value`` (values as JSON scalars, else text) or pairs."""
    given = list(value.items()) if isinstance(value, Mapping) else value
    given = [given] if isinstance(given, str) else given
    if not isinstance(given, list | tuple):
        raise one.refused(value, source, "use a table, or a list of key=value")
    pairs: dict[str, Any] = {}
    for item in given:
        if isinstance(item, str) and "=" in item:
            key, _, text = item.partition("=")
            item = (key, _json_scalar(text))
        if not isinstance(item, list | tuple) or len(item) != 2:
            raise one.refused(item, source, "use key=value")
        key, entry = item[0], without_numpy(item[1])
        if not isinstance(key, str) or not key.isidentifier():
            raise one.refused(key, source, "use a Python argument name before the =")
        if not is_plain(entry):
            fix = "use text, a finite number, true, false or null"
            raise replace(one, name=f"{one.name} {key}").refused(entry, source, fix)
        if key in pairs:
            raise UsageError(f"{one.name} has {key!r} twice in {source}: give each key once")
        pairs[key] = entry
    return tuple(pairs.items())


def _json_scalar(text: str) -> Any:
    """``3``, ``0.5``, ``true``, ``null`` and ``"3"`` as JSON reads them; anything else as text."""
    try:
        value = json.loads(text, parse_constant=_not_json)
    except (ValueError, RecursionError):
        return text
    return text if isinstance(value, list | dict) else value


def _not_json(constant: str) -> Any:
    raise ValueError(constant)  # NaN and Infinity are Python's additions to JSON: they stay text


class EnvironmentSettings:
    """What a run has whose problem is an environment. All of it is known before an environment is
    made, so its family does not matter: your own id can be an Atari game, too.
    """

    env_arg = setting(
        (),
        "argument for the environment's constructor; repeatable",
        group="problem",
        read=read_arguments,
        metavar="KEY=VALUE",
    )
    wrapper = setting(
        (),
        "Gymnasium wrapper, applied in the order given; repeatable",
        read=read_wrappers,
        metavar="MODULE:CLASS",
    )
    observe = setting(
        "all",
        "numbers of the observation that the policy receives, counted from 0, such as 0-13 or "
        "0,2,5-7; all gives it the whole observation",
        group="policy",
        form=parse_observe,
        metavar="LIST",
        follows=("env_arg", "wrapper"),
    )
    action_bound = setting(
        "clip", "how a box action is kept inside its bounds", choices=("clip", "tanh")
    )
    action_bins = setting(
        "none",
        "discretise each number of a box action, and choose the value with the largest "
        "output: uniform:K for K evenly spaced values, or custom:A,B,... from -1 (lower "
        "bound) to 1 (upper bound); none is continuous",
        form=parse_bins,
        forms=f"uniform:K for 2 to {MAX_BINS} bins, custom:a,b,... for ascending values from -1 "
        "(the lower bound) to 1 (the upper), or none",
        metavar="BINS",
    )
    action_noise = setting(
        0.0, "standard deviation of Gaussian noise added to box actions in training", low=0.0
    )
    obs_norm = setting(True, "normalise observations by their running mean and standard deviation")
    image_norm = setting(
        False, "also normalise images, and other observations of more than 4096 numbers"
    )
    obs_clip = setting(
        5.0,
        "clip normalised observations to this many standard deviations; 0 disables",
        unit="standard deviations",
        low=0.0,
    )
    obs_sample = setting(
        0.25, "fraction of slots whose observations update the statistics", low=0.0, high=1.0
    )
    step_limit = setting(
        "env",
        "step limit of training episodes: env, a number, "
        "adaptive:START,FRACTION,RATIO[,MAX], or mean:FACTOR",
        group="episodes",
        unit="steps",
        form=parse_step_limit,
        forms="env, a number of steps, adaptive:START,FRACTION,RATIO[,MAX] or mean:FACTOR",
        metavar="LIMIT",
        follows=("schedule",),
    )
    reward_shift = setting(0.0, "number subtracted from each reward before the fitness is summed")
    reward_floor = setting(
        NONE,
        "in the fitness, a reward below this number counts as this number",
        form=parse_bound,
        forms="a number or none",
        metavar="X",
    )
    patience = setting(
        NONE,
        "N,D: end a training episode when its fitness gained less than D in N steps",
        form=parse_patience,
        forms="N,D (N steps, 1 or more; a gain D, 0 or more) or none",
        metavar="N,D",
    )
    stall = setting(
        NONE,
        "I:X:N: end a training episode when |observation[I]| < X for N steps in a row",
        form=parse_stall,
        forms="I:X:N (index of an observation, a number above 0, 1 step or more) or none",
        metavar="I:X:N",
    )
    reward_clip = setting(
        False,
        "sum the signs of the rewards as fitness, as is usual for Atari games; returns stay "
        "the game's own score",
    )
    life_loss = setting(False, "end a training episode when a life is lost (Atari games)")
    eval_step_limit = setting(
        0,
        "step limit of evaluations; auto is the environment's own limit, or 10000",
        group="evaluation",
        unit="steps",
        low=0,
        word="auto",
    )
    info = setting(
        (),
        "numbers of the environment's info, by their keys, whose values at the ends of episodes "
        "are averaged and shown (docs/environments.md); auto is is_success, if the environment "
        "reports it",
        read=read_info,
        word="auto",
        metavar="NAME,NAME",
    )


class ObjectiveSettings:
    """What a run has whose problem is an objective: it observes nothing."""

    parameters = setting(0, "length of the objective's vector", group="problem", low=0, high=2**28)
    bounds = setting(
        "",
        "LOW:HIGH of each variable of the objective, joined by commas; one pair holds for all of "
        "them; in place of its attributes lower and upper",
        form=parse_bounds,
        metavar="BOUNDS",
    )
