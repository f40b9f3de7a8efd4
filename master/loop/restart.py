"""Restart by deadline: ends a descent whose evaluations are too low for its number of steps, and
begins another.
"""

from __future__ import annotations

from dataclasses import replace

from es_queue.config.deadlines import Deadline
from es_queue.numerics.return_statistics import ReturnStatistics
from master.loop.state import CurrentDescent, RollbackPoint, RunState


def with_first_search(state: RunState) -> RunState:
    """The state of generation 0 with its search kept, for each descent to begin with."""
    first = RollbackPoint(
        state.generation, state.strategy, state.moments, state.step_limit, std=0.0, count=0
    )
    return replace(state, anchor=first)


def with_evaluation(state: RunState, evaluation: ReturnStatistics | None) -> RunState:
    """The state whose descent knows of an evaluation of it."""
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
    """The state of the next generation, in which another descent begins; its steps count after
    ``with_first_step``, when those of the closing generation are known.
    """
    first = state.anchor
    assert first is not None, "a run with deadlines keeps its first search"
    following = state.generation + 1
    return replace(
        state,
        generation=following,
        strategy=first.strategy,
        moments=first.moments,
        step_limit=first.step_limit,
        descent=CurrentDescent(state.descent.number + 1, following),
    )


def with_first_step(state: RunState) -> RunState:
    """The state whose descent begins with its next step."""
    return replace(state, descent=replace(state.descent, steps=state.counters.env_steps))
