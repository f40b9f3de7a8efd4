"""The generation loop: publish → collect → rank → update → publish."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np

from es_queue.config.episode_rules import evaluation_limit
from es_queue.config.run_config import SYNC, RunConfig
from es_queue.errors import RunFolderError
from es_queue.numerics.fingerprint import bytes_digest
from es_queue.numerics.return_statistics import ReturnStatistics, return_statistics
from es_queue.numerics.slot_plan import max_slots
from es_queue.protocol import messages
from es_queue.protocol.channel import MasterChannel, PublishRequest
from es_queue.protocol.messages import Task
from master.collect.collector import Collector, Interrupted
from master.collect.ledger import AnswerChecker, Ledger
from master.collect.observation_limits import ObservationLimits
from master.loop.config_timeline import ConfigTimeline, format_changes
from master.loop.learner import (
    ClosedGeneration,
    Learner,
    Record,
    close_generation,
    episodes_record,
    evaluation_record,
    first_returns,
    is_all_at_patience,
    shortest_prefix,
    total_steps,
    training_record,
)
from master.loop.messages import (
    evaluation_fields,
    format_values,
    remaining_seconds,
    validate_patience,
    vector_digest,
)
from master.loop.prefetch import Prefetcher
from master.loop.result_arrays import PrefixAccumulator
from master.loop.rollback import has_regressed, roll_back, with_rollback_point
from master.loop.state import CLOSING, FINAL, TRAINING, Best, Counters, Floats, RunState
from master.run.stopping import reason_to_stop
from master.storage import checkpoint
from master.storage.replay_log import ReplayLog, ReplayStep
from master.storage.slot_files import SlotFiles

__all__ = ["Interrupted", "Loop", "Outcome", "vector_digest"]

REDIS_CHECKPOINT_BYTES = 8 * 2**20
REDIS_CHECKPOINT_EVERY = 10
LEAST_SECONDS_BETWEEN_SAVES = 5.0


class Sink(Protocol):
    """Who hears of the run: the console, the files, Python's callback."""

    def generation(self, record: Record) -> None: ...

    def live(self, figures: Record) -> None: ...

    def note(self, text: str) -> None: ...


@dataclass(frozen=True)
class Outcome:
    """How a run ended. evaluation: the final one, the only figure to quote."""

    state: RunState
    best: Best
    evaluation: ReturnStatistics | None
    digest: str


class Loop:
    """One master's work on one run. Everything that decides is in ``Learner`` and ``Ledger``; this
    gives it order.
    """

    def __init__(
        self,
        channel: MasterChannel,
        learner: Learner,
        token: str,
        noise_digest: str,
        collector: Collector,
        sink: Sink,
        checkpoints: checkpoint.Checkpoints | None,
        keep_going: Callable[[Record], bool] = lambda _: True,
        log: ReplayLog | None = None,
        slot_files: SlotFiles | None = None,
    ) -> None:
        self._replay_log, self._slot_files = log, slot_files
        self._channel, self._learner, self._token, self._noise_digest = (
            channel,
            learner,
            token,
            noise_digest,
        )
        self._collector, self._sink, self._checkpoints = collector, sink, checkpoints
        self._keep_going = keep_going
        self._timeline = ConfigTimeline(learner)
        self._prefetcher = Prefetcher(self._timeline, learner.noise)
        self._slot_limits = {
            **max_slots(learner.config, learner.strategy.per_slot),
            messages.CENTRE: learner.strategy.max_centres,
        }
        self._config: RunConfig = learner.config
        self._record: Record = {}
        self._paused_seconds = 0.0
        self._last_saved = 0.0
        self._saved_best: Best | None = None
        self._last_clock = time.monotonic()
        self._current: tuple[RunState, bytes] | None = None

    def run(self, state: RunState, adopted: str | None = None) -> Outcome:
        """Train until a budget, the target or a person ends it, then play the chosen parameters'
        final episodes.

        adopted: the publication that a former master left open for exactly this state (rule 11).
        Raises Interrupted between two looks at the results; what is collected so far stays in
        Redis.
        """
        self._collector.fleet.restore(state.numerics, self._channel.progress_field("quarantined"))
        self._collector.recoveries.restore(state.recoveries)
        if self._replay_log is not None:
            self._learner = self._timeline.learner_at(state)
            self._replay_log.begin(state, self._encode_checkpoint(state))
        while state.stage != FINAL:
            ledger = self._open(state, adopted)
            adopted = None
            self._collect(state, ledger)
            state = self._close(state, ledger)
        return self._play_final_episodes(state)

    # --- publish

    def _open(self, state: RunState, adopted: str | None) -> Ledger:
        """Publish the generation: parameters, and the blocks of its evaluation, its centre and its
        slots.
        """
        began = time.monotonic()
        self._learner = self._timeline.learner_at(state)
        self._config = self._learner.config
        vector = self._learner.strategy.published(state.strategy)
        statistics = state.statistics(self._config.obs_clip)
        required = self._required_slots(state)
        digest = vector_digest(self._learner.strategy.digest_input(state.strategy, vector))
        ledger = self._publish(
            state, vector, digest, statistics.mean, statistics.std, required, adopted
        )
        self._record = {
            "generation": state.generation,
            "publication": ledger.publication,
            "digest": digest,
            "bytes_published": 4 * len(vector),
            "seconds_publish": time.monotonic() - began,
            "step_limit": state.step_limit,
            "changed": format_changes(
                change for change in state.changes if change.generation == state.generation
            )
            or None,
        }
        return ledger

    def _required_slots(self, state: RunState) -> dict[str, int]:
        """Slots of each kind that the generation closes on; evaluation first, so that it costs no
        tail.
        """
        required = (
            {messages.EVAL: self._config.eval_episodes}
            if self._learner.is_evaluation_due(state)
            else {}
        )
        if state.stage == TRAINING:
            required[messages.CENTRE] = self._learner.strategy.centre_count(state.strategy)
            required[messages.TRAIN] = self._config.population // self._learner.strategy.per_slot
        return required

    def _publish(
        self,
        state: RunState,
        published: Floats,
        digest: str,
        mean: Floats,
        std: Floats,
        required: dict[str, int],
        adopted: str | None = None,
        replacement: Floats | None = None,
    ) -> Ledger:
        """``published``: what the state's strategy publishes, with the run's digest;
        ``replacement`` goes out in its place.
        """
        # The final episodes are published after the closing generation, so under the next number.
        publication = adopted or f"{state.generation + (state.stage == FINAL)}.{self._token}"
        data = (published if replacement is None else replacement).astype("<f4").tobytes()
        whole = (
            replacement is None
            and self._learner.strategy.digest_input(state.strategy, published) is published
        )
        task = Task(
            publication,
            self._learner.strategy.sigma(state.strategy),
            state.step_limit,
            len(published),
            digest if whole else bytes_digest(data),
            mean.astype("<f4").tobytes(),
            std.astype("<f4").tobytes(),
            self._noise_digest,
            self._collector.leave_poll_seconds(),
        )
        opened_at = self._collector.opening_time(adopted=adopted is not None)
        ledger = self._make_ledger(state, publication, required, opened_at)
        saved = self._encode_checkpoint(state)
        often = (
            len(saved) <= REDIS_CHECKPOINT_BYTES or state.generation % REDIS_CHECKPOINT_EVERY == 0
        )
        request = PublishRequest(
            publication,
            task.encode(),
            (),
            self._config.to_json(),
            self._progress_fields(state, digest),
            self._history_fields(),
            saved if often else None,
        )
        self._collector.open(ledger, request, data, adopted=adopted is not None)
        if self._collector.verification is not None:
            self._collector.verification.begin(
                request.task, data, partial(self._learner.weighs, state)
            )
        self._collector.inbox.acknowledge_changes()
        self._save(state, saved)
        if self._slot_files is not None:
            self._try_write(partial(self._slot_files.write_pending, task, published))
        if count := ledger.checker.slot_limits.get(messages.TRAIN, 0):
            self._collector.idle_work.extend(
                partial(work, state, count)
                for work in (self._prefetcher.prefetch_plan, self._prefetcher.prefetch_noise)
            )
        return ledger

    def _make_ledger(
        self, state: RunState, publication: str, required: dict[str, int], opened_at: float
    ) -> Ledger:
        return Ledger(
            publication,
            self._make_checker(state, required),
            required,
            self._collector.context,
            prefix=PrefixAccumulator(state.moments, required[messages.TRAIN])
            if messages.TRAIN in required
            else None,
            opened_at=opened_at,
        )

    def _make_checker(self, state: RunState, required: dict[str, int]) -> AnswerChecker:
        strategy = self._learner.strategy
        kinds = {*required} | (
            {messages.CONFIRM}
            if messages.EVAL in required and self._learner.target is not None
            else set()
        )
        kinds |= {messages.ELITE} if strategy.reevaluates and messages.TRAIN in required else set()
        most = {kind: count for kind, count in self._slot_limits.items() if kind in kinds}
        size, spec = strategy.size, self._learner.spec
        limits = (state.step_limit, evaluation_limit(self._config, spec))
        behaviour = spec.behaviour_size if strategy.wants_behaviour else 0
        return AnswerChecker(
            self._config,
            state.generation,
            size,
            strategy.per_slot,
            spec.observation_size,
            most,
            limits,
            behaviour,
            ObservationLimits.of(spec, state.moments),
            spec,
            strategy.fitness_by_sign,
        )

    def _save(self, state: RunState, data: bytes) -> None:
        """The disk's checkpoint follows an accepted publish; not more often than every
        few seconds.
        """
        self._current = (state, data)
        if self._checkpoints is None:
            return
        self._save_best(state, self._checkpoints)
        if (
            time.monotonic() - self._last_saved < LEAST_SECONDS_BETWEEN_SAVES
            and state.stage == TRAINING
        ):
            return
        self._last_saved = time.monotonic()
        self._try_write(partial(self._checkpoints.save, state.generation, data))

    def _save_best(self, state: RunState, checkpoints: checkpoint.Checkpoints) -> None:
        """The best policy's file follows the publish too, for workers play meanwhile. A master that
        ends before leaves an older file, but the checkpoint holds the best as well, and its
        successor compares.
        """
        if state.best is None or state.best is self._saved_best:
            return
        data = checkpoint.encode_best(
            self._config, self._learner.spec, self._channel.run, state.best, None
        )
        if (self._saved_best is None and checkpoints.is_best_stored(state.best)) or self._try_write(
            partial(checkpoints.save_best, data)
        ):
            self._saved_best = state.best

    def _try_write(self, write: Callable[[], object]) -> bool:
        """A folder that cannot be written does not stop training: Redis holds every generation, and
        the next checkpoint is tried again. The run's last ones must be written, for they are what
        is left of it. Whether it was written.
        """
        try:
            write()
        except RunFolderError as error:
            self._sink.note(f"{error}; training goes on and tries again")
            return False
        return True

    def current_or_none(self) -> tuple[RunState, bytes] | None:
        """The state of the open generation and its checkpoint; None before the first publish."""
        return self._current

    def current(self) -> tuple[RunState, bytes]:
        assert self._current is not None, "nothing was published yet"
        return self._current

    # --- collect

    def _collect(self, state: RunState, ledger: Ledger) -> None:
        """Until every wanted slot is answered and nothing more is asked for."""
        began = time.monotonic()
        self._collector.collect(ledger)
        while self._require_more(state, ledger):
            self._collector.extend(ledger)
            self._collector.collect(ledger)
        self._paused_seconds = self._collector.take_paused_seconds()
        self._record["seconds_wait"] = time.monotonic() - began - self._paused_seconds

    def _require_more(self, state: RunState, ledger: Ledger) -> bool:
        """More slots of the same publication, as a pure function of its answers."""
        slots = (
            ledger.results_in_order(messages.TRAIN)
            if self._config.min_steps or self._learner.strategy.reevaluates
            else []
        )
        steps = total_steps(slots) if self._config.min_steps else 0
        if (
            slots
            and steps < self._config.min_steps
            and len(slots) < self._slot_limits[messages.TRAIN]
        ):
            mean = max(1.0, steps / len(slots))
            missing = int(np.ceil((self._config.min_steps - steps) / mean))
            ledger.require(
                messages.TRAIN, min(self._slot_limits[messages.TRAIN], len(slots) + max(1, missing))
            )
            return True
        batch = slots[
            : shortest_prefix(
                slots,
                self._config.population // self._learner.strategy.per_slot,
                self._config.min_steps,
            )
        ]
        if self._config.schedule == SYNC and ledger.require_slots(
            messages.ELITE, self._learner.candidates(state, batch)
        ):
            return True
        evaluation = return_statistics(first_returns(ledger.verified_results(messages.EVAL)))
        if self._learner.is_target_passed(evaluation) and messages.CONFIRM not in ledger.required:
            ledger.require(messages.CONFIRM, self._slot_limits[messages.CONFIRM])
            return True
        return False

    # --- rank, update

    def _close(self, state: RunState, ledger: Ledger) -> RunState:
        """Learn from a complete ledger; decide what comes next."""
        began = time.monotonic()
        closed = self._close_ledger(state, ledger)
        if self._slot_files is not None:
            self._slot_files.record_closed(self._config, self._learner, closed)
        current = self._learner.with_best(state, closed)
        if self._config.rollback:
            current = with_rollback_point(state, current, closed.evaluation)
        confirmed = current.best is not None and current.best.confirmed
        figures: dict[str, float] = {}
        after = current
        if state.stage == TRAINING and not confirmed:
            after, figures = self._next_search(state, current, closed)
            figures["sigma"] = self._learner.strategy.sigma(
                state.strategy
            )  # what this generation was perturbed by
        uniform = (
            state.reproducible
            and self._collector.fleet.is_uniform
            and not self._collector.audit.undecided
        )
        self._collector.recoveries.finish_all()
        after = replace(
            after,
            counters=self._count_totals(state, closed, ledger),
            recoveries=self._collector.recoveries.totals(),
            reproducible=uniform,
            numerics=self._collector.fleet.numerics,
        )
        self._record |= {
            **training_record(closed),
            **episodes_record(closed, self._config.episodes),
            **evaluation_record(closed, current),
            **figures,
        }
        self._record |= {
            "seconds_update": time.monotonic() - began,
            "failed": len(ledger.failed_slots),
            **self._totals_record(after, closed),
        }
        if closed.reevaluations and not any(closed.reevaluations):
            self._sink.note(
                f"all who were evaluated again in generation {state.generation} failed in an "
                "episode: nobody could be compared, and the elite stays"
            )
        if ledger.failed_slots:
            self._sink.note(
                f"{len(ledger.failed_slots)} slots of generation {state.generation} failed "
                f"everywhere and count as the worst: {ledger.last_reason}"
            )
        self._sink.generation(self._record)
        validate_patience(after, self._config)
        return self._next_stage(after, confirmed)

    def _close_ledger(self, state: RunState, ledger: Ledger) -> ClosedGeneration:
        """What was answered, in the order in which it is learnt."""
        return close_generation(
            ledger,
            self._config.population // self._learner.strategy.per_slot,
            self._config.min_steps,
        )

    def _next_search(
        self, state: RunState, current: RunState, closed: ClosedGeneration
    ) -> tuple[RunState, dict[str, float]]:
        """The next generation's search: what was learnt or what is gone back to, under the settings
        of that generation.
        """
        if has_regressed(current, closed.evaluation):
            anchor_generation = current.anchor.generation if current.anchor else 0
            after, figures = roll_back(current), {"rolled_back": float(anchor_generation)}
            before = self._timeline.strategy_at(after.changes, anchor_generation)
            self._sink.note(
                f"generation {state.generation} evaluated below the best, of generation "
                f"{anchor_generation}: the search goes back to that"
            )
        else:
            anchor_generation = None
            after, figures = self._learner.learn(current, closed)
            before = self._learner.strategy
        after = self._timeline.advance(after, self._collector.inbox.take_changes(), before)
        self._write_log(state, after, closed, anchor_generation)
        return after, figures

    def _write_log(
        self, state: RunState, after: RunState, closed: ClosedGeneration, back: int | None
    ) -> None:
        """What a replay needs of this generation; and a new file, once in a long while."""
        if self._replay_log is None:
            return
        changes, anchored = after.changes[len(state.changes) :], after.anchor is not state.anchor
        fitness, again = (
            self._learner.fitness(closed.arrays),
            self._learner.reevaluated_fitness(closed.reevaluations),
        )
        used, tried = (
            tuple((part.publication, part.slots) for part in closed.used),
            tuple(closed.tried),
        )
        step = ReplayStep(
            state.generation,
            str(self._record["digest"]),
            fitness,
            after.moments,
            after.step_limit,
            back,
            anchored,
            changes,
            again,
            str(self._record["publication"]),
            used,
            tried,
            **self._learner.behaviour_arrays(closed),
        )
        self._replay_log.append(step)
        if self._replay_log.is_full:
            self._replay_log.start_new_file(after, self._encode_checkpoint(after))
        if self._replay_log.trouble:
            self._sink.note(self._replay_log.trouble)
            self._replay_log = None

    def _encode_checkpoint(self, state: RunState) -> bytes:
        """The state's checkpoint."""
        strategy = self._learner.strategy
        state = replace(state, epoch=messages.token_number(self._token), noise=self._noise_digest)
        return checkpoint.encode(
            self._timeline.config,
            self._learner.spec,
            self._channel.run,
            state,
            strategy.centre(strategy.published(state.strategy)),
        )

    def _next_stage(self, state: RunState, confirmed: bool) -> RunState:
        """Training goes on, or its last parameters are evaluated, or the final episodes
        are played.
        """
        if confirmed:
            return replace(state, stage=FINAL, reason="target")
        if state.stage == CLOSING:
            return replace(state, stage=FINAL)
        keeps_going = self._keep_going(dict(self._record))
        reason = (
            reason_to_stop(self._timeline.config_at(state.changes, state.generation), state)
            if keeps_going
            else "stopped by the caller"
        )
        return replace(state, stage=CLOSING, reason=reason) if reason else state

    def _count_totals(self, state: RunState, closed: ClosedGeneration, ledger: Ledger) -> Counters:
        episodes = closed.arrays.individuals * self._config.episodes
        centre = sum(closed.centre.steps) if closed.centre else 0
        counters = state.add_counts(
            episodes=episodes,
            env_steps=closed.arrays.total_steps
            + total_steps(closed.reevaluations)
            + total_steps(closed.measured),
            eval_steps=closed.eval_steps + centre,
            surplus_steps=total_steps(closed.surplus),
            lost_steps=ledger.lost_steps,
            seconds=self._take_elapsed(),
            duplicate=ledger.refused["duplicate"] + ledger.refused["conflict"],
            refused=ledger.refused.total() - ledger.refused["audit"],
            reissued=ledger.reissued,
            recovered=ledger.recovered,
            late=self._collector.take_late_count(),
        )
        patience = (
            state.counters.patience_generations + 1
            if is_all_at_patience(closed, self._config)
            else 0
        )
        return replace(counters, patience_generations=patience)

    def _take_elapsed(self) -> float:
        """Seconds since the last call: what this generation took of the run's life."""
        now = time.monotonic()
        took, self._last_clock = now - self._last_clock - self._paused_seconds, now
        self._paused_seconds = 0.0
        return max(0.0, took)

    def _totals_record(self, state: RunState, closed: ClosedGeneration) -> Record:
        counters = state.counters
        names = (
            "episodes",
            "env_steps",
            "eval_steps",
            "surplus_steps",
            "lost_steps",
            "late",
            "duplicate",
            "reissued",
            "refused",
            "recovered",
            "seconds",
        )
        took = float(self._record["seconds_publish"] or 0) + float(
            self._record["seconds_wait"] or 0
        )
        return {
            **{name: getattr(counters, name) for name in names},
            "steps_per_second": (closed.arrays.total_steps + closed.eval_steps) / took
            if took > 0
            else None,
            "workers": len(self._collector.contributors),
            "eta": remaining_seconds(
                self._config, counters.seconds, counters.env_steps, state.generation
            ),
        }

    # --- the end

    def _play_final_episodes(self, state: RunState) -> Outcome:
        """The chosen parameters play the final episodes; whatever comes out is the result."""
        best = state.best or self._learner.best_policy(state, float("nan"))
        vector = self._learner.strategy.published(state.strategy)
        digest = vector_digest(self._learner.strategy.digest_input(state.strategy, vector))
        final_parameters = np.zeros_like(vector)
        final_parameters[: len(best.parameters)] = best.parameters
        ledger = self._publish(
            state,
            vector,
            digest,
            best.mean,
            best.std,
            {messages.FINAL: self._config.final_episodes},
            replacement=final_parameters,
        )
        self._collector.collect(ledger)
        figures = return_statistics(first_returns(ledger.results_in_order(messages.FINAL)))
        if self._checkpoints is not None:
            evaluation = None if figures is None else evaluation_fields(figures)
            self._checkpoints.save_best(
                checkpoint.encode_best(
                    self._config, self._learner.spec, self._channel.run, best, evaluation
                )
            )
        return Outcome(state, best, figures, digest)

    # --- what people read

    def _progress_fields(self, state: RunState, digest: str) -> Mapping[str, str]:
        fields = {
            name: value
            for name, value in self._record.items()
            if value is not None and name != "publication"
        }
        renamed = {
            f"reward_{name}": fields[f"return_{name}"]
            for name in ("mean", "max")
            if f"return_{name}" in fields
        }
        changes = format_changes(
            change for change in state.changes if change.generation <= state.generation
        )
        fields.pop("changed", None)
        about = {
            "changed": changes.rpartition("; ")[2],
            "origin": state.origin,
            **self._collector.inbox.progress_fields(),
            "stage": state.stage,
            "env": self._config.task,
            "strategy": self._config.strategy,
            "schedule": self._config.schedule,
            "noise": self._noise_digest,
        }
        last = {"eval_mean": state.last_evaluation} if state.last_evaluation is not None else {}
        return format_values(
            {
                **fields,
                **renamed,
                **about,
                **last,
                "digest": digest,
                "generation": state.generation,
                "updated": f"{time.time():.3f}",
            }
        )

    def _history_fields(self) -> Mapping[str, str] | None:
        """The last closed generation, once it is closed."""
        return format_values(self._record) if "seconds_update" in self._record else None
