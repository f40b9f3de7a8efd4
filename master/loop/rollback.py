"""Rollback: returns to the best parameters, optimiser and statistics if an evaluation has
regressed.
"""

from __future__ import annotations

import math
from dataclasses import replace

from es_queue.config.validation import ROLLBACK_EPISODES
from es_queue.numerics.return_statistics import ReturnStatistics
from master.loop.state import RollbackPoint, RunState

#: So many standard errors of the difference of the two means; one evaluation in forty falls so far
#: by chance.
STANDARD_ERRORS = 2.0


def with_rollback_point(
    before: RunState, current: RunState, evaluation: ReturnStatistics | None
) -> RunState:
    """``current`` with the whole search kept wherever its best was replaced by this generation's
    parameters.
    """
    if evaluation is None or current.best is None or current.best is before.best:
        return current
    anchor = RollbackPoint(
        before.generation,
        before.strategy,
        before.moments,
        before.step_limit,
        evaluation.std,
        evaluation.count,
    )
    return replace(current, anchor=anchor)


def has_regressed(state: RunState, evaluation: ReturnStatistics | None) -> bool:
    """Whether an evaluation of enough episodes is below the best by more than two standard errors
    of the difference.
    """
    best, anchor = state.best, state.anchor
    if (
        evaluation is None
        or best is None
        or anchor is None
        or min(evaluation.count, anchor.count) < ROLLBACK_EPISODES
    ):
        return False
    error = math.sqrt(evaluation.std**2 / evaluation.count + anchor.std**2 / anchor.count)
    return evaluation.mean < best.eval_mean - STANDARD_ERRORS * error


def roll_back(state: RunState) -> RunState:
    """The next generation's state, with the rollback point's search."""
    anchor = state.anchor
    assert anchor is not None, "there is nothing to go back to"
    return replace(
        state,
        generation=state.generation + 1,
        strategy=anchor.strategy,
        moments=anchor.moments,
        step_limit=anchor.step_limit,
    )
