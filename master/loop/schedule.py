"""The schedule: on which answers a generation closes. Synchronous here, asynchronous beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from es_queue.config.run_config import SYNC
from es_queue.numerics.return_statistics import return_statistics
from es_queue.protocol import messages
from master.collect.answer_check import AnswerChecker
from master.collect.ledger import Ledger, LedgerContext
from master.loop.learner import (
    ClosedGeneration,
    Learner,
    close_generation,
    first_returns,
    shortest_prefix,
    total_steps,
)
from master.loop.result_arrays import PrefixAccumulator
from master.loop.state import RunState


@dataclass(frozen=True)
class Opening:
    """What the ledger of a publication is made from.

    required: slots of each kind that it closes on; make_checker: of these kinds, for a state;
    opened_at: on the master's monotonic clock
    """

    state: RunState
    learner: Learner
    publication: str
    required: dict[str, int]
    make_checker: Callable[[RunState, dict[str, int]], AnswerChecker]
    context: LedgerContext
    opened_at: float


class ClosingSchedule(Protocol):
    """One run's. label: what people read of it."""

    label: str
    is_reproducible: bool

    def open(self, opening: Opening) -> Ledger:
        """The ledger of a publication."""
        ...

    def require_more(self, state: RunState, learner: Learner, ledger: Ledger) -> bool:
        """Require more slots of a complete ledger's publication, as a pure function of its
        answers; whether any.
        """
        ...

    def close(self, state: RunState, learner: Learner, ledger: Ledger) -> ClosedGeneration:
        """What was answered, in the order in which it is learnt."""
        ...


class SynchronousSchedule:
    """A generation closes when each of its slots is answered."""

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
            opened_at=opening.opened_at,
        )

    def require_more(self, state: RunState, learner: Learner, ledger: Ledger) -> bool:
        config, strategy = learner.config, learner.strategy
        if not (config.min_steps or strategy.reevaluates):
            return require_confirmation(learner, ledger)
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
            learner, ledger
        )

    def close(self, state: RunState, learner: Learner, ledger: Ledger) -> ClosedGeneration:
        config = learner.config
        return close_generation(
            ledger, config.population // learner.strategy.per_slot, config.min_steps
        )


def require_confirmation(learner: Learner, ledger: Ledger) -> bool:
    """Fresh episodes of the parameters whose evaluation has passed the target."""
    evaluation = return_statistics(first_returns(ledger.verified_results(messages.EVAL)))
    if messages.CONFIRM in ledger.required or not learner.is_target_passed(evaluation):
        return False
    ledger.require(messages.CONFIRM, ledger.checker.slot_limits[messages.CONFIRM])
    return True
