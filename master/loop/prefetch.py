"""What of closing and of the next generation is done while answers are awaited: pure functions and
reads, so it may also be left.
"""

from __future__ import annotations

from dataclasses import replace

from es_queue.numerics.ordered_sums import NoiseRows
from master.collect.answer_check import PlannedSlots, plan_slots
from master.loop.config_timeline import ConfigTimeline
from master.loop.learner import Learner
from master.loop.state import RunState

#: Floats of a page of memory.
PAGE_FLOATS = 1024
#: Once so many times the table's pages were touched, hardly one is left that was not.
TOUCHES_PER_PAGE = 4


class Prefetcher:
    """One run's. What is made is kept where it is made, and found there when it is asked for."""

    def __init__(self, timeline: ConfigTimeline, noise: NoiseRows) -> None:
        self._timeline, self._noise = timeline, noise
        self._touches_left = TOUCHES_PER_PAGE * -(-timeline.config.noise_size // PAGE_FLOATS)

    def prefetch_plan(self, state: RunState, count: int) -> None:
        """The learner and the plan of ``count`` training slots of the generation after
        ``state``'s.
        """
        next_state = replace(state, generation=state.generation + 1)
        planned_slots(self._timeline.learner_at(next_state), next_state, count)

    def prefetch_noise(self, state: RunState, count: int) -> None:
        """Read a float of each page of the noise that the state's generation is learnt from, while
        there may be pages that nobody has read: the sum at its end need not wait for them.
        """
        learner = self._timeline.learner_at(state)
        for column in (*range(0, learner.strategy.size, PAGE_FLOATS), learner.strategy.size - 1):
            if self._touches_left > 0:
                self._touches_left -= count
                self._noise.rows(
                    planned_slots(learner, state, count).plan.noise_indices, column, column + 1
                )


def planned_slots(learner: Learner, state: RunState, count: int) -> PlannedSlots:
    """As the expectations of the generation ask for it."""
    return plan_slots(
        learner.config, state.generation, learner.strategy.size, learner.strategy.per_slot, count
    )
