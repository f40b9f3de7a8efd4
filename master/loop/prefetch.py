"""Optional work of closing and of the next generation, done while waiting for results."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from es_queue.config.run_config import RunConfig
from master.collect.answer_check import PlannedSlots, ResultShape, plan_slots
from master.loop.config_timeline import ConfigTimeline
from master.loop.learner import Learner
from master.loop.state import RunState

#: Floats of a page of memory.
PAGE_FLOATS = 1024
#: Once so many times the table's pages were touched, hardly one is left that was not.
TOUCHES_PER_PAGE = 4


class PlanRequest(NamedTuple):
    """The plan of a generation's first ``slots`` training slots."""

    config: RunConfig
    generation: int
    shape: ResultShape
    slots: int


class Prefetcher:
    """One run's. It keeps the plan that it has made last until somebody takes it."""

    def __init__(self, timeline: ConfigTimeline) -> None:
        self._timeline, self._noise = timeline, timeline.base.noise
        self._touches_left = TOUCHES_PER_PAGE * -(-timeline.config.noise_size // PAGE_FLOATS)
        self._made: tuple[PlanRequest, PlannedSlots] | None = None

    def prefetch_plan(self, state: RunState, shape: ResultShape, count: int) -> None:
        """The plan of ``count`` training slots of the generation after ``state``'s."""
        after = replace(state, generation=state.generation + 1)
        request = PlanRequest(
            self._timeline.learner_at(after).config, after.generation, shape, count
        )
        self._made = request, plan_slots(*request)

    def plan(self, request: PlanRequest) -> PlannedSlots:
        """The plan, prefetched or made now."""
        if self._made is not None and self._made[0] == request:
            return self._made[1]
        return plan_slots(*request)

    def prefetch_noise(self, learner: Learner, planned: PlannedSlots) -> None:
        """Read a float of each page of the noise that a generation of this plan is learnt from,
        while there may be pages that nobody has read: the sum at its end need not wait for them.
        """
        for column in (*range(0, learner.strategy.size, PAGE_FLOATS), learner.strategy.size - 1):
            if self._touches_left > 0:
                self._touches_left -= len(planned.seeds)
                self._noise.rows(planned.plan.noise_indices, column, column + 1)
