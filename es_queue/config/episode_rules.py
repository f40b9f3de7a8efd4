"""Rules of training episodes, parsed and applied: when they end, how rewards become fitness, what
the policy observes, and the bins of its actions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import wraps
from typing import Literal, TypeVar

from es_queue.errors import UsageError, form_error
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
        """The limit of the next generation, in steps.

        It depends only on the current limit and on the lengths (steps) of the generation's counted
        episodes, in any order. It does not change without episodes.
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


def evaluation_rules(limit: int) -> EpisodeRules:
    """The rules of an evaluation: the environment's own rewards and ends, and ``limit`` steps."""
    return EpisodeRules(limit)


T = TypeVar("T")


def _reads(name: str, forms: str) -> Callable[[Callable[[str], T]], Callable[[str], T]]:
    """Makes the ValueError of a parser a UsageError that names the setting and its forms."""

    def decorate(read: Callable[[str], T]) -> Callable[[str], T]:
        @wraps(read)
        def parse(text: str) -> T:
            try:
                return read(text)
            except ValueError:
                raise form_error(name, text, forms) from None

        return parse

    return decorate


@_reads("step_limit", "env, a number of steps, adaptive:START,FRACTION,RATIO[,MAX] or mean:FACTOR")
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


@_reads("patience", "N,D (N steps, 1 or more; a gain D, 0 or more) or none")
def parse_patience(text: str) -> Patience | None:
    if text == "none":
        return None
    steps, gain = text.split(",")
    return Patience(parse_whole(steps, 1), parse_finite(gain, 0))


@_reads("stall", "I:X:N (index of an observation, a number above 0, 1 step or more) or none")
def parse_stall(text: str) -> Stall | None:
    if text == "none":
        return None
    index, below, steps = text.split(":")
    # A bound of zero would never hold, since |x| < 0 is false.
    return Stall(parse_whole(index, 0), parse_finite(below, ABOVE_ZERO), parse_whole(steps, 1))


def parse_bound(name: str, text: str) -> float | None:
    """Read the bound ``name``, a finite number, or ``none`` as None. Raises UsageError."""
    try:
        return None if text == "none" else parse_finite(text)
    except ValueError:
        raise form_error(name, text, "a number or none") from None


@_reads("target_reward", "a number, auto or none")
def parse_target(text: str) -> float | Literal["auto", "none"]:
    """A finite return; ``auto`` (the environment's threshold) and ``none`` stay."""
    if text == "auto":
        return "auto"
    return "none" if text == "none" else parse_finite(text)


MAX_DEADLINES = 100


@dataclass(frozen=True)
class Deadline:
    """After ``steps`` counted training steps, an evaluation must have had a mean of at least
    ``least``.
    """

    steps: float
    least: float


@_reads("restart_deadlines", "STEPS=RETURN,STEPS=RETURN,... with rising steps, or none")
def parse_deadlines(text: str) -> tuple[Deadline, ...]:
    if text == "none":
        return ()
    parts = [part.split("=") for part in text.split(",")]
    deadlines = tuple(Deadline(parse_finite(steps), parse_finite(least)) for steps, least in parts)
    steps = [deadline.steps for deadline in deadlines]
    if len(steps) > MAX_DEADLINES or sorted(set(steps)) != steps or steps[0] <= 0:
        raise ValueError
    return deadlines


MAX_BINS = 1000


@_reads(
    "action_bins",
    f"uniform:K for 2 to {MAX_BINS} bins, custom:a,b,... for ascending values from -1 (the lower "
    "bound) to 1 (the upper), or none",
)
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
    """The indices in a text such as ``0-13,20``; None for ``all``. Raises UsageError."""
    if text == "all":
        return None
    try:
        return parse_number_ranges(text, "number", MOST_NUMBERS, HIGHEST_NUMBER)
    except ValueError as error:
        raise UsageError(f"observe is {text[:60]!r}: {error}, or all") from None


def parse_bounds(name: str, text: str) -> list[tuple[float, float]]:
    """The (lowest, highest) pairs of the setting ``name``, ``LOW:HIGH,…``. Raises UsageError."""
    bounds = []
    for part in text.split(","):
        try:
            low, high = map(float, part.split(":"))
        except ValueError:
            low = high = math.nan
        if not (low < high and math.isfinite(high - low)):
            raise UsageError(
                f"{name} is {text!r}: use LOW:HIGH, for each number or once for all, joined by "
                "commas, such as -1:1,0:300"
            )
        bounds.append((low, high))
    return bounds
