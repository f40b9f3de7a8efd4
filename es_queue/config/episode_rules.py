"""Rules of training episodes, parsed and applied: when they end, how rewards become fitness, what
the policy observes, and the bins of its actions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from es_queue.errors import UsageError, form_error
from es_queue.text import LARGEST_WHOLE, parse_finite, parse_number_ranges, parse_whole

#: Steps of an episode if neither the environment nor the user sets a limit.
DEFAULT_LIMIT = 10_000
#: The smallest positive number: the lower bound of positive settings.
ABOVE_ZERO = math.ulp(0.0)

STEP_LIMIT_FORMS = "env, a number of steps, adaptive:START,FRACTION,RATIO[,MAX] or mean:FACTOR"
PATIENCE_FORM = "N,D (N steps, 1 or more; a gain D, 0 or more) or none"
STALL_FORM = "I:X:N (index of an observation, a number above 0, 1 step or more) or none"


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


def parse_step_limit(text: str) -> StepLimitRule:
    """Read ``env``, ``1600``, ``adaptive:init,fraction,ratio[,max]`` or ``mean:2``. Raises
    UsageError.
    """
    kind, _, rest = text.partition(":")
    try:
        if text == "env":
            return StepLimitRule("env")
        if kind == "adaptive":
            return _parse_adaptive(rest.split(","))
        if kind == "mean":
            return StepLimitRule("mean", ratio=parse_finite(rest, ABOVE_ZERO, 1000))
        return StepLimitRule("fixed", start=parse_whole(text, 1))
    except ValueError:
        raise form_error("step_limit", text, STEP_LIMIT_FORMS) from None


def _parse_adaptive(parts: list[str]) -> StepLimitRule:
    if len(parts) not in (3, 4):
        raise ValueError
    start = parse_whole(parts[0], 1)
    # A ceiling below the start would make the limit fall once and then seem to adapt.
    ceiling = parse_whole(parts[3], start) if len(parts) == 4 else None
    return StepLimitRule(
        "adaptive",
        start,
        parse_finite(parts[1], ABOVE_ZERO, 1),
        parse_finite(parts[2], 1, 1000),
        ceiling,
    )


def parse_patience(text: str) -> Patience | None:
    """Read ``N,D``, or ``none`` as None. Raises UsageError."""
    if text == "none":
        return None
    try:
        steps, gain = text.split(",")
        return Patience(parse_whole(steps, 1), parse_finite(gain, 0))
    except ValueError:
        raise form_error("patience", text, PATIENCE_FORM) from None


def parse_stall(text: str) -> Stall | None:
    """Read ``I:X:N``, or ``none`` as None. Raises UsageError."""
    if text == "none":
        return None
    try:
        index, below, steps = text.split(":")
        # A bound of zero would never hold, since |x| < 0 is false.
        return Stall(parse_whole(index, 0), parse_finite(below, ABOVE_ZERO), parse_whole(steps, 1))
    except ValueError:
        raise form_error("stall", text, STALL_FORM) from None


def parse_bound(name: str, text: str) -> float | None:
    """Read the bound ``name``, a finite number, or ``none`` as None. Raises UsageError."""
    try:
        return None if text == "none" else parse_finite(text)
    except ValueError:
        raise form_error(name, text, "a number or none") from None


def parse_target(text: str) -> float | Literal["auto", "none"]:
    """Read a finite return; ``auto`` (the environment's threshold) and ``none`` stay. Raises
    UsageError.
    """
    if text == "auto":
        return "auto"
    if text == "none":
        return "none"
    try:
        return parse_finite(text)
    except ValueError:
        raise form_error("target_reward", text, "a number, auto or none") from None


FORM = "STEPS=RETURN,STEPS=RETURN,... with rising steps, or none"
MAX_DEADLINES = 100


@dataclass(frozen=True)
class Deadline:
    """After ``steps`` counted training steps, an evaluation must have had a mean of at least
    ``least``.
    """

    steps: float
    least: float


def parse_deadlines(text: str) -> tuple[Deadline, ...]:
    """Read ``STEPS=RETURN,...``, or ``none`` as no deadlines. Raises UsageError."""
    if text == "none":
        return ()
    try:
        numbers = [tuple(map(parse_finite, part.split("="))) for part in text.split(",")]
        deadlines = tuple(Deadline(steps, least) for steps, least in numbers)
    except ValueError:
        deadlines = ()
    steps = [deadline.steps for deadline in deadlines]
    is_rising = sorted(set(steps)) == steps
    if not 0 < len(deadlines) <= MAX_DEADLINES or not is_rising or steps[0] <= 0:
        raise form_error("restart_deadlines", text, FORM)
    return deadlines


MAX_BINS = 1000
BINS_FORM = (
    f"uniform:K for 2 to {MAX_BINS} bins, custom:a,b,... for ascending values from -1 (the lower "
    "bound) to 1 (the upper), or none"
)


def parse_bins(text: str) -> tuple[float, ...]:
    """Action bins: each number of a box action is one of a few values, the one with the largest
    output (Salimans et al. 2017, section 4.1).

    The values of ``uniform:K`` or ``custom:a,b,c…`` from -1 (the lower bound) to 1 (the upper),
    ascending; () for none. Raises UsageError for anything else.
    """
    kind, _, rest = text.partition(":")
    try:
        if kind == "uniform" and 2 <= int(rest) <= MAX_BINS:
            return tuple((2 * place / (int(rest) - 1)) - 1 for place in range(int(rest)))
        if kind == "custom":
            values = tuple(float(value) for value in rest.split(","))
            if (
                2 <= len(values) <= MAX_BINS
                and values == tuple(sorted(set(values)))
                and values[0] >= -1
                and values[-1] <= 1
            ):
                return values
    except ValueError:
        pass
    if text == "none":
        return ()
    raise UsageError(f"action_bins is {text[:60]}: use {BINS_FORM}")


MOST_NUMBERS, HIGHEST_NUMBER = 2**16, 2**24


def parse_observe(text: str) -> tuple[int, ...] | None:
    """The indices in a text such as ``0-13,20``; None for ``all``. Raises UsageError."""
    if text == "all":
        return None
    try:
        return parse_number_ranges(text, "number", MOST_NUMBERS, HIGHEST_NUMBER)
    except ValueError as error:
        raise UsageError(f"observe is {text[:60]!r}: {error}, or all") from None
