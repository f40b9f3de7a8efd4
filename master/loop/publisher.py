"""Publishing a generation: its parameters, the blocks of its slots, and the run's checkpoint."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from es_queue.config.episode_rules import evaluation_limit
from es_queue.config.run_config import RunConfig
from es_queue.numerics.arrays import Floats
from es_queue.numerics.normalization import FrozenStatistics
from es_queue.numerics.slot_plan import max_slots
from es_queue.protocol import messages
from es_queue.protocol.channel import PublishRequest
from es_queue.protocol.messages import Task, token_number
from es_queue.strategies.base import Strategy
from master.collect.answer_check import (
    AnswerChecker,
    PlannedSlots,
    ResultShape,
    plan_slots,
)
from master.collect.collector import Collector
from master.collect.ledger import Ledger
from master.display.format import Record, format_values
from master.loop.config_timeline import ConfigTimeline, format_changes
from master.loop.learner import Learner
from master.loop.schedule import ClosingSchedule, Opening
from master.loop.state import CLOSING, FINAL, TRAINING, Best, RunState, vector_digest
from master.storage import checkpoint

REDIS_CHECKPOINT_BYTES = 8 * 2**20
REDIS_CHECKPOINT_EVERY = 10
#: Redis takes no larger value (proto-max-bulk-len); such a checkpoint is only in the run's folder.
REDIS_CHECKPOINT_MOST = 2**29
#: Floats of a page of memory.
PAGE_FLOATS = 1024
#: Once so many times the table's pages were touched, hardly one is left that was not.
TOUCHES_PER_PAGE = 4


@dataclass(frozen=True)
class RunIdentity:
    """run: its id; token: the fencing token of this master; noise: digest of the noise table"""

    run: str
    token: str
    noise: str


@dataclass(frozen=True)
class OpenGeneration:
    """A published generation.

    vector: the parameters that workers perturb; digest: of the run's parameters; checkpoint: of the
    state; seconds: duration of publishing
    """

    state: RunState
    learner: Learner
    ledger: Ledger
    task: Task
    vector: Floats
    digest: str
    checkpoint: bytes
    seconds: float

    @property
    def record(self) -> Record:
        number = self.state.generation
        changes = [change for change in self.state.changes if change.generation == number]
        return {
            "generation": number,
            "publication": self.ledger.publication,
            "digest": self.digest,
            "bytes_published": 4 * len(self.vector),
            "seconds_publish": self.seconds,
            "step_limit": self.state.step_limit,
            "changed": format_changes(changes) or None,
        }


class PlanRequest(NamedTuple):
    """The plan of a generation's first ``slots`` training slots."""

    config: RunConfig
    generation: int
    shape: ResultShape
    slots: int


class Prefetcher:
    """Keeps the newest plan until it is used."""

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
        if self._made is not None and self._made[0] == request:
            return self._made[1]
        return plan_slots(*request)

    def prefetch_noise(self, learner: Learner, planned: PlannedSlots) -> None:
        """Read a float of each page of the noise that this plan needs, while pages may be unread,
        so that the final sum need not wait for them.
        """
        for column in (*range(0, learner.strategy.size, PAGE_FLOATS), learner.strategy.size - 1):
            if self._touches_left > 0:
                self._touches_left -= len(planned.seeds)
                self._noise.rows(planned.plan.noise_indices, column, column + 1)


class Publisher:
    """``publish`` and ``publish_final`` return once workers can play."""

    def __init__(
        self,
        identity: RunIdentity,
        timeline: ConfigTimeline,
        collector: Collector,
        schedule: ClosingSchedule,
    ) -> None:
        self._identity, self._timeline, self._collector = identity, timeline, collector
        self._schedule = schedule
        self._prefetcher = Prefetcher(timeline)
        self._last_number = -1

    def publish(self, state: RunState, last: Record, adopted: str | None = None) -> OpenGeneration:
        """Publish the generation of a state. last: the record of the previous one; adopted: the
        publication that a former master left open for exactly this state.
        """
        learner = self._timeline.learner_at(state)
        strategy, statistics = learner.strategy, state.statistics(learner.config.obs_clip)
        vector = strategy.published(state.strategy)
        identified = strategy.digest_input(state.strategy, vector)
        generation = self._open(state, learner, vector, statistics, identified, last, adopted)
        self._prefetch(generation)
        return generation

    def _prefetch(self, generation: OpenGeneration) -> None:
        learner, checker = generation.learner, generation.ledger.checker
        if count := checker.slot_limits.get(messages.TRAIN, 0):
            prefetcher, shape = self._prefetcher, result_shape(learner)
            self._collector.idle_work.extend(
                (
                    partial(prefetcher.prefetch_plan, generation.state, shape, count),
                    partial(prefetcher.prefetch_noise, learner, checker.plan),
                )
            )

    def publish_final(self, state: RunState, best: Best, last: Record) -> OpenGeneration:
        learner = self._timeline.learner_at(state)
        chosen = np.zeros_like(learner.strategy.published(state.strategy))
        chosen[: len(best.parameters)] = best.parameters
        identified = learner.strategy.digest_input(
            state.strategy, learner.strategy.published(state.strategy)
        )
        statistics = FrozenStatistics(best.mean, best.std, learner.config.obs_clip)
        return self._open(state, learner, chosen, statistics, identified, last)

    def _open(
        self,
        state: RunState,
        learner: Learner,
        vector: Floats,
        statistics: FrozenStatistics,
        identified: Floats,
        last: Record,
        adopted: str | None = None,
    ) -> OpenGeneration:
        """``identified``: input of the run's digest, if not ``vector``."""
        collector, data = self._collector, vector.astype("<f4").tobytes()
        own_digest = vector_digest(vector)
        digest = own_digest if identified is vector else vector_digest(identified)
        # The final episodes are published after the closing generation, so under the next number.
        # A closing generation may replace a dropped one, and no publication's name is used twice;
        # its evaluation has the seeds of that number.
        number = max(state.generation + (state.stage == FINAL), self._last_number + 1)
        self._last_number = number
        task = Task(
            adopted or f"{number}.{self._identity.token}",
            learner.strategy.sigma(state.strategy),
            state.step_limit,
            len(vector),
            own_digest,
            statistics.mean.astype("<f4").tobytes(),
            statistics.std.astype("<f4").tobytes(),
            self._identity.noise,
            collector.leave_poll_seconds(),
        )
        ledger = self._schedule.open(
            Opening(
                replace(state, generation=number) if state.stage == CLOSING else state,
                learner,
                task.publication,
                required_slots(state, learner),
                partial(self._make_checker, learner),
                collector.context,
            )
        )
        saved = self._encode_checkpoint(state)
        is_small = len(saved) <= REDIS_CHECKPOINT_BYTES
        request = PublishRequest(
            task.publication,
            task.encode(),
            (),
            learner.requested.to_json(),
            self._progress_fields(state, learner, digest, last),
            format_values(last) if last else None,
            for_redis(saved)
            if is_small or state.generation % REDIS_CHECKPOINT_EVERY == 0
            else None,
        )
        scale = learner.requested.scale
        collector.open(ledger, request, data, adopted=adopted is not None, scale=scale)
        collector.inbox.acknowledge_changes()
        return OpenGeneration(state, learner, ledger, task, vector, digest, saved, 0.0)

    def _make_checker(
        self, learner: Learner, state: RunState, required: dict[str, int]
    ) -> AnswerChecker:
        strategy, spec = learner.strategy, learner.spec
        kinds = set(required)
        if messages.EVAL in required and learner.target is not None:
            kinds.add(messages.CONFIRM)
        if messages.TRAIN in required and strategy.reevaluates:
            kinds.add(messages.ELITE)
        most = {
            **max_slots(learner.config, strategy.per_slot),
            messages.CENTRE: strategy.max_centres,
        }
        limits = {kind: count for kind, count in most.items() if kind in kinds}
        shape, count = result_shape(learner), max(1, limits.get(messages.TRAIN, 0))
        steps = (state.step_limit, evaluation_limit(learner.config, spec))
        plan = self._prefetcher.plan(PlanRequest(learner.config, state.generation, shape, count))
        return AnswerChecker(learner.config, state.generation, shape, limits, steps, plan)

    def _encode_checkpoint(self, state: RunState) -> bytes:
        strategy = self._timeline.learner_at(state).strategy
        return checkpoint.encode(
            self._timeline.config,
            self._timeline.base.spec,
            self._identity.run,
            replace(state, epoch=token_number(self._identity.token), noise=self._identity.noise),
            strategy.centre(strategy.published(state.strategy)),
        )

    def _progress_fields(
        self, state: RunState, learner: Learner, digest: str, last: Record
    ) -> Mapping[str, str]:
        renamed = {f"reward_{name}": last.get(f"return_{name}") for name in ("mean", "max")}
        changes = format_changes(
            change for change in state.changes if change.generation <= state.generation
        )
        last_evaluation = state.last_evaluation
        fields = {
            **{name: value for name, value in last.items() if name != "publication"},
            **renamed,
            "changed": changes.rpartition("; ")[2],
            "origin": state.origin,
            **self._collector.inbox.progress_fields(),
            "stage": state.stage,
            "env": learner.config.task,
            "strategy": learner.config.strategy,
            "schedule": self._schedule.label,
            "noise": self._identity.noise,
            "eval_mean": last.get("eval_mean") if last_evaluation is None else last_evaluation,
            "digest": digest,
            "generation": state.generation,
            "updated": f"{time.time():.3f}",
        }
        return format_values(fields)


def for_redis(saved: bytes) -> bytes | None:
    """A checkpoint, unless it is too large for Redis."""
    return saved if len(saved) <= REDIS_CHECKPOINT_MOST else None


def result_shape(learner: Learner) -> ResultShape:
    strategy, spec = learner.strategy, learner.spec
    behaviour = spec.behaviour_size if strategy.wants_behaviour else 0
    return ResultShape(strategy.size, strategy.per_slot, spec.observation_size, behaviour)


def required_slots(state: RunState, learner: Learner) -> dict[str, int]:
    """Slots of each kind that a generation closes on; evaluation first, so that it does not end
    last.
    """
    config, strategy = learner.config, learner.strategy
    if state.stage == FINAL:
        return {messages.FINAL: config.final_episodes}
    evaluation = learner.is_evaluation_due(state)
    required = {messages.EVAL: config.eval_episodes} if evaluation else {}
    if state.stage == TRAINING:
        required[messages.CENTRE] = strategy.centre_count(state.strategy)
        required[messages.TRAIN] = config.population // strategy.per_slot
    return required


def run_digest(state: RunState, strategy: Strategy) -> str:
    return vector_digest(strategy.digest_input(state.strategy, strategy.published(state.strategy)))
