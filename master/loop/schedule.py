"""The schedule: which results close a generation.

Synchronous: all of them. Asynchronous (--schedule async): no worker waits for the last episode of a
generation. The newest publication always has blocks. A batch has as many results as the population
has slots, of any open publication, in order of arrival; it is ranked and learnt from, and the next
parameters are published at once. Replaced publications stay open while a worker plays a block of
them, for at most ``max_lag`` generations. A generation that is evaluated closes with its
evaluation, as in the synchronous schedule, while training continues.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from es_queue.config.run_config import ASYNC, SYNC, RunConfig
from es_queue.errors import EnvironmentFailure
from es_queue.numerics.return_statistics import return_statistics
from es_queue.protocol import messages
from master.collect.answer_check import AnswerChecker
from master.collect.ledger import Ledger, LedgerContext, close_generation, shortest_prefix
from master.collect.publication.closed_generation import (
    ClosedGeneration,
    PrefixAccumulator,
    first_returns,
    total_steps,
)
from master.collect.publication.closing import (
    AsyncBatch,
    BatchSize,
    CarriedOver,
    PriorPublication,
    slots_of_ranges,
)
from master.loop.learner import Learner
from master.loop.state import RunState


@dataclass(frozen=True)
class Opening:
    """Inputs of a publication's ledger.

    required: slots of each kind that it closes on; make_checker: of these kinds, for a state
    """

    state: RunState
    learner: Learner
    publication: str
    required: dict[str, int]
    make_checker: Callable[[RunState, dict[str, int]], AnswerChecker]
    context: LedgerContext


class ClosingSchedule:
    """Closes a generation when each of its slots has a result. label: for display"""

    label = SYNC
    is_reproducible = True

    def open(self, opening: Opening) -> Ledger:
        training, moments = opening.required.get(messages.TRAIN), opening.state.moments
        return Ledger(
            opening.publication,
            opening.make_checker(opening.state, opening.required),
            opening.required,
            opening.context,
            prefix=None if training is None else PrefixAccumulator(moments, training),
        )

    def require_more(self, state: RunState, learner: Learner, ledger: Ledger) -> bool:
        """Require more slots of a complete publication, which depend only on its results. Returns
        whether there are any.
        """
        config, strategy = learner.config, learner.strategy
        if not (config.min_steps or strategy.reevaluates):
            return require_confirmation(state, learner, ledger)
        slots = ledger.results_in_order(messages.TRAIN)
        steps, most = total_steps(slots), ledger.checker.slot_limits.get(messages.TRAIN, 0)
        if slots and steps < config.min_steps and len(slots) < most:
            mean = max(1.0, steps / len(slots))
            missing = max(1, int(np.ceil((config.min_steps - steps) / mean)))
            ledger.require(messages.TRAIN, min(most, len(slots) + missing))
            return True
        least = config.population // strategy.per_slot
        batch = slots[: shortest_prefix(slots, least, config.min_steps)]
        candidates = learner.candidates(state, batch)
        return ledger.require_slots(messages.ELITE, candidates) or require_confirmation(
            state, learner, ledger
        )

    def close(self, state: RunState, learner: Learner, ledger: Ledger) -> ClosedGeneration:
        """The results, in the order in which they are learnt."""
        config = learner.config
        return close_generation(
            ledger, config.population // learner.strategy.per_slot, config.min_steps
        )


def require_confirmation(state: RunState, learner: Learner, ledger: Ledger) -> bool:
    """Fresh episodes of the parameters whose evaluation has passed the target."""
    if not learner.is_target_compared(state):
        return False
    evaluation = return_statistics(first_returns(ledger.results_in_order(messages.EVAL)))
    if messages.CONFIRM in ledger.required or not learner.is_target_passed(evaluation):
        return False
    ledger.require(messages.CONFIRM, ledger.checker.slot_limits[messages.CONFIRM])
    return True


ASYNC_LABEL = "async: not bit-reproducible; --replay repeats the run from its log"


class AsynchronousSchedule(ClosingSchedule):
    """A generation closes on a batch of any open publications; those without training close as in
    the synchronous schedule. The order of arrival decides what is learnt, so bits do not repeat.
    """

    label = ASYNC_LABEL
    is_reproducible = False

    def __init__(self) -> None:
        self._batch: AsyncBatch | None = None
        self._carried_over: CarriedOver | None = None
        self._failed_in_a_row = 0

    def open(self, opening: Opening) -> Ledger:
        self._batch = None
        if messages.TRAIN not in opening.required:
            return super().open(opening)
        state, strategy = opening.state, opening.learner.strategy
        carried = self._carried_over or CarriedOver(restore_open_publications(opening))
        batch, most = strategy.batch_slots(), opening.required[messages.TRAIN]
        required = {**opening.required, messages.TRAIN: max(1, batch - len(carried.unused))}
        newest = PriorPublication(
            opening.publication,
            opening.make_checker(state, required),
            state.step_limit,
            strategy.spread(state.strategy),
        )
        self._batch = AsyncBatch(newest, BatchSize(batch, most), carried)
        ledger = Ledger(
            newest.publication,
            newest.checker,
            required,
            opening.context,
            closing=self._batch,
        )
        elites = range(strategy.elite_slot_count(state.strategy, state.generation))
        ledger.require_slots(messages.ELITE, elites)
        return ledger

    def require_more(self, state: RunState, learner: Learner, ledger: Ledger) -> bool:
        return require_confirmation(state, learner, ledger)

    def close(self, state: RunState, learner: Learner, ledger: Ledger) -> ClosedGeneration:
        closed, waiting = super().close(state, learner, ledger), self._batch
        if waiting is None:
            return closed
        batch, used = waiting.take_batch()
        reevaluations, tried = waiting.take_reevaluated()
        self._failed_in_a_row = 0 if any(batch) else self._failed_in_a_row + len(batch)
        if self._failed_in_a_row >= waiting.size.most:
            raise EnvironmentFailure(
                f"every episode of a batch failed; the last was {ledger.failures.last_reason}"
            )
        kept = waiting.take_still_open(ledger.tally, state.generation + 1, learner.config.max_lag)
        self._carried_over = CarriedOver(kept, waiting.unused)
        return replace(
            closed,
            counted=batch,
            surplus=(),
            used=used,
            reevaluations=reevaluations,
            tried=tried,
            open=tuple(waiting.to_open_publication(publication) for publication in kept),
        )


def restore_open_publications(opening: Opening) -> list[PriorPublication]:
    """Reopen the older publications of a checkpoint; results that Redis has lost are gone."""
    state = opening.state
    return [
        PriorPublication(
            publication.publication,
            opening.make_checker(
                replace(
                    state, generation=publication.generation, step_limit=publication.step_limit
                ),
                {messages.TRAIN: 0},
            ),
            publication.step_limit,
            publication.spread,
            slots_of_ranges(publication.counted),
        )
        for publication in state.open
    ]


def make_schedule(config: RunConfig) -> ClosingSchedule:
    return AsynchronousSchedule() if config.schedule == ASYNC else ClosingSchedule()
