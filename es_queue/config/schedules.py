"""What happens when: rates by generation, deadlines of a search, and when a generation closes, with
the settings of the schedules ``sync`` and ``async``.

A rate's factor depends only on the generation's number. It uses plain float64 operations, so its
bits are the same everywhere, unlike those of a library's ``pow``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from es_queue.config.settings import NONE, setting
from es_queue.environments.episode_rules import parse_step_limit
from es_queue.numerics.fingerprint import power
from es_queue.text import parse_finite, parse_whole

FORMS = "constant, exponential:RATE[,LEAST], linear:END,N or piecewise:N=FACTOR,N=FACTOR,..."
LARGEST_FACTOR = 1e6
MAX_STEPS = 1000


@dataclass(frozen=True)
class RateSchedule:
    """factor: of a generation, at least 0; lowest: the smallest factor in the text"""

    factor: Callable[[int], float]
    lowest: float


@dataclass(frozen=True)
class RateFactors:
    """Those of one generation; decay: of both decays"""

    learning_rate: float = 1.0
    sigma: float = 1.0
    decay: float = 1.0


def parse_rate_schedule(text: str) -> RateSchedule:
    """Raises ValueError for text in none of FORMS."""
    kind, _, rest = text.partition(":")
    parts = rest.split(",")
    if text == "constant":
        return RateSchedule(lambda generation: 1.0, 1.0)
    if kind == "exponential" and len(parts) <= 2:
        rate, least = _parse_factor(parts[0]), _parse_factor(parts[1]) if parts[1:] else 0.0
        if 0 < rate <= 1:  # a factor that grows for ever overflows; the other forms allow growth
            return RateSchedule(lambda generation: max(least, power(rate, generation)), rate)
    if kind == "linear":  # from 1 at generation 0
        text, number = parts
        end, last = _parse_factor(text), parse_whole(number.strip(), 1)
        return RateSchedule(
            lambda generation: (
                end if generation >= last else 1.0 + (end - 1.0) * (generation / last)
            ),
            end,
        )
    if kind == "piecewise":  # 1 before the first step
        pairs = [part.split("=") for part in parts]
        steps = [(parse_whole(first.strip(), 0), _parse_factor(factor)) for first, factor in pairs]
        firsts = [first for first, _ in steps]
        if len(steps) <= MAX_STEPS and sorted(set(firsts)) == firsts:
            return RateSchedule(
                lambda generation: next(
                    (factor for first, factor in reversed(steps) if generation >= first), 1.0
                ),
                min([1.0, *(factor for _, factor in steps)]),
            )
    raise ValueError


def _parse_factor(text: str) -> float:
    return parse_finite(text, 0, LARGEST_FACTOR)


# --- deadlines

MAX_DEADLINES = 100


@dataclass(frozen=True)
class Deadline:
    """After ``steps`` counted training steps, the best evaluation must be ``least`` or more."""

    steps: float
    least: float


def parse_deadlines(text: str) -> tuple[Deadline, ...]:
    """Raises ValueError for text that is none."""
    if text == "none":
        return ()
    parts = [part.split("=") for part in text.split(",")]
    deadlines = tuple(Deadline(parse_finite(steps), parse_finite(least)) for steps, least in parts)
    steps = [deadline.steps for deadline in deadlines]
    if len(steps) > MAX_DEADLINES or sorted(set(steps)) != steps or steps[0] <= 0:
        raise ValueError
    return deadlines


# --- when a generation closes

SYNC, ASYNC = "sync", "async"
#: Fewer episodes are too little evidence to discard training.
ROLLBACK_EPISODES = 50
MOST_INDIVIDUALS = 8_000_000


class Sync:
    """A generation closes when all its results are in, so it has its own slots."""

    population_max = setting(
        0,
        "largest population that --min-steps may reach; auto is 8 times --population",
        group="search",
        low=0,
        high=MOST_INDIVIDUALS,
        word="auto",
        follows=("population", "min_steps"),
    )
    min_steps = setting(
        0,
        "add slots to a generation until its episodes have this many steps; 0 disables",
        unit="steps",
        low=0,
    )
    rollback = setting(
        False,
        "restore the best parameters, optimizer and statistics when an evaluation of at least "
        "50 episodes falls below theirs by more than two standard errors",
        group="evaluation",
    )
    restart_deadlines = setting(
        "none",
        "STEPS=RETURN,...: begin the search and its schedules again if its best evaluation is "
        "below RETURN after STEPS steps, counted from its own beginning; or none",
        form=parse_deadlines,
        forms="STEPS=RETURN,STEPS=RETURN,... with rising steps, or none",
        metavar="STEPS=RETURN,...",
        follows=("rollback",),
    )
    audit = setting(
        0.0,
        "fraction of slots that the master plays itself, to find broken hosts: the run stops if a "
        "result differs (changes no result)",
        group="machinery",
        low=0.0,
        high=1.0,
        resume=True,
        follows=("allow_nondeterministic",),
    )

    @classmethod
    def check(cls, config: Any) -> None:
        """Raises UsageError for settings of a run config that cannot be combined."""
        if config.population_max and config.population_max < config.population:
            why = f"that is below the population of {config.population}: use"
            raise config.refused("population_max", f"{why} {config.population} or more, or auto")
        if config.population_max and not config.min_steps:
            why = "only min_steps lets the population grow: set min_steps as well"
            raise config.refused("population_max", why)
        if config.audit and config.allow_nondeterministic:
            why = "allow_nondeterministic lets two correct results of a slot differ"
            raise config.refused("audit", f"{why}: leave one of the two settings out")
        if config.rollback and (config.eval_every == 0 or config.eval_episodes < ROLLBACK_EPISODES):
            raise config.refused(
                "rollback",
                f"it needs evaluations of at least {ROLLBACK_EPISODES} episodes, and eval_every is "
                f"{config.eval_every} and eval_episodes {config.eval_episodes}: set eval_episodes "
                f"to {ROLLBACK_EPISODES} or more, or leave rollback out",
            )
        if config.restart_deadlines != NONE and config.rollback:
            why = "rollback replaces searches by its own rule: leave restart_deadlines or rollback"
            raise config.refused("restart_deadlines", f"{why} out")
        if config.restart_deadlines != NONE and config.eval_every == 0:
            why = "eval_every is 0, and deadlines compare evaluations: set eval_every to 1 or more,"
            raise config.refused("restart_deadlines", f"{why} or restart_deadlines to none")


class Async:
    """A generation closes as soon as enough results of any open generation are in."""

    max_lag = setting(
        8,
        "with --schedule async: most generations by which a result may be late",
        unit="generations",
        group="search",
        low=1,
        high=100,
    )

    @classmethod
    def check(cls, config: Any) -> None:
        """As of Sync."""
        if parse_step_limit(config.step_limit).kind not in ("env", "fixed"):
            why = f"a step_limit of {config.step_limit} is adapted to whole generations"
            raise config.refused("schedule", f"{why}: use env or a number, or the schedule sync")
