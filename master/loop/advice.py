"""What to try when a run has stopped improving, said once."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from es_queue.config.run_config import RunConfig
from es_queue.protocol.messages import EVAL
from es_queue.slot_plan import resolve_seed_sharing
from es_queue.strategies.base import Strategy
from master.loop.learner import evaluation_of
from master.loop.listeners import Listener, Report

LOGGER = logging.getLogger("es_queue.loop")
#: A run has stopped improving after so many evaluations and generations without a better one, if
#: they are half of all its evaluations.
LEAST_EVALUATIONS, LEAST_GENERATIONS = 20, 100
MOST_HINTS = 3
PAGE = 'docs/troubleshooting.md has more under "My environment does not learn"'

#: Generation, mean and standard deviation of each evaluation.
Evaluations = Sequence[tuple[int, float, float]]


class ProgressNote(Listener):
    """Says once that evaluations no longer rise, and what is most likely to help."""

    def __init__(self) -> None:
        self._evaluations: list[tuple[int, float, float]] = []
        self._is_said = False

    def on_generation(self, report: Report) -> None:
        figures = evaluation_of(report.generation.slots, EVAL)
        if self._is_said or figures is None:
            return
        learner, number = report.generation.learner, report.generation.state.generation
        self._evaluations.append((number, figures.mean, figures.std))
        best = find_plateau(self._evaluations, learner.target)
        if best is not None:
            self._is_said = True
            hints = "; ".join(choose_hints(learner.config, learner.strategy))
            LOGGER.warning(
                f"no evaluation has been better than generation {best[0]}'s ({best[1]:g}) for "
                f"{number - best[0]} generations. What helps most often: {hints}. {PAGE}"
            )


def find_plateau(evaluations: Evaluations, target: float | None) -> tuple[int, float] | None:
    """Generation and mean of the best evaluation, if none has been better for long; None if the
    target is reached, or all episodes of the best one had the same return: it is probably the
    highest.
    """
    place = max(range(len(evaluations)), key=lambda number: evaluations[number][1])
    number, mean, deviation = evaluations[place]
    since = len(evaluations) - 1 - place
    is_long = since >= LEAST_EVALUATIONS and 2 * since >= len(evaluations)
    is_long &= evaluations[-1][0] - number >= LEAST_GENERATIONS
    is_solved = deviation == 0 or (target is not None and mean >= target)
    return (number, mean) if is_long and not is_solved else None


def choose_hints(config: RunConfig, strategy: Strategy) -> list[str]:
    """The most likely remedies first, without those that the run has already."""
    hints = []
    if config.env and config.policy == "linear":
        if not getattr(config, "biases", True):
            hints.append("a bias (--biases)")
        hints.append("a layer (--policy mlp --hidden 16)")
    if config.env and resolve_seed_sharing(config, strategy.per_slot) == "generation":
        hints.append("an environment seed for each individual (--env-seeds slot)")
    if config.env and not config.obs_norm:
        hints.append("observation normalisation (without --no-obs-norm)")
    hints.append("a reward that rises with each improvement, of about the size 1 per step")
    hints.append("a larger population, or another --sigma")
    return hints[:MOST_HINTS]
