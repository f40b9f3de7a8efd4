"""The generation loop of evolution strategies (Salimans et al. 2017), over a changing set of
workers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from es_queue.config.run_config import RunConfig
from es_queue.config.scaling import format_scaling
from es_queue.errors import EnvironmentFailure
from es_queue.numerics.return_statistics import return_statistics
from es_queue.protocol import messages
from es_queue.strategies.base import NOT_FINITE
from master.collect.collector import Collector, Unserved
from master.collect.publication.closed_generation import (
    ClosedGeneration,
    first_returns,
    total_steps,
)
from master.display.format import Record, format_duration
from master.loop.config_timeline import ConfigTimeline
from master.loop.learner import Learner
from master.loop.listeners import (
    GenerationListener,
    GenerationReport,
    Outcome,
    Sink,
    SinkListener,
)
from master.loop.publisher import OpenGeneration, Publisher, RunIdentity
from master.loop.records import (
    RunTotals,
    episodes_record,
    evaluation_record,
    lag_record,
    training_record,
)
from master.loop.rollback import (
    begin_descent,
    has_regressed,
    is_overdue,
    roll_back,
    with_evaluation,
    with_first_step,
    with_rollback_point,
)
from master.loop.schedule import ClosingSchedule, make_schedule
from master.loop.state import CLOSING, FINAL, TRAINING, RunState
from master.loop.stopping import reason_to_stop

LOGGER = logging.getLogger("es_queue.loop")


@dataclass(frozen=True)
class Waiting:
    """Seconds that the results of a generation took, without pauses; and those."""

    seconds: float
    paused: float


class Loop:
    """One master's work on one run; connects learner, schedule and ledger.

    keep_going: whether the caller wants another generation; current: the open generation, None
    before the first publish
    """

    def __init__(
        self,
        timeline: ConfigTimeline,
        publisher: Publisher,
        collector: Collector,
        schedule: ClosingSchedule,
        listeners: Sequence[GenerationListener],
        keep_going: Callable[[Record], bool] = lambda _: True,
    ) -> None:
        self._timeline, self._publisher, self._collector = timeline, publisher, collector
        self._schedule, self._listeners, self._keep_going = schedule, listeners, keep_going
        self._totals = RunTotals(collector)
        self.current: OpenGeneration | None = None

    def run(self, state: RunState, adopted: str | None = None) -> Outcome:
        """Train until a budget, the target or a request ends the run, then play the final episodes.

        adopted: the publication that a former master left open for exactly this state (rule 11).
        Raises Interrupted between two reads of the results; collected results stay in Redis.
        """
        state, record = self._begin(state), dict[str, float | int | str | None]()
        while state.stage != FINAL:
            # Publish the parameters: workers play perturbations of them.
            generation = self._publish(state, record, adopted)
            adopted = None
            # Collect the results of every slot.
            waiting = self._collect(generation)
            if waiting is None:
                state, record = self._drop(generation), {}
                continue
            closed = self._schedule.close(state, generation.learner, generation.ledger)
            # Rank the fitness and update the parameters.
            report = self._learn(generation, closed, waiting)
            for listener in self._listeners:
                listener.on_generation(report)
            state, record = self._next_stage(report), report.record
        return self._play_final_episodes(state, record)

    def _begin(self, state: RunState) -> RunState:
        """Restore former masters' counts."""
        self._collector.fleet.numerics = state.numerics
        self._collector.context.recoveries.restore(state.recoveries)
        return replace(state, reproducible=state.reproducible and self._schedule.is_reproducible)

    def _publish(self, state: RunState, last: Record, adopted: str | None) -> OpenGeneration:
        began = time.monotonic()
        generation = self._publisher.publish(state, last, adopted)
        self._tell_published(generation)
        return replace(generation, seconds=time.monotonic() - began)

    def _tell_published(self, generation: OpenGeneration) -> None:
        self.current = generation
        for listener in self._listeners:
            listener.on_published(generation)

    def _collect(self, generation: OpenGeneration) -> Waiting | None:
        """Collect until every required slot has a result; None if the run's time is up before."""
        began, ledger = time.monotonic(), generation.ledger
        is_over = partial(self._is_time_up, generation.state)
        is_complete = self._collector.collect(ledger, is_over)
        while is_complete and self._schedule.require_more(
            generation.state, generation.learner, ledger
        ):
            self._collector.extend(ledger)
            is_complete = self._collector.collect(ledger, is_over)
        if not is_complete:
            return None
        paused = self._collector.pauses.take_seconds()
        return Waiting(time.monotonic() - began - paused, paused)

    def _is_time_up(self, state: RunState) -> bool:
        """Whether --max-seconds ends the open generation. Publications after training are waited
        for, unless no worker is present: then raises Unserved.
        """
        # Settings that a person has just changed, for the next generation, count at once.
        changes = (*state.changes, *self._collector.inbox.pending_changes)
        budget = self._timeline.max_seconds_at(changes, state.generation + 1)
        if not budget or self._totals.seconds(state) < budget:
            return False
        if state.stage == TRAINING:
            return True
        if self._collector.is_without_workers:
            raise Unserved
        return False

    def _drop(self, generation: OpenGeneration) -> RunState:
        state, ledger = generation.state, generation.ledger
        answered, slots = ledger.answer_counts()
        played = sum(total_steps(list(results.values())) for results in ledger.results.values())
        seconds = self._totals.seconds(state)
        if state.generation:
            LOGGER.info(
                f"--max-seconds has passed: generation {state.generation} is dropped with "
                f"{answered} of {slots} results, and training ends"
            )
        else:
            LOGGER.warning(
                f"--max-seconds has passed with {answered} of {slots} results of the first "
                f"generation{format_pace(seconds, answered, slots)}, so nothing was learnt: "
                "resume the run with more workers or a larger --max-seconds, or begin one with a "
                "smaller --population"
            )
        paused = self._collector.pauses.take_seconds()
        counters = state.add_counts(
            lost_steps=ledger.tally.lost_steps + played, seconds=self._totals.take_seconds(paused)
        )
        return replace(state, stage=CLOSING, reason="max_seconds", counters=counters)

    def _learn(
        self, generation: OpenGeneration, closed: ClosedGeneration, waiting: Waiting
    ) -> GenerationReport:
        began, learner, state = time.monotonic(), generation.learner, generation.state
        current = learner.with_best(state, closed)
        # After training has ended there is nothing to go back to: a run that is extended later
        # must not know of the evaluation of its end.
        if learner.config.rollback and state.stage == TRAINING:
            current = with_rollback_point(state, current, closed.evaluation)
        if learner.deadlines and state.stage == TRAINING:
            current = with_evaluation(current, closed.evaluation)
        has_learnt = state.stage == TRAINING and not is_confirmed(current)
        returns_to, is_finite = None, True
        after, figures = current, dict[str, float]()
        if has_learnt:
            after, figures, returns_to = self._next_search(generation, current, closed)
            is_finite = not figures.pop(NOT_FINITE, 0)
        # Those in effect, also in a generation that nothing is learnt from.
        figures["sigma"] = learner.strategy.sigma(state.strategy)
        if (rate := learner.strategy.step_rate) is not None:
            figures["learning_rate"] = rate
        fleet = self._collector.fleet
        self._collector.context.recoveries.finish_all()
        after = replace(
            after,
            counters=self._totals.count(generation, closed, waiting.paused),
            recoveries=self._collector.context.recoveries.totals(),
            reproducible=state.reproducible and fleet.is_uniform,
            numerics=fleet.numerics,
        )
        if after.descent.generation > state.generation:
            after = with_first_step(after)
        record: Record = {
            **generation.record,
            "seconds_wait": waiting.seconds,
            **lag_record(state, closed),
            **training_record(closed),
            **episodes_record(closed, learner.config.episodes),
            **evaluation_record(closed, current),
            **figures,
            "seconds_update": time.monotonic() - began,
            "failed": len(generation.ledger.failures.slots),
        }
        seconds = generation.seconds + waiting.seconds
        record |= self._totals.record(generation, after, closed, seconds)
        return GenerationReport(
            generation, closed, after, record, has_learnt, returns_to, is_finite
        )

    def _next_search(
        self, generation: OpenGeneration, current: RunState, closed: ClosedGeneration
    ) -> tuple[RunState, dict[str, float], int | None]:
        """The next generation's search, newly learnt or rolled back, under that generation's
        settings; and the generation that it returns to.
        """
        returns_to, before = None, generation.learner.strategy
        if has_regressed(current, closed.evaluation):
            returns_to = current.anchor.generation if current.anchor else 0
            after, figures = roll_back(current), {"rolled_back": float(returns_to)}
            before = self._timeline.strategy_at(after.changes, returns_to)
        elif closed.evaluation is not None and is_overdue(current, generation.learner.deadlines):
            after, returns_to = begin_descent(current), 0
            figures = {"descent": float(after.descent.number)}
            before = self._timeline.strategy_at(after.changes, returns_to)
        else:
            after, figures = generation.learner.learn(current, closed)
        changes = self._collector.inbox.take_changes()
        after = self._timeline.advance(after, changes, before)
        requested = self._timeline.config_at(after.changes, after.generation)
        if requested.scale != generation.learner.requested.scale:
            LOGGER.info(format_scaling(requested))
        return after, figures, returns_to

    def _next_stage(self, report: GenerationReport) -> RunState:
        """Training continues, or its last parameters are evaluated, or the final episodes
        are played.
        """
        state = report.after
        validate_patience(state, report.generation.learner.config)
        if is_confirmed(state):
            return replace(state, stage=FINAL, reason="target")
        if state.stage == CLOSING:
            return replace(state, stage=FINAL)
        if not self._keep_going(dict(report.record)):
            return replace(state, stage=CLOSING, reason="stopped by the caller")
        reason = reason_to_stop(self._timeline.config_at(state.changes, state.generation), state)
        return replace(state, stage=CLOSING, reason=reason) if reason else state

    def _play_final_episodes(self, state: RunState, record: Record) -> Outcome:
        learner = self._timeline.learner_at(state)
        best = state.best or learner.best_policy(state, float("nan"))
        generation = self._publisher.publish_final(state, best, record)
        self._tell_published(generation)
        self._collector.collect(generation.ledger, partial(self._is_time_up, state))
        returns = first_returns(generation.ledger.results_in_order(messages.FINAL))
        outcome = Outcome(state, best, return_statistics(returns), generation.digest)
        for listener in self._listeners:
            listener.on_finished(generation, outcome)
        return outcome


def format_pace(seconds: float, answered: int, slots: int) -> str:
    """How long a whole generation takes; empty if it has no result yet."""
    if not answered:
        return ""
    return f" (a generation takes about {format_duration(seconds * slots / answered)})"


def is_confirmed(state: RunState) -> bool:
    return state.best is not None and state.best.confirmed


def validate_patience(state: RunState, config: RunConfig) -> None:
    """Stop with an error if rewards are never positive, because patience then always ends every
    episode at step N.
    """
    if config.patience != "none" and state.counters.patience_generations >= 20:
        raise EnvironmentFailure(
            f"patience {config.patience} ended every episode of 20 generations; if rewards "
            "are never positive, all end at the same step: drop --patience or use --reward-shift"
        )


def make_loop(
    identity: RunIdentity,
    learner: Learner,
    collector: Collector,
    sink: Sink,
    listeners: Sequence[GenerationListener] = (),
    keep_going: Callable[[Record], bool] = lambda _: True,
) -> Loop:
    """The loop of a run, under its schedule. ``listeners`` are called before ``sink``."""
    timeline, schedule = ConfigTimeline(learner), make_schedule(learner.config)
    publisher = Publisher(identity, timeline, collector, schedule)
    listeners = (*listeners, SinkListener(sink))
    return Loop(timeline, publisher, collector, schedule, listeners, keep_going)
