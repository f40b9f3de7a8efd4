"""The loop of evolution strategies (Salimans et al. 2017), over a changing set of workers.

``Master.train`` has the four steps of a generation; each has its own part below.
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

import numpy as np

from es_queue.config.run_config import ASYNC
from es_queue.config.scaling import format_scaling
from es_queue.errors import EnvironmentFailure, StrategyFailure
from es_queue.numerics.arrays import Floats, Mask
from es_queue.numerics.fingerprint import bytes_digest
from es_queue.numerics.return_statistics import ReturnStatistics, return_statistics
from es_queue.numerics.slot_plan import resolve_seed_sharing
from es_queue.protocol.messages import KINDS, Block, Task, token_number
from es_queue.protocol.store import Look, MasterStore
from es_queue.protocol.timing import Clocks
from es_queue.security.sanitize import sanitize
from es_queue.slots import (
    CONFIRM,
    ELITE,
    EVAL,
    FAILED,
    FINAL,
    HOST_FAILED,
    STRATEGY_FAILED,
    TRAIN,
    TRAINED,
    Rows,
    Slots,
    Span,
    Tally,
    format_slot,
    spans_from_bytes,
    spans_to_bytes,
    training_plan,
)
from es_queue.strategies.base import NOT_FINITE, Strategy
from master.control.inbox import ControlInbox
from master.display.format import Record, format_duration, format_values
from master.loop.audit import Audit, format_difference
from master.loop.blocks import BlockCutter, blocks_of_rows
from master.loop.config_timeline import ConfigTimeline, format_changes
from master.loop.figures import (
    counts,
    episodes_record,
    evaluation_record,
    evaluation_steps,
    is_all_at_patience,
    lag_record,
    totals_record,
    training_record,
    training_steps,
)
from master.loop.learner import Chosen, Learner, evaluation_of, to_open_publication
from master.loop.recovery_statistics import (
    REDIS_AWAY,
    REDIS_LOST,
    STRAGGLER,
    WORKER_DIED,
    RecoveryStatistics,
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
from master.loop.state import CLOSING, TRAINING, Best, Counters, RunState, vector_digest
from master.loop.state import FINAL as ENDING
from master.loop.stopping import reason_to_stop
from master.loop.workers import Workers
from master.storage import checkpoint

LOGGER = logging.getLogger("es_queue.loop")

SYNC_LABEL = "sync"
ASYNC_LABEL = "async: not bit-reproducible; --replay repeats the run from its log"
#: Checkpoints of up to so many bytes are in Redis for each generation, of larger ones every tenth;
#: Redis takes no value beyond the last (proto-max-bulk-len).
REDIS_CHECKPOINT_BYTES, REDIS_CHECKPOINT_EVERY, REDIS_CHECKPOINT_MOST = 8 * 2**20, 10, 2**29
#: Blocks that are issued first, in all and for each worker; the rest follow while they are played.
FIRST_BLOCKS, FIRST_PER_WORKER = 1024, 4
#: How many times its expected duration a block may take before an idle worker plays it too, and how
#: often that is looked at when nothing waits to be claimed.
STRAGGLER_FACTOR, STRAGGLER_SECONDS = 3, 0.25
DEATHS = 10
#: Blocks of the asynchronous schedule for each worker: the one that it plays and one that waits.
#: More that wait would be played too late, where the master is slow.
BLOCKS_PER_WORKER, MOST_BATCHES_AHEAD = 2, 2
LONGEST_REASON = 4000
AUDIT_SECONDS = 0.02
#: Floats of a page of memory, and once so many times the noise table's pages were touched, hardly
#: one is left that was not.
PAGE_FLOATS, TOUCHES_PER_PAGE = 1024, 4
GENERATION_LOST = "Redis has lost this generation: it is published again"
FORMER_GENERATION_LOST = (
    "Redis has lost the previous generation, or has another one: this one replaces it"
)


class Interrupted(Exception):  # noqa: N818 - it is no error: a person asked to stop
    """A request to stop the master, between two reads of the results."""


class Unserved(Interrupted):
    """Training has ended, and no worker is there for the evaluations that follow."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended. evaluation: the final one, the only figure to quote."""

    state: RunState
    best: Best
    evaluation: ReturnStatistics | None
    digest: str


@dataclass(frozen=True)
class Generation:
    """A published generation.

    tables: whose results count, oldest first; only the asynchronous schedule has older ones
    vector: the parameters that workers perturb; digest: of the run's parameters; checkpoint: of the
    state; seconds: that publishing took
    """

    state: RunState
    learner: Learner
    tables: Sequence[Slots]
    task: Task
    vector: Floats
    digest: str
    checkpoint: bytes
    seconds: float = 0.0

    @property
    def slots(self) -> Slots:
        """The newest table."""
        return self.tables[-1]

    @property
    def record(self) -> Record:
        number = self.state.generation
        changes = [change for change in self.state.changes if change.generation == number]
        return {
            "generation": number,
            "publication": self.task.publication,
            "digest": self.digest,
            "bytes_published": 4 * len(self.vector),
            "seconds_publish": self.seconds,
            "step_limit": self.state.step_limit,
            "changed": format_changes(changes) or None,
        }


@dataclass(frozen=True)
class Report:
    """A closed generation and its outcome.

    chosen: the rows that it learnt from; after: the next generation's state; record: its figures;
    has_learnt: whether the parameters changed; rolled_back_to: the generation of the restored
    search; is_finite: whether the learnt state was finite; last_failure: the newest failed slot, in
    words
    """

    generation: Generation
    chosen: Chosen
    after: RunState
    record: Record
    has_learnt: bool
    rolled_back_to: int | None
    is_finite: bool = True
    last_failure: str = ""


class Listener:
    """What happens once a generation: files, display, a user's own. Called by the loop in this
    order.
    """

    def on_published(self, generation: Generation) -> None:
        """Workers play the generation."""

    def on_generation(self, report: Report) -> None:
        """The generation has closed; the next one is not published yet."""

    def on_finished(self, generation: Generation, outcome: Outcome) -> None:
        """The final episodes are played."""


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
        listeners: Sequence[Listener] = (),
        audit: Audit | None = None,
        show_live: Callable[[Record], None] = lambda figures: None,
        is_interrupted: Callable[[], bool] = lambda: False,
        keep_going: Callable[[Record], bool] = lambda record: True,
    ) -> None:
        """``show_live``: called once a second while results are awaited; ``is_interrupted``:
        whether a person asked to stop; ``keep_going``: whether the caller wants another generation.
        """
        self._timeline, self._store, self._clocks = timeline, store, clocks
        self._token, self._holder, self._noise_digest = token, holder, noise_digest
        self._workers, self._inbox, self._queue = workers, inbox, queue
        self._listeners, self._audit = listeners, audit
        self._show_live, self._is_interrupted = show_live, is_interrupted
        self._keep_going = keep_going
        self.recoveries = RecoveryStatistics()
        self.current: Generation | None = None
        self._cutter = BlockCutter(timeline.base)
        self._older: list[Slots] = []
        self._last_number, self._arrived = -1, 0
        self._has_results, self._answered_at = False, time.time()
        self._held_since: dict[tuple[str, Block], float] = {}
        self._next_look = self._grace_until = 0.0
        self._outages = store.outages
        self._recovered = self._reissued = self._failed_in_a_row = 0
        self._contributors: set[int] = set()
        self._refused = Counter[str]()
        self._has_conflict = False
        self._idle_work = deque[Callable[[], object]]()
        self._touches_left = TOUCHES_PER_PAGE * -(-timeline.config.noise_size // PAGE_FLOATS)
        self._clock, self._paused_at, self._paused = time.monotonic(), 0.0, 0.0
        self._last_reason = ""

    @property
    def is_without_workers(self) -> bool:
        return self._workers.idle_monitor.is_unserved

    @property
    def is_async(self) -> bool:
        return self._timeline.config.schedule == ASYNC

    # --- the loop

    def train(self, state: RunState, adopted: Task | None = None) -> Outcome:
        """Train until a budget, the target or a request ends the run, then play the final episodes.

        adopted: the header that a former master left open for exactly this state (rule 11). Raises
        Interrupted between two reads of the results; collected results stay in Redis.
        """
        self._workers.registry.numerics = state.numerics
        self.recoveries.restore(state.recoveries)
        state = replace(state, reproducible=state.reproducible and not self.is_async)
        record: Record = {}
        while state.stage != ENDING:
            # Publish the parameters: workers play perturbations of them.
            generation = self._publish(state, record, adopted)
            adopted = None
            # Collect the results of every slot.
            began = time.monotonic()
            if not self._collect(generation):
                state, record = self._drop(generation), {}
                continue
            # Rank the fitness and update the parameters.
            report = self._learn(generation, time.monotonic() - began)
            for listener in self._listeners:
                listener.on_generation(report)
            state, record = self._next_stage(report), report.record
        return self._play_final_episodes(state, record)

    def _play_final_episodes(self, state: RunState, record: Record) -> Outcome:
        learner = self._timeline.learner_at(state)
        best = state.best or learner.best_policy(state, float("nan"))
        generation = self._publish(replace(state, best=best), record)
        self._collect(generation)
        returns = generation.slots.returns(FINAL)
        outcome = Outcome(state, best, return_statistics(returns), generation.digest)
        for listener in self._listeners:
            listener.on_finished(generation, outcome)
        return outcome

    # --- publish

    def _publish(self, state: RunState, last: Record, adopted: Task | None = None) -> Generation:
        """Open the table of a state. last: the record of the generation before."""
        began, learner = time.monotonic(), self._timeline.learner_at(state)
        # The final episodes are published after the closing generation, so under the next number. A
        # closing generation may replace a dropped one, and no publication's name is used twice.
        number = max(state.generation + (state.stage == ENDING), self._last_number + 1)
        self._last_number = number
        name = adopted.publication if adopted else f"{number}.{self._token}"
        spans = spans_from_bytes(adopted.spans) if adopted else None
        slots = learner.slots(state, number, name, spans)
        tables = [*self._take_open(state, learner, number), slots]
        tally = Tally()
        for each in tables:
            each.tally, each.identify = tally, self._workers.reporter_of
        vector, statistics, identified = learner.published(state)
        data = vector.astype("<f4").tobytes()
        task = Task(
            name,
            learner.strategy.sigma(state.strategy),
            state.step_limit,
            len(vector),
            bytes_digest(data),
            statistics.mean.astype("<f4").tobytes(),
            statistics.std.astype("<f4").tobytes(),
            self._noise_digest,
            # At most 2,500 polls of the leave flags per second in all.
            max(self._clocks.leave_poll, len(self._workers.present) / 2500),
            spans_to_bytes(slots.spans),
            slots.shape.result.itemsize,
            slots.shape.moments.itemsize,
        )
        opened = tuple(map(to_open_publication, tables[:-1]))
        saved = self._encode_checkpoint(replace(state, open=opened), learner)
        digest = task.digest if identified is vector else vector_digest(identified)
        generation = Generation(state, learner, tables, task, vector, digest, saved)
        self._open(generation, last, adopted is not None)
        generation = replace(generation, seconds=time.monotonic() - began)
        self.current = generation
        for listener in self._listeners:
            listener.on_published(generation)
        return generation

    def _take_open(self, state: RunState, learner: Learner, number: int) -> list[Slots]:
        """Older tables that stay open: those that a worker holds a block of, or whose results are
        not used yet, for at most ``max_lag`` generations.
        """
        if not learner.is_async or state.stage != TRAINING:
            return []
        if self.current is None:
            return [learner.reopen(opened) for opened in state.open]
        kept: list[Slots] = []
        for slots in self.current.tables:
            is_new = number - slots.generation <= learner.config.max_lag
            fresh = slots.fresh()
            if is_new and (slots.is_held or len(fresh)):
                kept.append(slots)
            else:
                slots.tally.refused["stale"] += len(fresh)
                slots.tally.lost_steps += slots.steps(fresh)
        return kept

    def _encode_checkpoint(self, state: RunState, learner: Learner) -> bytes:
        return checkpoint.encode(
            self._timeline.config,
            self._timeline.base.spec,
            self._store.run,
            replace(state, epoch=token_number(self._token), noise=self._noise_digest),
            learner.strategy.centre(learner.strategy.published(state.strategy)),
        )

    def _open(self, generation: Generation, last: Record, is_adopted: bool) -> None:
        """Publish, unless a former master left it open; then issue its rows."""
        before, self.current = self.current, generation
        self._idle_work.clear()
        self._held_since.clear()
        data = generation.vector.astype("<f4").tobytes()
        if self._audit is not None:
            self._audit.begin(data)
        state, saved = generation.state, generation.checkpoint
        is_small = len(saved) <= REDIS_CHECKPOINT_BYTES
        in_redis = is_small or state.generation % REDIS_CHECKPOINT_EVERY == 0
        self._send = partial(
            self._store.open,
            self._token,
            generation.task.publication,
            data,
            config=generation.learner.requested.to_json(),
            progress=self._first_progress(generation, last),
            history=format_values(last) if last else None,
            checkpoint=for_redis(saved) if in_redis else None,
            keep=[slots.publication for slots in generation.tables[:-1]],
        )
        if is_adopted:  # the next look shows what nobody holds
            generation.slots.table["issued"] = True
            self._next_look = 0.0
        else:
            began = time.monotonic()
            previous = self._send(generation.task.encode())
            former = before.task.publication if before else ""
            if before and previous not in (former, generation.task.publication):
                LOGGER.warning(FORMER_GENERATION_LOST)
                self._note_loss(began)
            self._issue_new()
        self._inbox.acknowledge_changes()
        self._prefetch(generation)

    def _first_progress(self, generation: Generation, last: Record) -> dict[str, str]:
        state, learner = generation.state, generation.learner
        changes = [change for change in state.changes if change.generation <= state.generation]
        evaluation = state.last_evaluation
        return format_values(
            {
                **{name: value for name, value in last.items() if name != "publication"},
                **{f"reward_{name}": last.get(f"return_{name}") for name in ("mean", "max")},
                "changed": format_changes(changes).rpartition("; ")[2],
                "origin": state.origin,
                **self._inbox.progress_fields(),
                "stage": state.stage,
                "env": learner.config.task,
                "strategy": learner.config.strategy,
                "schedule": ASYNC_LABEL if self.is_async else SYNC_LABEL,
                "noise": self._noise_digest,
                "eval_mean": last.get("eval_mean") if evaluation is None else evaluation,
                "digest": generation.digest,
                "generation": state.generation,
                "updated": f"{time.time():.3f}",
            }
        )

    def _prefetch(self, generation: Generation) -> None:
        """Optional work for the next generation, while results are awaited."""
        state, learner, rows = generation.state, generation.learner, generation.slots.rows(TRAIN)
        if not len(rows) and not learner.is_async:
            return
        after = replace(state, generation=state.generation + 1)

        def plan() -> None:
            following = self._timeline.learner_at(after)
            training_plan(
                following.config, following.strategy, after.generation, following.population
            )

        def touch_noise(column: int) -> None:
            if self._touches_left > 0:
                indices = generation.slots.table["index"][rows]
                self._touches_left -= len(indices)
                learner.noise.rows(indices, column, column + 1)

        size = learner.strategy.size
        self._idle_work.append(plan)
        if self._touches_left > 0 and len(rows):
            columns = (*range(0, size, PAGE_FLOATS), size - 1)
            self._idle_work.extend(partial(touch_noise, column) for column in columns)

    # --- collect: until enough slots have a result

    def _collect(self, generation: Generation) -> bool:
        """Collect until the generation can close and the run is not paused. False if its time is
        up before.

        Raises Interrupted, FencedError, RedisError, EnvironmentFailure, StrategyFailure.
        """
        slots, learner = generation.slots, generation.learner
        while True:
            is_idle = not self._read()
            if not self._inbox.paused_by:
                if self._is_enough(generation):
                    more = learner.more(generation.state, slots)
                    if more:
                        self._extend(more)
                    elif self._audit is None or not self._audit.is_pending:
                        break
                elif self._is_time_up(generation.state):
                    return False
                self._refill()
            if self._is_interrupted() or self._inbox.stopped_by:
                raise Interrupted
            if is_idle and self._idle_work:
                self._idle_work.popleft()()
                continue
            if is_idle and not learner.is_async and slots.merge_early(generation.state.moments):
                continue
            now = time.monotonic()
            if now >= self._next_look or slots.needs_look:
                self._look()
                continue
            longest = AUDIT_SECONDS if self._audit else self._clocks.collect_wait
            self._store.wait(min(longest, self._next_look - now))
        if self._is_interrupted() or self._inbox.stopped_by:
            raise Interrupted
        if self._audit is not None:
            self._audit.compare(slots, self._workers.name_of)
        self._cutter.measure(slots)
        return True

    def _read(self) -> bool:
        """Take what has come into the open tables. Returns whether there was anything."""
        assert self.current is not None
        tables = {slots.publication: slots for slots in self.current.tables}
        types = {name: (slots.shape.result, slots.shape.moments) for name, slots in tables.items()}
        has_any = False
        for name, results, moments in self._store.read(types):
            has_any, slots = True, tables[name]
            refused = self._workers.refuses(results["worker"])  # under --strict
            results = results[slots.tally.refuse("other-numerics", refused)]
            settled = slots.accept(results, moments, self._arrived, len(self._workers.present))
            self._arrived += len(results)
            if len(settled):
                self._note_settled(slots, settled)
            if slots.tally.conflicts:
                self._note_conflicts(slots)
        return has_any

    def _note_settled(self, slots: Slots, settled: Rows) -> None:
        self._has_results, self._answered_at = True, time.time()
        self._contributors.update(np.unique(slots.table["worker"][settled]).tolist())
        if (slots.table["state"][settled] == FAILED).any():
            for row in settled.tolist():
                if slots.table["state"][row] == FAILED:
                    self._fail(slots, row)
        if self.recoveries.is_waiting:
            assert self.current is not None
            if slots is self.current.slots:
                self.recoveries.settle(settled.tolist())

    def _is_enough(self, generation: Generation) -> bool:
        """All rows; in the asynchronous schedule a batch of any tables, and the evaluation."""
        slots, learner = generation.slots, generation.learner
        if not learner.is_async or generation.state.stage != TRAINING:
            return slots.is_complete()
        fresh = sum(len(each.fresh()) for each in generation.tables)
        # Nobody claims a block of an older table, so elites must be claimed before that. Their
        # blocks precede those of training.
        trained = slots.rows(TRAIN)
        claimed = not len(slots.rows(ELITE)) or not slots.owed[trained].all()
        return fresh >= learner.batch_size and claimed and slots.is_complete(EVAL, CONFIRM)

    def _is_time_up(self, state: RunState) -> bool:
        """Whether --max-seconds ends the open generation. Publications after training are waited
        for, unless no worker is present: then raises Unserved.
        """
        # Settings that a person has just changed, for the next generation, count at once.
        changes = (*state.changes, *self._inbox.pending_changes)
        budget = self._timeline.max_seconds_at(changes, state.generation + 1)
        elapsed = time.monotonic() - self._clock - self._paused
        if not budget or state.counters.seconds + elapsed < budget:
            return False
        if state.stage == TRAINING:
            return True
        if self.is_without_workers:
            raise Unserved
        return False

    def _extend(self, spans: Iterable[Span]) -> None:
        """Add rows to the newest table, and issue them."""
        assert self.current is not None
        slots = self.current.slots
        slots.add(spans)
        task = replace(self.current.task, spans=spans_to_bytes(slots.spans))
        self.current = replace(self.current, task=task)
        self._issue_new(task.encode())

    def _refill(self) -> None:
        """Keep two blocks for each worker in the newest table (asynchronous schedule)."""
        generation = self.current
        assert generation is not None
        learner, slots = generation.learner, generation.slots
        if not learner.is_async or generation.state.stage != TRAINING:
            return
        fresh = sum(len(each.fresh()) for each in generation.tables)
        if fresh >= MOST_BATCHES_AHEAD * learner.population or len(slots.rows(CONFIRM)):
            return  # far enough ahead of an evaluation that is pending
        rows, workers = slots.rows(TRAIN), self._workers.live_count()
        waiting = int(slots.owed[rows].sum())
        least = BLOCKS_PER_WORKER * self._cutter.endless_size(workers) * workers
        more = min(learner.most_rows - len(rows), least + least // 2 - waiting)
        if waiting < least and more > 0:
            self._extend([Span(TRAIN, len(rows), len(rows) + more)])

    # --- what is owed, and who plays it

    def _issue_new(self, task: bytes = b"") -> None:
        """Issue the rows that were never issued; task: the header of a table that has grown."""
        assert self.current is not None
        slots, workers = self.current.slots, self._workers.expected_count()
        rows = np.flatnonzero(slots.owed & ~slots.table["issued"])
        alone = np.zeros(len(slots), np.bool_)
        if self.current.learner.is_async:
            trained = slots.table["kind"][rows] == TRAIN
            first = self._cutter.cut(slots, rows[~trained], workers, alone)
            blocks = iter([*first, *self._cutter.endless(slots, rows[trained], workers)])
        else:
            blocks = self._cutter.cut(slots, rows, workers, alone)
        slots.table["issued"][rows] = True
        if self._audit is not None:
            self._audit.follow(slots, self.current.task.encode(), workers)
        name, most = slots.publication, max(FIRST_BLOCKS, FIRST_PER_WORKER * workers)
        while chunk := list(islice(blocks, most)):
            self._store.issue(self._token, name, chunk, task)
            task, most = b"", 8 * FIRST_BLOCKS
        if task:
            self._store.issue(self._token, name, [], task)

    def _look(self) -> None:
        """Each second: requests, the lease, what Redis has lost, the workers, and what nobody holds
        (rules 8, 10).
        """
        generation, began = self.current, time.monotonic()
        assert generation is not None
        slots, clocks = generation.slots, self._clocks
        self._next_look = began + min(clocks.renew, clocks.reconcile)
        slots.needs_look = False
        self._poll_requests(generation)
        paused = bool(self._inbox.paused_by)
        look = self._store.look(
            self._token,
            self._holder,
            clocks.lease,
            self._progress(generation),
            self._refused + slots.tally.refused,
            give_way=self._workers.leaving(),
            grace=began < self._grace_until or self._store.outages != self._outages,
            clear=paused,
        )
        self._store.read_again(look.lost)
        if look.publication != slots.publication:
            self._publish_again(began)
            return
        if ended := self._store.ended_outages():
            # What failed one after the other within a second failed by one cause.
            self.recoveries.record_recovery(REDIS_AWAY, sum(ended))
        if self._store.outages != self._outages:
            # Nobody is dead shortly after an outage, which interrupts heartbeats (rule 7).
            self._outages, self._grace_until = self._store.outages, began + clocks.beat_ttl
        self._workers.update()
        self._workers.maintain(served=self._has_results, paused=paused)
        self._show(generation, paused)
        self._read()  # what nobody held at the look and has not come by now is lost
        self._note_deaths(slots, look)
        held = {block.publication for blocks in look.claims.values() for block in blocks}
        for older in generation.tables[:-1]:
            older.is_held = older.publication in held
        if not paused:
            self._issue_again(generation, look)

    def _poll_requests(self, generation: Generation) -> None:
        was_paused = bool(self._inbox.paused_by)
        is_training = generation.state.stage == TRAINING
        self._inbox.poll(generation.slots.generation, is_training=is_training)
        now = time.monotonic()
        if was_paused:
            self._paused += now - self._paused_at
        self._paused_at = now
        if was_paused and not self._inbox.paused_by:
            self._answered_at = time.time()  # a pause is no stall
            generation.slots.table["copied"] = False  # it took the copies out of todo

    def _publish_again(self, began: float) -> None:
        assert self.current is not None
        self._send(self.current.task.encode())
        LOGGER.warning(GENERATION_LOST)
        self._note_loss(began)
        slots = self.current.slots
        slots.table["issued"][slots.owed] = False
        self._issue_new()

    def _note_loss(self, began: float) -> None:
        """Redis had lost data and has it again."""
        assert self.current is not None
        self._store.read_again([slots.publication for slots in self.current.tables])
        self._held_since.clear()
        self.recoveries.record_recovery(REDIS_LOST, time.monotonic() - began)
        self._grace_until = time.monotonic() + self._clocks.beat_ttl

    def _note_deaths(self, slots: Slots, look: Look) -> None:
        """A worker died while it held these blocks; the first was being played."""
        owed = slots.owed
        for blocks in look.dead:
            if not blocks:
                continue
            self._recovered += 1
            mine = [block for block in blocks if block.publication == slots.publication]
            if not mine:  # a copy was answered, and the generation closed, before it was missed
                self.recoveries.record_recovery(WORKER_DIED, 0.0)
                continue
            missing = [row for block in mine for row in rows_of(block, owed)]
            self.recoveries.start_recovery(WORKER_DIED, missing)
            if mine[0] is not blocks[0]:
                continue
            for row in rows_of(mine[0], owed):
                slots.table["deaths"][row] += 1
                if slots.table["deaths"][row] >= DEATHS:
                    raise EnvironmentFailure(
                        f"{DEATHS} workers died while playing {format_slot(slots, row)}: it may "
                        "end or block its process, or need more memory than the hosts have; the "
                        "workers' terminals show how they ended"
                    )

    def _issue_again(self, generation: Generation, look: Look) -> None:
        """Issue the rows that nobody holds, and those of stragglers once more."""
        if look.todo is None:
            return
        slots, now = generation.slots, time.monotonic()
        held = [(worker, block) for worker, blocks in look.claims.items() for block in blocks]
        lost = slots.owed & slots.table["issued"]
        for block in (*look.todo, *(block for _, block in held)):
            if block.publication == slots.publication:
                lost[block.start : block.stop] = False
        self._held_since = {key: self._held_since.get(key, now) for key in held}
        is_idle = any(look.claims.get(worker) == () for worker in self._workers.present)
        if not look.todo and is_idle:
            self._next_look = min(self._next_look, now + STRAGGLER_SECONDS)
            self._copy_stragglers(slots, now)
        rows = np.flatnonzero(lost)
        if not len(rows):
            return
        workers = self._workers.live_count()
        blocks = list(self._cutter.cut(slots, rows, workers, slots.suspects()))
        self._store.issue(self._token, slots.publication, blocks, front=True)
        self._reissued += len(rows)

    def _copy_stragglers(self, slots: Slots, now: float) -> None:
        """Issue the owed rows of overdue blocks once more, each alone."""
        overdue: Mask = np.zeros(len(slots), np.bool_)
        for (_, block), since in self._held_since.items():
            if block.publication != slots.publication:
                continue
            expected = self._cutter.expected(KINDS.index(block.kind), block.stop - block.start)
            if now - since >= max(self._clocks.overdue, STRAGGLER_FACTOR * expected):
                overdue[block.start : block.stop] = True
        rows = np.flatnonzero(overdue & slots.owed & ~slots.table["copied"]).tolist()
        if not rows:
            return
        slots.table["copied"][rows] = True
        self._store.issue(self._token, slots.publication, blocks_of_rows(slots, rows))
        self.recoveries.start_recovery(STRAGGLER, rows)
        self._reissued += len(rows)

    # --- what fails

    def _fail(self, slots: Slots, row: int) -> None:
        """A failure that depends only on the slot counts as the worst; any other stops the run."""
        reports, kind = slots.reports(row).total(), int(slots.table["kind"][row])
        reason = sanitize(self._reason(slots, row), LONGEST_REASON)
        named = format_slot(slots, row)
        failure = int(slots.table["failure"][row])
        if failure == HOST_FAILED:
            raise EnvironmentFailure(
                f"{named} failed {reports} times because of the workers' hosts: {reason}"
            )
        if failure == STRATEGY_FAILED:
            raise StrategyFailure(reason)
        if kind not in TRAINED:
            raise EnvironmentFailure(
                f"{named} failed {reports} times, and an evaluation must be complete: {reason}"
            )
        self._last_reason = f"{named}: {reason}"
        rows = slots.rows(TRAIN)
        assert self.current is not None
        if not self.current.learner.is_async and (slots.table["state"][rows] == FAILED).all():
            raise EnvironmentFailure(
                f"every episode of a generation failed{self._seed_advice(slots)}; the last was "
                f"{self._last_reason}"
            )

    def _reason(self, slots: Slots, row: int) -> str:
        """Why the row failed, as a worker has reported it."""
        about = slots.table[row]
        expected = (slots.generation, KINDS[about["kind"]], int(about["number"]))
        for text in reversed(self._store.errors()):
            try:
                report = json.loads(text)
                found = (report.get("generation"), report.get("kind"), report.get("slot"))
            except (ValueError, AttributeError, RecursionError):
                continue
            if found == expected:
                return str(report.get("reason", ""))
        return "the reports of workers do not say why"

    def _seed_advice(self, slots: Slots) -> str:
        """Advice if one environment seed fails on every worker."""
        sharing = resolve_seed_sharing(slots.config, slots.shape.individuals)
        return (
            ": all of them had the same environment seed; --env-seeds slot gives each its own"
            if sharing == "generation"
            else ""
        )

    def _note_conflicts(self, slots: Slots) -> None:
        """Name two results of one slot once: on equal hardware, they are a sign of a broken
        host.
        """
        if not self._has_conflict:
            row, first, second = slots.tally.conflicts[0]
            one, other = format_difference(first, second)
            LOGGER.warning(
                f"two workers returned different results of {format_slot(slots, row)}: "
                f"{self._workers.name_of(int(first['worker']))} {one}, "
                f"{self._workers.name_of(int(second['worker']))} {other}; the first counts, and "
                "more of these are only counted (refused: conflict): compare the hosts' packages "
                "and test their memory, or find the broken one with --audit"
            )
        self._has_conflict = True
        slots.tally.conflicts.clear()

    # --- what people see meanwhile

    def _answer_counts(self, generation: Generation) -> tuple[int, int]:
        """(slots with a result, slots that the generation closes on)."""
        slots = generation.slots
        if generation.learner.is_async and generation.state.stage == TRAINING:
            fresh = sum(len(each.fresh()) for each in generation.tables)
            return min(fresh, generation.learner.batch_size), generation.learner.batch_size
        return len(slots) - int(slots.owed.sum()), len(slots)

    def _training_slots(self, generation: Generation) -> int | None:
        """Training slots of the generation; None if they are unlimited, or there are none."""
        return None if generation.learner.is_async else len(generation.slots.rows(TRAIN)) or None

    def _progress(self, generation: Generation) -> dict[str, str]:
        done, total = self._answer_counts(generation)
        workers, slots = self._workers, self._training_slots(generation)
        starting = workers.idle_monitor.starting
        return {
            "queue": self._queue,
            "workers": str(len(workers.present)),
            "starting": str(starting) if starting else "",
            "busy": "" if workers.busy is None else f"{workers.busy:.3f}",
            "scale": f"{generation.learner.requested.scale:g}",
            "answered": f"{done}/{total}",
            "training_slots": "" if slots is None else str(slots),
            "updated": f"{time.time():.3f}",
            "answered_at": f"{self._answered_at:.3f}",
            **self._inbox.progress_fields(),
            "recoveries": self.recoveries.to_json(),
            **workers.registry.progress_fields(),
            **(self._audit.progress_fields() if self._audit else {}),
        }

    def _show(self, generation: Generation, paused: bool) -> None:
        workers, monitor = self._workers, self._workers.idle_monitor
        done, total = self._answer_counts(generation)
        figures: Record = {"workers": len(workers.present), "answered": done, "slots": total}
        if paused:
            monitor.notice_pause()
            figures["waiting"] = f"paused by {self._inbox.paused_by}"
        else:
            slots, scale = self._training_slots(generation), generation.learner.requested.scale
            monitor.note_idle(len(workers.present), workers.busy, slots, scale)
            if monitor.starting and not workers.present:
                figures["waiting"] = "local workers are starting"
        if workers.busy is not None:
            figures["busy"] = workers.busy
        self._show_live(figures)

    def refused(self) -> Counter[str]:
        """Results that did not count under this master, by reason."""
        open_now = Counter[str]() if self.current is None else self.current.slots.tally.refused
        return self._refused + open_now

    # --- learn

    def _learn(self, generation: Generation, waited: float) -> Report:
        began, learner, state = time.monotonic(), generation.learner, generation.state
        slots = generation.slots
        chosen = learner.choose(generation.tables)
        evaluation = evaluation_of(slots, EVAL)
        current = learner.with_best(state, slots)
        # After training has ended there is nothing to go back to: a run that is extended later
        # must not know of the evaluation of its end.
        if learner.config.rollback and state.stage == TRAINING:
            current = with_rollback_point(state, current, evaluation)
        if learner.deadlines and state.stage == TRAINING:
            current = with_evaluation(current, evaluation)
        has_learnt = state.stage == TRAINING and not is_confirmed(current)
        returns_to, is_finite = None, True
        after, figures = current, dict[str, float]()
        if has_learnt:
            self._refuse_endless_failure(chosen)
            after, figures, returns_to = self._next_search(generation, current, chosen, evaluation)
            is_finite = not figures.pop(NOT_FINITE, 0)
        learner.mark_used(state, chosen)
        # Those in effect, also in a generation that nothing is learnt from.
        figures["sigma"] = learner.strategy.sigma(state.strategy)
        if (rate := learner.strategy.step_rate) is not None:
            figures["learning_rate"] = rate
        registry, paused = self._workers.registry, self._take_pauses()
        self.recoveries.finish_all()
        after = replace(
            after,
            counters=self._count(generation, chosen),
            recoveries=self.recoveries.totals(),
            reproducible=state.reproducible and registry.is_uniform,
            numerics=registry.numerics,
        )
        if after.descent.generation > state.generation:
            after = with_first_step(after)
        waited -= paused
        record: Record = {
            **generation.record,
            "seconds_wait": waited,
            **(lag_record(state, chosen) if learner.is_async and has_learnt else {}),
            **training_record(chosen),
            **episodes_record(chosen, learner.config.episodes),
            **evaluation_record(slots, current),
            **figures,
            "seconds_update": time.monotonic() - began,
            "failed": int((slots.table["state"] == FAILED).sum()),
        }
        steps = training_steps(chosen) + evaluation_steps(slots)
        seconds = generation.seconds + waited
        record |= totals_record(after, learner.config, steps, seconds, len(self._contributors))
        self._refused += slots.tally.refused
        slots.tally.refused.clear()
        self._contributors.clear()
        return Report(
            *(generation, chosen, after, record, has_learnt, returns_to, is_finite),
            self._last_reason,
        )

    def _refuse_endless_failure(self, chosen: Chosen) -> None:
        """Raises EnvironmentFailure if every episode of an asynchronous batch has failed."""
        if not self.is_async:
            return
        failed = chosen.column("state") == FAILED
        self._failed_in_a_row = self._failed_in_a_row + len(failed) if failed.all() else 0
        assert self.current is not None
        if self._failed_in_a_row >= self.current.learner.population:
            raise EnvironmentFailure(
                f"every episode of a batch failed; the last was {self._last_reason}"
            )

    def _next_search(
        self,
        generation: Generation,
        current: RunState,
        chosen: Chosen,
        evaluation: ReturnStatistics | None,
    ) -> tuple[RunState, dict[str, float], int | None]:
        """The next generation's search, newly learnt or rolled back, under that generation's
        settings; and the generation that it returns to.
        """
        returns_to, before = None, generation.learner.strategy
        if has_regressed(current, evaluation):
            returns_to = current.anchor.generation if current.anchor else 0
            after, figures = roll_back(current), {"rolled_back": float(returns_to)}
            before = self._timeline.strategy_at(after.changes, returns_to)
        elif evaluation is not None and is_overdue(current, generation.learner.deadlines):
            after, returns_to = begin_descent(current), 0
            figures = {"descent": float(after.descent.number)}
            before = self._timeline.strategy_at(after.changes, returns_to)
        else:
            after, figures = generation.learner.learn(current, chosen)
        changes = self._inbox.take_changes()
        after = self._timeline.advance(after, changes, before)
        requested = self._timeline.config_at(after.changes, after.generation)
        if requested.scale != generation.learner.requested.scale:
            LOGGER.info(format_scaling(requested))
        return after, figures, returns_to

    def _count(self, generation: Generation, chosen: Chosen) -> Counters:
        """The run's counters including the closed generation."""
        config, state = generation.learner.config, generation.state
        at_patience = is_all_at_patience(chosen, config)
        counters = state.add_counts(
            **counts(chosen, config),
            late=self._workers.take_late(),
            reissued=self._reissued,
            recovered=self._recovered,
            seconds=self._take_seconds(),
        )
        self._reissued = self._recovered = 0
        patience = state.counters.patience_generations + 1 if at_patience else 0
        return replace(counters, patience_generations=patience)

    def _take_pauses(self) -> float:
        """Seconds of pauses since the last call."""
        self._clock += self._paused
        paused, self._paused = self._paused, 0.0
        return paused

    def _take_seconds(self) -> float:
        """Seconds since the last call, without pauses."""
        now = time.monotonic()
        took, self._clock = max(0.0, now - self._clock), now
        return took

    def _drop(self, generation: Generation) -> RunState:
        """--max-seconds has passed within the generation: training ends without it."""
        state, slots = generation.state, generation.slots
        answered, total = self._answer_counts(generation)
        self._take_pauses()
        spent = state.counters.seconds + time.monotonic() - self._clock
        if state.generation:
            LOGGER.info(
                f"--max-seconds has passed: generation {state.generation} is dropped with "
                f"{answered} of {total} results, and training ends"
            )
        else:
            whole = format_duration(spent * total / max(1, answered))
            pace = f" (a generation takes about {whole})" if answered else ""
            LOGGER.warning(
                f"--max-seconds has passed with {answered} of {total} results of the first "
                f"generation{pace}, so nothing was learnt: resume the run with "
                "more workers or a larger --max-seconds, or begin one with a smaller --population"
            )
        played = sum(each.steps(each.fresh()) for each in generation.tables)
        played += slots.steps(slots.rows(*(kind for kind in range(len(KINDS)) if kind != TRAIN)))
        counters = state.add_counts(
            lost_steps=slots.tally.lost_steps + played, seconds=self._take_seconds()
        )
        self._refused += slots.tally.refused
        slots.tally.refused.clear()
        return replace(state, stage=CLOSING, reason="max_seconds", counters=counters)

    def _next_stage(self, report: Report) -> RunState:
        """Training continues, or its last parameters are evaluated, or the final episodes are
        played.
        """
        state, config = report.after, report.generation.learner.config
        if config.patience != "none" and state.counters.patience_generations >= 20:
            raise EnvironmentFailure(
                f"patience {config.patience} ended every episode of 20 generations; if rewards "
                "are never positive, all end at the same step: drop --patience or use "
                "--reward-shift"
            )
        if is_confirmed(state):
            return replace(state, stage=ENDING, reason="target")
        if state.stage == CLOSING:
            return replace(state, stage=ENDING)
        if not self._keep_going(dict(report.record)):
            return replace(state, stage=CLOSING, reason="stopped by the caller")
        reason = reason_to_stop(self._timeline.config_at(state.changes, state.generation), state)
        return replace(state, stage=CLOSING, reason=reason) if reason else state


def rows_of(block: Block, owed: Mask) -> list[int]:
    """The owed rows of a block."""
    rows: list[int] = (block.start + np.flatnonzero(owed[block.start : block.stop])).tolist()
    return rows


def is_confirmed(state: RunState) -> bool:
    return state.best is not None and state.best.confirmed


def for_redis(saved: bytes) -> bytes | None:
    """A checkpoint, unless it is too large for Redis."""
    return saved if len(saved) <= REDIS_CHECKPOINT_MOST else None


def run_digest(state: RunState, strategy: Strategy) -> str:
    return vector_digest(strategy.digest_input(state.strategy, strategy.published(state.strategy)))
