"""Rollback: back to the best parameters, optimiser and statistics when an evaluation says that training has gone wrong."""

from __future__ import annotations

import math
from dataclasses import replace

from es_queue.figures import Figures
from es_queue.validation import ROLLBACK_EPISODES
from master.state import Anchor, RunState

#: So many standard errors of the difference of the two means; one evaluation in forty falls so far by chance.
ERRORS = 2.0


def kept_anchor(before: RunState, judged: RunState, evaluation: Figures | None) -> RunState:
    """``judged`` with the whole search kept wherever its best was replaced by this generation's parameters."""
    if evaluation is None or judged.best is None or judged.best is before.best:
        return judged
    anchor = Anchor(before.generation, before.strategy, before.moments, before.step_limit, evaluation.std, evaluation.count)
    return replace(judged, anchor=anchor)


def fallen(judged: RunState, evaluation: Figures | None) -> bool:
    """Whether an evaluation of enough episodes is below the best by more than two standard errors of the difference."""
    best, anchor = judged.best, judged.anchor
    if evaluation is None or best is None or anchor is None or min(evaluation.count, anchor.count) < ROLLBACK_EPISODES:
        return False
    error = math.sqrt(evaluation.std**2 / evaluation.count + anchor.std**2 / anchor.count)
    return evaluation.mean < best.eval_mean - ERRORS * error


def rolled_back(judged: RunState) -> RunState:
    """The state of the next generation with the anchor's search in place of what was trained since."""
    anchor = judged.anchor
    assert anchor is not None, "there is nothing to go back to"
    return replace(judged, generation=judged.generation + 1, strategy=anchor.strategy, moments=anchor.moments, step_limit=anchor.step_limit)
