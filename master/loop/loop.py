"""The loop of evolution strategies (Salimans et al. 2017), over a changing set of workers.

``Master.train`` has the four steps of a generation; each has its own part below.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from es_queue.config.schedules import ASYNC
from es_queue.errors import EnvironmentFailure
from es_queue.protocol.keys import Clocks
from es_queue.protocol.messages import CONFIRM, FINAL, KINDS, TRAIN, Task, token_number
from es_queue.protocol.store import MasterStore
from es_queue.slots import (
    FAILED,
    TRAINED,
    Slots,
    Span,
    Tally,
    fresh_count,
    spans_from_bytes,
    spans_to_bytes,
    training_plan,
)
from es_queue.strategies.base import NOT_FINITE, Strategy
from master.display.notes import DistinctNotes
from master.loop import checkpoint
from master.loop.audit import Audit, warn_of_conflict
from master.loop.blocks import BlockCutter, Issuer
from master.loop.config_timeline import ConfigTimeline, ControlInbox, format_changes
from master.loop.generation_record import (
    REDIS_AWAY,
    REDIS_LOST,
    RecoveryStatistics,
    closed_record,
    evaluation_info,
    is_all_at_patience,
)
from master.loop.learner import evaluation_of, to_open_publication
from master.loop.listeners import Generation, Listener, Outcome, Report
from master.loop.state import CLOSING, ENDING, TRAINING, RunState, vector_digest
from master.loop.workers import Workers
from master.status.figures import PROGRESS, Record, format_duration, format_values

LOGGER = logging.getLogger("es_queue.loop")

SYNC_LABEL = "sync"
ASYNC_LABEL = "async: not bit-reproducible; --replay repeats the run from its log"
#: Checkpoints of up to 8 MiB go to Redis in each generation, larger ones in every tenth.
REDIS_CHECKPOINT_BYTES, REDIS_CHECKPOINT_EVERY = 8 * 2**20, 10
#: How often the master looks for stragglers when no block waits to be claimed.
STRAGGLER_SECONDS = 0.25
#: Blocks of the asynchronous schedule for each worker: the one that it plays and one that waits.
#: More of them would be played too late on a slow master.
BLOCKS_PER_WORKER, MOST_BATCHES_AHEAD = 2, 2
AUDIT_SECONDS = 0.02
#: Floats of a page of memory. The noise table is read ahead until each page has had four reads on
#: average; hardly any page is then unread.
PAGE_FLOATS, TOUCHES_PER_PAGE = 1024, 4


class Interrupted(Exception):  # noqa: N818 - it is no error: a person asked to stop
    """A request to stop the master, between two reads of the results."""


class Unserved(Interrupted):
    """Training has ended, and no worker is there for the evaluations that follow."""


class Master:
    """One master's work on one run.

    current: the open generation, None before the first publish; recoveries: how often the run
    recovered, by cause
    """

    def __init__(
        self,
        timeline: ConfigTimeline,
        store: MasterStore,
        token: str,
        holder: str,
        noise_digest: str,
        clocks: Clocks,
        workers: Workers,
        inbox: ControlInbox,
        *,
        queue: str = "",
        snapshots: str = "",
        listeners: Sequence[Listener] = (),
        audit: Audit | None = None,
        show_live: Callable[[Record], None] = lambda figures: None,
        is_interrupted: Callable[[], bool] = lambda: False,
        keep_going: Callable[[Record], bool] = lambda record: True,
    ) -> None:
        """``snapshots``: place of those of a model; ``show_live``: called once a second while
        results are awaited; ``is_interrupted``: whether a person asked to stop; ``keep_going``:
        whether the caller wants another generation.
        """
        self._timeline, self._store, self._clocks = timeline, store, clocks
        self._token, self._holder, self._noise_digest = token, holder, noise_digest
        self._workers, self._inbox, self._queue = workers, inbox, queue
        self._listeners, self._audit, self._snapshots = listeners, audit, snapshots
        self._show_live, self._is_interrupted = show_live, is_interrupted
        self._keep_going = keep_going
        self.is_async = timeline.config.schedule == ASYNC
        self.recoveries = RecoveryStatistics()
        self.current: Generation | None = None
        cutter = BlockCutter(timeline.base)
        self._issuer = Issuer(cutter, store, token, self.recoveries, clocks.overdue)
        #: The number of the newest publication; results of the run so far.
        self._last_number, self._arrived = -1, 0
        self._has_results, self._answered_at = False, time.time()
        self._next_look = self._grace_until = 0.0
        self._outages = store.outages
        self._contributors: set[int] = set()
        self._refused = Counter[str]()
        self._has_conflict, self._last_failure, self._failed_in_a_row = False, "", 0
        self._failures = DistinctNotes(LOGGER)
        self._touches_left = TOUCHES_PER_PAGE * -(-timeline.config.noise_size // PAGE_FLOATS)
        self._polled_at, self._paused_seconds = time.monotonic(), 0.0
        #: When the run's seconds were last counted, and when this generation's collecting began, on
        #: the clock without pauses.
        self._counted_at = self._collect_began = self._working_time()

    # --- the loop

    def train(self, state: RunState, adopted: Task | None = None) -> Outcome:
        """Train until a budget, the target or a request ends the run, then play the final episodes.

        adopted: the header that a former master left open for exactly this state (rule 11). Raises
        Interrupted between two reads of the results; collected results stay in Redis.
        """
        self._workers.numerics = state.numerics
        self.recoveries.add(state.recoveries)
        state = replace(state, reproducible=state.reproducible and not self.is_async)
        record: Record = {}
        while state.stage != ENDING:
            # Publish the parameters: workers play perturbations of them.
            generation = self._publish(state, record, adopted)
            adopted = None
            # Collect the results of every slot.
            if not self._collect(generation):
                state, record = self._drop(generation), {}
                continue
            # Rank the fitness and update the parameters.
            report = self._learn(generation)
            for listener in self._listeners:
                listener.on_generation(report)
            after, record = report.after, report.record
            keeps_going = partial(self._keep_going, dict(record))
            state = self._timeline.learner_at(after).next_stage(after, keeps_going)
        best = state.best or self._timeline.learner_at(state).best_policy(state, float("nan"))
        generation = self._publish(replace(state, best=best), record)
        self._collect(generation)
        table = generation.slots.table[generation.slots.rows(FINAL)]
        outcome = Outcome(
            state,
            best,
            evaluation_of(generation.slots, FINAL),
            generation.digest,
            table["seeds"][table["state"] == FAILED, 0].ravel().tolist(),
            evaluation_info(generation.slots, FINAL),
        )
        for listener in self._listeners:
            listener.on_finished(generation, outcome)
        return outcome

    # --- publish

    def _publish(self, state: RunState, last: Record, adopted: Task | None = None) -> Generation:
        """Open the table of a state, unless a former master left it open; then issue its rows.
        last: the record of the generation before.
        """
        began, learner, before = time.monotonic(), self._timeline.learner_at(state), self.current
        # The final episodes are published after the closing generation, so under the next number. A
        # closing generation may replace a dropped one, and no publication's name is used twice.
        number = max(state.generation + (state.stage == ENDING), self._last_number + 1)
        self._last_number = number
        name = adopted.publication if adopted else f"{number}.{self._token}"
        spans = spans_from_bytes(adopted.spans) if adopted else None
        slots = learner.slots(state, number, name, spans)
        older, tally = list[Slots](), Tally()
        if learner.is_async:
            former = before.tables if before else map(learner.reopen, state.open)
            older = learner.still_open(state, former, number, tally)
        tables = [*older, slots]
        for each in tables:
            each.tally, each.identify = tally, self._workers.reporter_of
        # At most 2,500 polls of the leave flags per second in all.
        poll = max(self._clocks.leave_poll, len(self._workers.present) / 2500)
        vector, task, digest = learner.publication(state, slots, self._noise_digest, poll)
        data = vector.astype("<f4").tobytes()
        saved = checkpoint.encode(
            self._timeline.config,
            learner.spec,
            self._store.run,
            replace(
                state,
                epoch=token_number(self._token),
                noise=self._noise_digest,
                open=tuple(map(to_open_publication, older)),
            ),
            learner.strategy.centre(learner.strategy.published(state.strategy)),
        )
        generation = Generation(
            state=state,
            learner=learner,
            tables=tables,
            task=task,
            vector=vector,
            digest=digest,
            checkpoint=saved,
        )
        self.current = generation
        self._issuer.held_since.clear()
        if self._audit is not None:
            self._audit.begin(data)
        is_small = len(saved) <= REDIS_CHECKPOINT_BYTES
        in_redis = is_small or state.generation % REDIS_CHECKPOINT_EVERY == 0
        self._send = partial(
            self._store.open,
            self._token,
            name,
            data,
            config=learner.requested.to_json(),
            progress=self._first_progress(generation, last),
            history=format_values(last) if last else None,
            checkpoint=saved if in_redis else None,
            keep=[each.publication for each in older],
        )
        if not adopted:
            sent = time.monotonic()
            previous = self._send(task.encode())
            if before and previous not in (before.task.publication, name):
                LOGGER.warning(
                    "Redis has lost the previous generation, or has another one: this one "
                    "replaces it"
                )
                self._note_loss(generation, sent)
        self._issue(generation, leave=adopted is not None)
        self._inbox.acknowledge_changes()
        generation.seconds = time.monotonic() - began
        for listener in self._listeners:
            listener.on_published(generation)
        return generation

    def _first_progress(self, generation: Generation, last: Record) -> dict[str, str]:
        state, learner = generation.state, generation.learner
        changes = [change for change in state.changes if change.generation <= state.generation]
        evaluation = state.last_evaluation
        # Redis keeps the order of the first write: what people look for stands first.
        first = dict.fromkeys(PROGRESS, None if last else "")
        known = {name: value for name, value in last.items() if not name.startswith("fitness_")}
        return format_values(
            {
                **first,
                **known,
                "publication": None,  # the script writes it
                "changed": format_changes(changes).rpartition("; ")[2],
                "origin": state.origin,
                **self._inbox.progress_fields(),
                "stage": state.stage,
                "env": learner.config.problem,
                "strategy": learner.config.strategy_name,
                "schedule": ASYNC_LABEL if self.is_async else SYNC_LABEL,
                "noise": self._noise_digest,
                **({} if evaluation is None else {"eval_mean": evaluation}),
                "digest": generation.digest,
                "target": learner.target,
                "generation": state.generation,
                "snapshots": self._snapshots,
                "updated": f"{time.time():.3f}",
            }
        )

    def _issue(
        self, generation: Generation, more: Sequence[Span] = (), *, leave: bool = False
    ) -> None:
        """Add ``more`` rows to the newest table, and issue those that were never issued. ``leave``
        that to the next look, which issues what nobody holds; so does a pause.
        """
        slots, workers, task = generation.slots, self._workers.expected_count(), b""
        if more:
            slots.add(more)
            generation.task = replace(generation.task, spans=spans_to_bytes(slots.spans))
            task = generation.task.encode()
        if leave or self._inbox.paused_by:
            slots.table["issued"], self._next_look = True, 0.0
        else:
            self._issuer.issue_new(slots, workers, task)
        if self._audit is not None:
            self._audit.follow(slots, generation.task.encode(), workers)

    def _note_loss(self, generation: Generation, began: float) -> None:
        """Redis had lost data and has it again."""
        self._store.read_again([slots.publication for slots in generation.tables])
        self._issuer.held_since.clear()
        self.recoveries.record(REDIS_LOST, time.monotonic() - began)
        self._grace_until = time.monotonic() + self._clocks.beat_ttl

    # --- collect: until enough slots have a result

    def _collect(self, generation: Generation) -> bool:
        """Collect results until the generation can close. Returns False if the time limit passes
        before. A paused run closes none.

        Raises Interrupted, FencedError, RedisError, EnvironmentFailure, StrategyFailure.
        """
        slots, learner = generation.slots, generation.learner
        self._polled_at = time.monotonic()  # a resumed run may be paused before it collects
        self._collect_began = self._working_time()
        optional_work = self._optional_work(generation)
        while True:
            is_idle = not self._read(generation)
            if self._is_interrupted() or self._inbox.stopped_by:
                raise Interrupted
            if not self._inbox.paused_by:
                if learner.is_enough(generation.state, generation.tables):
                    more = learner.more(generation.state, slots)
                    if more:
                        self._issue(generation, more)
                    elif self._audit is None or not self._audit.is_pending:
                        break
                elif self._is_time_up(generation.state):
                    return False
                self._refill(generation)
            if is_idle and next(optional_work, False):
                continue
            now = time.monotonic()
            if now >= self._next_look or slots.needs_look:
                self._look(generation)
                continue
            longest = AUDIT_SECONDS if self._audit else self._clocks.collect_wait
            self._store.wait(min(longest, self._next_look - now))
        self._failures.end("episodes of the evaluation failed with")
        if self._audit is not None:
            self._audit.compare(slots, self._workers.name_of)
        self._issuer.cutter.measure(slots)
        return True

    def _read(self, generation: Generation) -> bool:
        """Take what has come into the open tables. Returns whether there was anything."""
        tables = {slots.publication: slots for slots in generation.tables}
        types = {name: (slots.shape.result, slots.shape.moments) for name, slots in tables.items()}
        has_any = False
        for name, results, moments in self._store.read(types):
            has_any, slots = True, tables[name]
            refused = self._workers.refuses(results["worker"])  # under --strict
            if slots.tally.refuse("other-numerics", refused).any():
                # Moments name no worker: all go that came for these rows, which are played again.
                rows, results = results["row"][refused], results[~refused]
                moments = moments[~np.isin(moments["row"], rows)]
                slots.forget_moments(rows)
            settled = slots.accept(results, moments, self._arrived, len(self._workers.present))
            self._arrived += len(results)
            if len(settled):
                self._has_results, self._answered_at = True, time.time()
                failed = slots.table["state"][settled] == FAILED
                self._contributors.update(slots.table["worker"][settled[~failed]].tolist())
                for row in settled[failed].tolist():
                    reason = self._workers.reported_reason(slots, row)
                    failure = generation.learner.judge_failure(slots, row, reason)
                    if slots.table["kind"][row] in TRAINED:
                        self._last_failure = failure
                    else:
                        self._failures.warning(failure, reason)
                if slots is generation.slots:
                    self.recoveries.settle(settled)
            if slots.tally.conflict is not None and not self._has_conflict:
                warn_of_conflict(slots, self._workers.name_of)
                self._has_conflict = True
        return has_any

    def _is_time_up(self, state: RunState) -> bool:
        """Whether --max-seconds ends the open generation. Publications after training are waited
        for, unless no worker is present, or none has come to a run that was over already: then
        raises Unserved.
        """
        if state.stage != TRAINING and self._workers.is_deserted:
            raise Unserved
        # Settings that a person has just changed, for the next generation, count at once.
        changes = (*state.changes, *self._inbox.pending_changes)
        budget = self._timeline.max_seconds_at(changes, state.generation + 1)
        elapsed = self._working_time() - self._counted_at
        if not budget or state.counters.seconds + elapsed < budget:
            return False
        if state.stage == TRAINING:
            return True
        if self._workers.is_unserved:
            raise Unserved
        return False

    def _refill(self, generation: Generation) -> None:
        """Keep two blocks for each worker in the newest table (asynchronous schedule)."""
        learner, slots = generation.learner, generation.slots
        if not learner.is_async or generation.state.stage != TRAINING:
            return
        most = MOST_BATCHES_AHEAD * learner.population
        if fresh_count(generation.tables) >= most or len(slots.rows(CONFIRM)):
            return  # far enough ahead of an evaluation that is pending
        rows, workers = slots.rows(TRAIN), self._workers.live_count()
        waiting = int(slots.owed[rows].sum())
        least = BLOCKS_PER_WORKER * self._issuer.cutter.endless_size(workers) * workers
        more = min(learner.most_rows - len(rows), least + least // 2 - waiting)
        if waiting < least and more > 0:
            self._issue(generation, [Span(TRAIN, len(rows), len(rows) + more)])

    def _optional_work(self, generation: Generation) -> Iterator[bool]:
        """Optional work while results are awaited, in pieces: the next generation's plan, pages of
        the noise table, moments of the first rows. False when there is nothing to do now.
        """
        state, learner, slots = generation.state, generation.learner, generation.slots
        rows, following = slots.rows(TRAIN), state.generation + 1
        if len(rows) or learner.is_async:
            then = self._timeline.learner_at(replace(state, generation=following))
            training_plan(then.config, then.strategy, following, then.population)
            yield True
        size = learner.strategy.size
        for column in (*range(0, size, PAGE_FLOATS), size - 1):
            if len(rows) and self._touches_left > 0:
                self._touches_left -= len(rows)
                learner.noise.rows(slots.table["index"][rows], column, column + 1)
                yield True
        while not learner.is_async:
            yield slots.merge_early(state.moments)

    def _look(self, generation: Generation) -> None:
        """Each second: requests, the lease, what Redis has lost, the workers, and what nobody holds
        (rules 8, 10).
        """
        slots, clocks, began = generation.slots, self._clocks, time.monotonic()
        self._next_look = began + min(clocks.renew, clocks.reconcile)
        slots.needs_look = False
        self._poll_requests(generation)
        paused, scale = bool(self._inbox.paused_by), generation.learner.requested.scale
        done, total = generation.learner.done(generation.state, generation.tables)
        # Unlimited in the asynchronous schedule; none after training.
        trained = None if self.is_async else len(slots.rows(TRAIN)) or None
        progress = {
            "queue": self._queue,
            "scale": f"{scale:g}",
            "answered": f"{done}/{total}",
            "training_slots": str(trained or ""),
            "updated": f"{time.time():.3f}",
            "answered_at": f"{self._answered_at:.3f}",
            "recoveries": self.recoveries.to_json(),
            **self._inbox.progress_fields(),
            **self._workers.progress_fields(),
            **({"audited": str(self._audit.checked)} if self._audit else {}),
        }
        look = self._store.look(
            self._token,
            self._holder,
            clocks.lease,
            progress,
            self._refused + slots.tally.refused,
            leaving=self._workers.leaving(),
            grace=began < self._grace_until or self._store.outages != self._outages,
            clear=paused,
        )
        self._store.read_again(look.lost)
        if look.publication != slots.publication:
            self._send(generation.task.encode())
            LOGGER.warning("Redis has lost this generation: it is published again")
            self._note_loss(generation, began)
            slots.table["issued"][slots.owed] = False
            self._issue(generation)
            return
        if ended := self._store.retry.pop_ended_outages():
            # Outages within one look count as one.
            self.recoveries.record(REDIS_AWAY, sum(ended))
        if self._store.outages != self._outages:
            # Nobody is dead shortly after an outage, which interrupts heartbeats (rule 7).
            self._outages, self._grace_until = self._store.outages, began + clocks.beat_ttl
        self._workers.update()
        self._workers.maintain(served=self._has_results, paused=paused)
        figures = self._workers.live_figures(trained, scale, self._inbox.paused_by)
        self._show_live({**figures, "answered": done, "slots": total, "training_slots": trained})
        self._read(generation)  # what nobody held at the look and has not come by now is lost
        self._issuer.note_deaths(slots, look)
        held = {block.publication for blocks in look.claims.values() for block in blocks}
        for older in generation.tables[:-1]:
            older.is_held = older.publication in held
        if paused:
            return
        task = generation.task.encode()
        self._issuer.issue_lost(slots, look, self._workers.live_count(), task)
        if look.todo == () and () in map(look.claims.get, self._workers.present):
            self._next_look = min(self._next_look, began + STRAGGLER_SECONDS)
            self._issuer.copy_stragglers(slots)

    def _poll_requests(self, generation: Generation) -> None:
        was_paused, since = bool(self._inbox.paused_by), self._polled_at
        is_training = generation.state.stage == TRAINING
        self._inbox.poll(generation.slots.generation, is_training=is_training)
        self._polled_at = time.monotonic()
        if was_paused:
            self._paused_seconds += self._polled_at - since
        if was_paused and not self._inbox.paused_by:
            self._answered_at = time.time()  # a pause is no stall
            generation.slots.table["copied"] = False  # the pause emptied todo, copies too

    def refused(self) -> Counter[str]:
        """Results that did not count under this master, by reason."""
        open_now = Counter[str]() if self.current is None else self.current.slots.tally.refused
        return self._refused + open_now

    # --- learn

    def _learn(self, generation: Generation) -> Report:
        began, waited = time.monotonic(), self._working_time() - self._collect_began
        learner, state, slots = generation.learner, generation.state, generation.slots
        chosen = learner.choose(generation.tables)
        # Of batches of the asynchronous schedule all may fail, one after the other.
        self._failed_in_a_row += len(chosen.answered)
        if chosen.answered.any():
            self._failed_in_a_row = 0
        if learner.is_async and self._failed_in_a_row >= learner.population:
            raise EnvironmentFailure(
                f"every episode of a batch failed; the last was {self._last_failure}"
            )
        after, figures, returns_to = learner.learn(state, chosen)
        if after.generation > state.generation:
            changes = self._inbox.take_changes()
            after = self._timeline.advance(after, changes, learner, returns_to)
        is_finite = not figures.pop(NOT_FINITE, 0)
        # Those in effect, also in a generation that nothing is learnt from.
        figures["sigma"] = learner.strategy.sigma(state.strategy)
        if (rate := learner.strategy.step_rate) is not None:
            figures["learning_rate"] = rate
        self.recoveries.settle()
        counters = after.add_counts(
            late=self._workers.take_late(),
            reissued=self._issuer.reissued,
            recovered=self._issuer.recovered,
            seconds=self._take_seconds(),
        )
        self._issuer.reissued = self._issuer.recovered = 0
        at_patience = is_all_at_patience(chosen, learner.config)
        patience = state.counters.patience_generations + 1 if at_patience else 0
        after = replace(
            after,
            counters=replace(counters, patience_generations=patience),
            recoveries=dict(self.recoveries.totals),
            reproducible=state.reproducible and self._workers.is_uniform,
            numerics=self._workers.numerics,
        )
        seconds = generation.seconds + waited
        record: Record = {
            **generation.record,
            "seconds_wait": waited,
            **closed_record(state, chosen, after, learner.config, seconds),
            **figures,
            "seconds_update": time.monotonic() - began,
            "failed": int((slots.table["state"] == FAILED).sum()),
            "workers": len(self._contributors),
        }
        self._keep_refused(slots)
        self._contributors.clear()
        failure = self._last_failure
        return Report(generation, chosen, after, record, returns_to, is_finite, failure)

    def _take_seconds(self) -> float:
        """Seconds since the last call, without pauses."""
        now = self._working_time()
        took, self._counted_at = now - self._counted_at, now
        return took

    def _working_time(self) -> float:
        """The monotonic clock without the seconds of pauses."""
        return time.monotonic() - self._paused_seconds

    def _keep_refused(self, slots: Slots) -> None:
        self._refused += slots.tally.refused
        slots.tally.refused.clear()

    def _drop(self, generation: Generation) -> RunState:
        """--max-seconds has passed within the generation: training ends without it."""
        state, slots = generation.state, generation.slots
        answered, total = generation.learner.done(state, generation.tables)
        seconds = self._take_seconds()
        if state.generation:
            LOGGER.info(
                f"--max-seconds has passed: generation {state.generation} is dropped with "
                f"{answered} of {total} results, and training ends"
            )
        else:
            whole = format_duration((state.counters.seconds + seconds) * total / max(1, answered))
            pace = f" (a generation takes about {whole})" if answered else ""
            LOGGER.warning(
                f"--max-seconds has passed with {answered} of {total} results of the first "
                f"generation{pace}, so nothing was learnt: resume the run with "
                "more workers or a larger --max-seconds, or begin one with a smaller --population"
            )
        played = 0
        for each in generation.tables:
            played += each.steps(fresh := each.fresh())
            each.table["used"][fresh] = state.generation  # counted here, so no longer as stale
        played += slots.steps(slots.rows(*(kind for kind in range(len(KINDS)) if kind != TRAIN)))
        counters = state.add_counts(lost_steps=slots.tally.lost_steps + played, seconds=seconds)
        self._keep_refused(slots)
        return replace(state, stage=CLOSING, reason="max_seconds", counters=counters)


def run_digest(state: RunState, strategy: Strategy) -> str:
    return vector_digest(strategy.digest_input(state.strategy, strategy.published(state.strategy)))
