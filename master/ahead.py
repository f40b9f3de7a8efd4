"""What of closing and of the next generation is done while answers are awaited: pure functions and reads, so it may also be left."""

from __future__ import annotations

from dataclasses import replace

from es_queue.sums import NoiseRows
from master.course import Course
from master.expectations import Listed, planned
from master.learn import Learner
from master.state import RunState

#: Floats of a page of memory.
PAGE = 1024
#: Once so many times the table's pages were touched, hardly one is left that was not.
ENOUGH = 4


class Ahead:
    """One run's. What is made is kept where it is made, and found there when it is asked for."""

    def __init__(self, course: Course, noise: NoiseRows) -> None:
        self._course, self._noise = course, noise
        self._untouched = ENOUGH * -(-course.config.noise_size // PAGE)

    def plan(self, state: RunState, count: int) -> None:
        """The learner and the plan of ``count`` training slots of the generation after ``state``'s."""
        following = replace(state, generation=state.generation + 1)
        plan_of(self._course.learner_at(following), following, count)

    def touch(self, state: RunState, count: int) -> None:
        """Read a float of each page of the noise that the state's generation is learnt from, while there may be pages that
        nobody has read: the sum at its end need not wait for them."""
        learner = self._course.learner_at(state)
        for column in (*range(0, learner.strategy.size, PAGE), learner.strategy.size - 1):
            if self._untouched > 0:
                self._untouched -= count
                self._noise.rows(plan_of(learner, state, count).plan.noise_indices, column, column + 1)


def plan_of(learner: Learner, state: RunState, count: int) -> Listed:
    """As the expectations of the generation ask for it."""
    return planned(learner.config, state.generation, learner.strategy.size, learner.strategy.per_slot, count)
