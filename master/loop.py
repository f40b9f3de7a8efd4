"""The generation loop: publish → collect → rank → update → publish."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np

from es_queue.config import SYNC, RunConfig
from es_queue.episode_rules import evaluation_limit
from es_queue.errors import RunFolderError
from es_queue.figures import Figures, figures_of
from es_queue.numerics import bytes_digest
from es_queue.plan import most_slots
from es_queue.protocol import messages
from es_queue.protocol.channel import MasterChannel, Publish
from es_queue.protocol.messages import Task
from master import checkpoint
from master.ahead import Ahead
from master.budget import reason_to_stop
from master.collect import Expectations, Ledger
from master.collector import Collector, Interrupted
from master.columns import Gathered
from master.course import Course, told
from master.learn import (
    Closed,
    Learner,
    Record,
    all_at_patience,
    closed,
    episodes_record,
    evaluation_record,
    returns_of,
    shortest_prefix,
    steps_of,
    training_record,
)
from master.observation_limits import ObservationLimits
from master.replay_log import ReplayLog, Step
from master.rollback import fallen, kept_anchor, rolled_back
from master.shown import digest_of, eta, evaluation_meta, refuse_hopeless, texts
from master.slot_files import SlotFiles
from master.state import CLOSING, FINAL, TRAINING, Best, Counters, Floats, RunState

__all__ = ["Interrupted", "Loop", "Outcome", "digest_of"]

REDIS_CHECKPOINT_BYTES = 8 * 2**20
REDIS_CHECKPOINT_EVERY = 10
DISK_SECONDS = 5.0


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
    evaluation: Figures | None
    digest: str


class Loop:
    """One master's work on one run. Everything that decides is in ``Learner`` and ``Ledger``; this gives it order."""

    def __init__(
        self, channel: MasterChannel, learner: Learner, token: str, noise_digest: str, collector: Collector, sink: Sink,
        checkpoints: checkpoint.Checkpoints | None, keep_going: Callable[[Record], bool] = lambda _: True, log: ReplayLog | None = None,
        slot_files: SlotFiles | None = None,
    ) -> None:  # fmt: skip
        self._log, self._slot_files = log, slot_files
        self._channel, self._learner, self._token, self._noise = channel, learner, token, noise_digest
        self._collector, self._sink, self._checkpoints = collector, sink, checkpoints
        self._keep_going = keep_going
        self._course = Course(learner)
        self._ahead = Ahead(self._course, learner.noise)
        self._most = {**most_slots(learner.config, learner.strategy.per_slot), messages.CENTRE: learner.strategy.most_centres}
        self._config: RunConfig = learner.config
        self._record: Record = {}
        self._paused = 0.0
        self._saved = 0.0
        self._best: Best | None = None
        self._began = time.monotonic()
        self._current: tuple[RunState, bytes] | None = None

    def run(self, state: RunState, adopted: str | None = None) -> Outcome:
        """Train until a budget, the target or a person ends it, then play the chosen parameters' final episodes.

        adopted: the publication that a former master left open for exactly this state (rule 11).
        Raises Interrupted between two looks at the results; what is collected so far stays in Redis.
        """
        self._collector.fleet.remember(state.numerics, self._channel.shown("quarantined"))
        self._collector.recoveries.remember(state.recoveries)
        if self._log is not None:
            self._learner = self._course.learner_at(state)
            self._log.begin(state, self._encoded(state))
        while state.stage != FINAL:
            ledger = self._open(state, adopted)
            adopted = None
            self._collect(state, ledger)
            state = self._close(state, ledger)
        return self._finale(state)

    # --- publish

    def _open(self, state: RunState, adopted: str | None) -> Ledger:
        """Publish the generation: parameters, and the blocks of its evaluation, its centre and its slots."""
        began = time.monotonic()
        self._learner = self._course.learner_at(state)
        self._config = self._learner.config
        vector = self._learner.strategy.published(state.strategy)
        statistics = state.statistics(self._config.obs_clip)
        wanted = self._wanted(state)
        digest = digest_of(self._learner.strategy.identified(state.strategy, vector))
        ledger = self._publish(state, vector, digest, statistics.mean, statistics.std, wanted, adopted)
        self._record = {
            "generation": state.generation, "publication": ledger.publication, "digest": digest,
            "bytes_published": 4 * len(vector), "seconds_publish": time.monotonic() - began, "step_limit": state.step_limit,
            "changed": told(one for one in state.changes if one.generation == state.generation) or None,
        }  # fmt: skip
        return ledger

    def _wanted(self, state: RunState) -> dict[str, int]:
        """Slots of each kind that the generation closes on; evaluation first, so that it costs no tail."""
        wanted = {messages.EVAL: self._config.eval_episodes} if self._learner.due(state) else {}
        if state.stage == TRAINING:
            wanted[messages.CENTRE] = self._learner.strategy.centres(state.strategy)
            wanted[messages.TRAIN] = self._config.population // self._learner.strategy.per_slot
        return wanted

    def _publish(
        self, state: RunState, own: Floats, digest: str, mean: Floats, std: Floats, wanted: dict[str, int], adopted: str | None = None,
        chosen: Floats | None = None,
    ) -> Ledger:  # fmt: skip
        """``own``: what the state's strategy publishes, with the run's digest; ``chosen`` goes out in its place."""
        # The final episodes are published after the closing generation, so under the next number.
        publication = adopted or f"{state.generation + (state.stage == FINAL)}.{self._token}"
        data = (own if chosen is None else chosen).astype("<f4").tobytes()
        whole = chosen is None and self._learner.strategy.identified(state.strategy, own) is own
        task = Task(
            publication, self._learner.strategy.sigma(state.strategy), state.step_limit, len(own), digest if whole else bytes_digest(data),
            mean.astype("<f4").tobytes(), std.astype("<f4").tobytes(), self._noise, self._collector.poll(),
        )  # fmt: skip
        ledger = self._ledger(state, publication, wanted)
        saved = self._encoded(state)
        often = len(saved) <= REDIS_CHECKPOINT_BYTES or state.generation % REDIS_CHECKPOINT_EVERY == 0
        what = Publish(publication, task.encode(), (), self._config.to_json(), self._progress(state, digest), self._history(), saved if often else None)
        self._collector.requests.training = state.stage == TRAINING
        self._collector.open(ledger, what, data, adopted=adopted is not None)
        if self._collector.verification is not None:
            self._collector.verification.begin(what.task, data, partial(self._learner.weighs, state))
        self._collector.requests.published()
        self._save(state, saved)
        if self._slot_files is not None:
            self._attempt(partial(self._slot_files.follow, task, own))
        if count := ledger.expectations.most.get(messages.TRAIN, 0):
            self._collector.ahead.extend(partial(work, state, count) for work in (self._ahead.plan, self._ahead.touch))
        return ledger

    def _ledger(self, state: RunState, publication: str, wanted: dict[str, int]) -> Ledger:
        ledger = Ledger(publication, self._expectations(state, wanted), wanted)
        if messages.TRAIN in wanted:
            ledger.gathered = Gathered(state.moments, wanted[messages.TRAIN])
        return ledger

    def _expectations(self, state: RunState, wanted: dict[str, int]) -> Expectations:
        strategy = self._learner.strategy
        kinds = {*wanted} | ({messages.CONFIRM} if messages.EVAL in wanted and self._learner.target is not None else set())
        kinds |= {messages.ELITE} if strategy.reevaluates and messages.TRAIN in wanted else set()
        most = {kind: count for kind, count in self._most.items() if kind in kinds}
        size, spec = strategy.size, self._learner.spec
        limits = (state.step_limit, evaluation_limit(self._config, spec))
        behaviour = spec.behaviour_size if strategy.wants_behaviour else 0
        return Expectations(
            self._config, state.generation, size, strategy.per_slot, spec.observation_size, most, limits, behaviour, ObservationLimits.of(spec, state.moments), spec,
            strategy.fitness_by_sign,
        )  # fmt: skip

    def _save(self, state: RunState, data: bytes) -> None:
        """The disk's checkpoint follows an accepted publish; not more often than every few seconds."""
        self._current = (state, data)
        if self._checkpoints is None:
            return
        self._save_best(state, self._checkpoints)
        if time.monotonic() - self._saved < DISK_SECONDS and state.stage == TRAINING:
            return
        self._saved = time.monotonic()
        self._attempt(partial(self._checkpoints.save, state.generation, data))

    def _save_best(self, state: RunState, checkpoints: checkpoint.Checkpoints) -> None:
        """The best policy's file follows the publish too, for workers play meanwhile. A master that ends before leaves an
        older file, but the checkpoint holds the best as well, and its successor compares."""
        if state.best is None or state.best is self._best:
            return
        data = checkpoint.encode_best(self._config, self._learner.spec, self._channel.run, state.best, None)
        if (self._best is None and checkpoints.holds(state.best)) or self._attempt(partial(checkpoints.save_best, data)):
            self._best = state.best

    def _attempt(self, write: Callable[[], object]) -> bool:
        """A folder that cannot be written does not stop training: Redis holds every generation, and the next checkpoint is
        tried again. The run's last ones must be written, for they are what is left of it. Whether it was written."""
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
        while self._more(state, ledger):
            self._collector.extend(ledger)
            self._collector.collect(ledger)
        self._paused = self._collector.paused_since()
        self._record["seconds_wait"] = time.monotonic() - began - self._paused

    def _more(self, state: RunState, ledger: Ledger) -> bool:
        """More slots of the same publication, as a pure function of its answers."""
        slots = ledger.ordered(messages.TRAIN) if self._config.min_steps or self._learner.strategy.reevaluates else []
        steps = steps_of(slots) if self._config.min_steps else 0
        if slots and steps < self._config.min_steps and len(slots) < self._most[messages.TRAIN]:
            mean = max(1.0, steps / len(slots))
            missing = int(np.ceil((self._config.min_steps - steps) / mean))
            ledger.want(messages.TRAIN, min(self._most[messages.TRAIN], len(slots) + max(1, missing)))
            return True
        batch = slots[: shortest_prefix(slots, self._config.population // self._learner.strategy.per_slot, self._config.min_steps)]
        if self._config.schedule == SYNC and ledger.choose(messages.ELITE, self._learner.candidates(state, batch)):
            return True
        evaluation = figures_of(returns_of(ledger.verified(messages.EVAL)))
        if self._learner.passes(evaluation) and messages.CONFIRM not in ledger.wanted:
            ledger.want(messages.CONFIRM, self._most[messages.CONFIRM])
            return True
        return False

    # --- rank, update

    def _close(self, state: RunState, ledger: Ledger) -> RunState:
        """Learn from a complete ledger; decide what comes next."""
        began = time.monotonic()
        done = self._closed(state, ledger)
        if self._slot_files is not None:
            self._slot_files.closed(self._config, self._learner, done)
        judged = self._learner.judged(state, done)
        if self._config.rollback:
            judged = kept_anchor(state, judged, done.evaluation)
        confirmed = judged.best is not None and judged.best.confirmed
        figures: dict[str, float] = {}
        after = judged
        if state.stage == TRAINING and not confirmed:
            after, figures = self._next(state, judged, done)
            figures["sigma"] = self._learner.strategy.sigma(state.strategy)  # what this generation was perturbed by
        uniform = state.reproducible and self._collector.fleet.uniform and not self._collector.audit.undecided
        self._collector.recoveries.closed()
        after = replace(
            after, counters=self._counted(state, done, ledger), recoveries=self._collector.recoveries.totals(), reproducible=uniform,
            numerics=self._collector.fleet.numerics,
        )  # fmt: skip
        self._record |= {**training_record(done), **episodes_record(done, self._config.episodes), **evaluation_record(done, judged), **figures}
        self._record |= {"seconds_update": time.monotonic() - began, "failed": len(ledger.hopeless), **self._totals(after, done)}
        if done.again and not any(done.again):
            self._sink.note(f"all who were evaluated again in generation {state.generation} failed in an episode: nobody could be compared, and the elite stays")
        if ledger.hopeless:
            self._sink.note(f"{len(ledger.hopeless)} slots of generation {state.generation} failed everywhere and count as the worst: {ledger.last_reason}")
        self._sink.generation(self._record)
        refuse_hopeless(after, self._config)
        return self._staged(after, confirmed)

    def _closed(self, state: RunState, ledger: Ledger) -> Closed:
        """What was answered, in the order in which it is learnt."""
        return closed(ledger, self._config.population // self._learner.strategy.per_slot, self._config.min_steps)

    def _next(self, state: RunState, judged: RunState, done: Closed) -> tuple[RunState, dict[str, float]]:
        """The next generation's search: what was learnt or what is gone back to, under the settings of that generation."""
        if fallen(judged, done.evaluation):
            to = judged.anchor.generation if judged.anchor else 0
            after, figures = rolled_back(judged), {"rolled_back": float(to)}
            before = self._course.strategy_at(after.changes, to)
            self._sink.note(f"generation {state.generation} evaluated below the best, of generation {to}: the search goes back to that")
        else:
            to = None
            after, figures = self._learner.learn(judged, done)
            before = self._learner.strategy
        after = self._course.turned(after, self._collector.requests.take_changes(), before)
        self._write_log(state, after, done, to)
        return after, figures

    def _write_log(self, state: RunState, after: RunState, done: Closed, back: int | None) -> None:
        """What a replay needs of this generation; and a new file, once in a long while."""
        if self._log is None:
            return
        changes, anchored = after.changes[len(state.changes) :], after.anchor is not state.anchor
        fitness, again = self._learner.fitness(done.columns), self._learner.again(done.again)
        used, tried = tuple((one.publication, one.slots) for one in done.used), tuple(done.tried)
        step = Step(state.generation, str(self._record["digest"]), fitness, after.moments, after.step_limit, back, anchored, changes, again, str(self._record["publication"]), used, tried, **self._learner.behaved(done))
        self._log.append(step)
        if self._log.full:
            self._log.renew(after, self._encoded(after))
        if self._log.trouble:
            self._sink.note(self._log.trouble)
            self._log = None

    def _encoded(self, state: RunState) -> bytes:
        """The state's checkpoint."""
        strategy = self._learner.strategy
        state = replace(state, epoch=messages.token_number(self._token), noise=self._noise)
        return checkpoint.encode(self._course.config, self._learner.spec, self._channel.run, state, strategy.centre(strategy.published(state.strategy)))

    def _staged(self, state: RunState, confirmed: bool) -> RunState:
        """Training goes on, or its last parameters are evaluated, or the final episodes are played."""
        if confirmed:
            return replace(state, stage=FINAL, reason="target")
        if state.stage == CLOSING:
            return replace(state, stage=FINAL)
        going = self._keep_going(dict(self._record))
        reason = reason_to_stop(self._course.config_at(state.changes, state.generation), state) if going else "stopped by the caller"
        return replace(state, stage=CLOSING, reason=reason) if reason else state

    def _counted(self, state: RunState, done: Closed, ledger: Ledger) -> Counters:
        episodes = done.columns.individuals * self._config.episodes
        centre = sum(done.centre.steps) if done.centre else 0
        counters = state.counted(
            episodes=episodes, env_steps=done.columns.total_steps + steps_of(done.again) + steps_of(done.measured), eval_steps=done.eval_steps + centre,
            surplus_steps=steps_of(done.surplus), lost_steps=ledger.lost_steps, seconds=self._elapsed(),
            duplicate=ledger.refused["duplicate"] + ledger.refused["conflict"], refused=ledger.refused.total() - ledger.refused["audit"],
            reissued=ledger.reissued, recovered=ledger.recovered, late=self._collector.late_since(),
        )  # fmt: skip
        patience = state.counters.patience_generations + 1 if all_at_patience(done, self._config) else 0
        return replace(counters, patience_generations=patience)

    def _elapsed(self) -> float:
        """Seconds since the last call: what this generation took of the run's life."""
        now = time.monotonic()
        took, self._began = now - self._began - self._paused, now
        self._paused = 0.0
        return max(0.0, took)

    def _totals(self, state: RunState, done: Closed) -> Record:
        counters = state.counters
        names = ("episodes", "env_steps", "eval_steps", "surplus_steps", "lost_steps", "late", "duplicate", "reissued", "refused", "recovered", "seconds")
        took = float(self._record["seconds_publish"] or 0) + float(self._record["seconds_wait"] or 0)
        return {
            **{name: getattr(counters, name) for name in names},
            "steps_per_second": (done.columns.total_steps + done.eval_steps) / took if took > 0 else None,
            "workers": len(self._collector.contributors), "eta": eta(self._config, counters.seconds, counters.env_steps, state.generation),
        }  # fmt: skip

    # --- the end

    def _finale(self, state: RunState) -> Outcome:
        """The chosen parameters play the final episodes; whatever comes out is the result."""
        best = state.best or self._learner.chosen(state, float("nan"))
        vector = self._learner.strategy.published(state.strategy)
        digest = digest_of(self._learner.strategy.identified(state.strategy, vector))
        chosen = np.zeros_like(vector)
        chosen[: len(best.parameters)] = best.parameters
        ledger = self._publish(state, vector, digest, best.mean, best.std, {messages.FINAL: self._config.final_episodes}, chosen=chosen)
        self._collector.collect(ledger)
        figures = figures_of(returns_of(ledger.ordered(messages.FINAL)))
        if self._checkpoints is not None:
            evaluation = None if figures is None else evaluation_meta(figures)
            self._checkpoints.save_best(checkpoint.encode_best(self._config, self._learner.spec, self._channel.run, best, evaluation))
        return Outcome(state, best, figures, digest)

    # --- what people read

    def _progress(self, state: RunState, digest: str) -> Mapping[str, str]:
        shown = {name: value for name, value in self._record.items() if value is not None and name != "publication"}
        renamed = {f"reward_{name}": shown[f"return_{name}"] for name in ("mean", "max") if f"return_{name}" in shown}
        changes = told(one for one in state.changes if one.generation <= state.generation)
        shown.pop("changed", None)
        about = {"changed": changes.rpartition("; ")[2], "origin": state.origin, **self._collector.requests.progress(), "stage": state.stage, "env": self._config.task, "strategy": self._config.strategy, "schedule": self._config.schedule, "noise": self._noise}
        last = {"eval_mean": state.last_evaluation} if state.last_evaluation is not None else {}
        return texts({**shown, **renamed, **about, **last, "digest": digest, "generation": state.generation, "updated": f"{time.time():.3f}"})

    def _history(self) -> Mapping[str, str] | None:
        """The last closed generation, once it is closed."""
        return texts(self._record) if "seconds_update" in self._record else None
