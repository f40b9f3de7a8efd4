"""The asynchronous schedule (--schedule async): nobody waits for the last episode of a generation.

The newest publication always has blocks. A batch is as many answers as a population has slots, of
whatever open publication, in the order in which they came; it is ranked and learnt from, and the
next parameters are published at once. Replaced publications stay open while somebody plays a block
of them, up to ``max_lag`` generations. A generation that is to be evaluated closes with its
evaluation in hand, as in the synchronous schedule; training goes on meanwhile.
"""

from __future__ import annotations

from dataclasses import replace

from es_queue.config.run_config import ASYNC, RunConfig
from es_queue.errors import EnvironmentFailure
from es_queue.protocol import messages
from es_queue.strategies.capabilities import hooks
from master.collect.async_ledger import (
    AsyncLedger,
    BatchSize,
    CarriedOver,
    PriorPublication,
    slots_of_ranges,
)
from master.collect.ledger import Ledger
from master.loop.learner import ClosedGeneration, Learner
from master.loop.schedule import ClosingSchedule, Opening, SynchronousSchedule, require_confirmation
from master.loop.state import RunState

ASYNC_LABEL = "async: not bit-reproducible, --replay repeats it from its log"


class AsynchronousSchedule:
    """A generation closes on a batch of any open publications. Those without training close as in
    the synchronous schedule. Who came first decides what is learnt, so no bits are promised.
    """

    label = ASYNC_LABEL
    is_reproducible = False

    def __init__(self) -> None:
        self._whole = SynchronousSchedule()
        self._batch_ledger: AsyncLedger | None = None
        self._carried_over: CarriedOver | None = None
        self._failed_in_a_row = 0

    def open(self, opening: Opening) -> Ledger:
        self._batch_ledger = None
        if messages.TRAIN not in opening.required:
            return self._whole.open(opening)
        state, strategy = opening.state, opening.learner.strategy
        carried = self._carried_over or CarriedOver(restore_open_publications(opening))
        batch, most = hooks.batch_slots(strategy), opening.required[messages.TRAIN]
        required = {**opening.required, messages.TRAIN: max(1, batch - len(carried.unused))}
        newest = PriorPublication(
            opening.publication,
            opening.make_checker(state, required),
            state.step_limit,
            hooks.spread(strategy, state.strategy),
        )
        ledger = AsyncLedger(
            newest,
            required,
            BatchSize(batch, most),
            carried,
            opening.context,
            opening.opened_at,
        )
        elites = range(hooks.elite_slot_count(strategy, state.strategy, state.generation))
        ledger.require_slots(messages.ELITE, elites)
        self._batch_ledger = ledger
        return ledger

    def require_more(self, state: RunState, learner: Learner, ledger: Ledger) -> bool:
        return require_confirmation(learner, ledger)

    def close(self, state: RunState, learner: Learner, ledger: Ledger) -> ClosedGeneration:
        closed, batch_ledger = self._whole.close(state, learner, ledger), self._batch_ledger
        if batch_ledger is None:
            return closed
        batch, used = batch_ledger.take_batch()
        reevaluations, tried = batch_ledger.take_reevaluated()
        self._failed_in_a_row = 0 if any(batch) else self._failed_in_a_row + len(batch)
        if self._failed_in_a_row >= batch_ledger.most:
            raise EnvironmentFailure(
                f"every episode of a batch failed; the last was {ledger.last_reason}"
            )
        kept = batch_ledger.take_still_open(state.generation + 1, learner.config.max_lag)
        self._carried_over = CarriedOver(kept, batch_ledger.unused)
        return replace(
            closed,
            counted=batch,
            surplus=(),
            used=used,
            reevaluations=reevaluations,
            tried=tried,
            open=tuple(batch_ledger.to_open_publication(publication) for publication in kept),
        )


def restore_open_publications(opening: Opening) -> list[PriorPublication]:
    """The older publications that a checkpoint names; what Redis has lost of them is gone."""
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
    """The schedule of a run's settings."""
    return AsynchronousSchedule() if config.schedule == ASYNC else SynchronousSchedule()
