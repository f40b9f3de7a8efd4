"""Returns to an earlier search. Rollback: to the best parameters, optimiser and statistics if an
evaluation has regressed. Restart by deadline: if the evaluations of a descent are too low for its
number of steps, another one begins with the run's first search.
"""

from __future__ import annotations

import math
from dataclasses import replace

from es_queue.config.episode_rules import Deadline
from es_queue.config.validation import ROLLBACK_EPISODES
from es_queue.numerics.return_statistics import ReturnStatistics
from master.loop.state import CurrentDescent, RollbackPoint, RunState

#: So many standard errors of the difference of the two means; one evaluation in forty falls so far
#: by chance.
STANDARD_ERRORS = 2.0


def with_rollback_point(
    before: RunState, current: RunState, evaluation: ReturnStatistics | None
) -> RunState:
    """``current`` with the whole search kept, if its best was replaced by this generation's
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


# --- restart by deadline


def with_first_search(state: RunState) -> RunState:
    """The state of generation 0, with its search kept as the start of each descent."""
    first = RollbackPoint(
        state.generation, state.strategy, state.moments, state.step_limit, std=0.0, count=0
    )
    return replace(state, anchor=first)


def with_evaluation(state: RunState, evaluation: ReturnStatistics | None) -> RunState:
    best = state.descent.best
    if evaluation is None or (best is not None and best >= evaluation.mean):
        return state
    return replace(state, descent=replace(state.descent, best=evaluation.mean))


def is_overdue(state: RunState, deadlines: tuple[Deadline, ...]) -> bool:
    """Whether the best evaluation of the descent is below the return of a deadline
    that has passed.
    """
    steps, best = state.counters.env_steps - state.descent.steps, state.descent.best
    return best is not None and any(
        steps >= deadline.steps and best < deadline.least for deadline in deadlines
    )


def begin_descent(state: RunState) -> RunState:
    """The state of the next generation, in which another descent begins. Its steps count from
    ``with_first_step``, when those of the closing generation are known.
    """
    first = roll_back(state)
    return replace(first, descent=CurrentDescent(state.descent.number + 1, first.generation))


def with_first_step(state: RunState) -> RunState:
    """The state whose descent begins with its next step."""
    return replace(state, descent=replace(state.descent, steps=state.counters.env_steps))
