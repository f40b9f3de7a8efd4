"""Both ends of a generation: which rows its table has, and what is learnt from them.

A function of the state and of slot tables, whose column ``used`` it fills: no Redis, no workers, no
clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_queue.config.run_config import RunConfig, parse_target
from es_queue.config.scaling import scaled
from es_queue.config.schedules import ASYNC, ROLLBACK_EPISODES, parse_deadlines
from es_queue.config.settings import AUTO, NONE
from es_queue.environments.episode_rules import parse_bound, parse_step_limit
from es_queue.environments.interface import EnvironmentSpec
from es_queue.errors import EnvironmentFailure, StrategyFailure
from es_queue.numerics.arrays import Doubles, Floats, Integers, Mask
from es_queue.numerics.statistics import ReturnStatistics, return_statistics
from es_queue.protocol.messages import CENTRE, CONFIRM, ELITE, EVAL, FINAL, TRAIN, Task
from es_queue.slot_plan import max_slots, resolve_seed_sharing
from es_queue.slots import (
    ANSWERED,
    FAILED,
    HOST_FAILED,
    NO_ROWS,
    STRATEGY_FAILED,
    TRAINED,
    Rows,
    Slots,
    Span,
    Tally,
    earliest,
    format_slot,
    fresh_count,
    ranges,
    spans_to_bytes,
)
from es_queue.strategies.base import Batch, NoiseRows, Strategy
from es_queue.text import sanitize
from master.loop.confirmation import errors_at, next_look
from master.loop.state import (
    BUDGETS,
    CLOSING,
    ENDING,
    TARGET,
    TRAINING,
    Best,
    CurrentDescent,
    OpenPublication,
    RollbackPoint,
    RunState,
    vector_digest,
)

#: How far below the best an evaluation must be for a rollback, in standard errors of the difference
#: of the two means: one evaluation in forty falls so far by chance.
STANDARD_ERRORS = 2.0
#: Far from the target (``eval_share``), one in so many evaluations is played.
FAR = 4
LONGEST_REASON = 4000


@dataclass(frozen=True)
class Chosen:
    """What a generation learns from: rows of each open table, in slot order.

    trained: training rows; elites: repeated evaluations
    """

    tables: Sequence[Slots]
    trained: Sequence[Rows]
    elites: Sequence[Rows]

    @property
    def newest(self) -> Slots:
        return self.tables[-1]

    @cached_property
    def centre(self) -> int | None:
        """Row of the unperturbed policy under training's rules in the newest table, if played."""
        first = self.newest.answered(self.newest.rows(CENTRE)[:1])
        return int(first[0]) if len(first) else None

    @property
    def measured(self) -> Rows:
        """Rows of the other centres there."""
        return self.newest.rows(CENTRE)[1:]

    @cached_property
    def answered(self) -> Mask:
        """bool: which of the training rows have a result and have not failed."""
        mask: Mask = self.column("state") == ANSWERED
        return mask

    @cached_property
    def individuals(self) -> int:
        """Number of trained individuals with a result."""
        return int(self.answered.sum()) * self.newest.shape.individuals

    @cached_property
    def steps(self) -> int:
        return self._steps(self.trained)

    @cached_property
    def evaluation_steps(self) -> int:
        return self.newest.steps(self.newest.rows(EVAL, CONFIRM))

    def _steps(self, of: Sequence[Rows]) -> int:
        return sum(slots.steps(rows) for slots, rows in zip(self.tables, of, strict=True))

    def counts(self, episodes: int) -> dict[str, int]:
        """What the run's counters gain by them. episodes: of an individual"""
        newest, tally = self.newest, self.newest.tally
        centre = 0 if self.centre is None else int(newest.table["steps"][self.centre].sum())
        more = self._steps(self.elites) + newest.steps(self.measured)
        is_async = newest.config.schedule == ASYNC  # then the rest is for later generations
        surplus = NO_ROWS if is_async else newest.rows(TRAIN)[len(self.trained[-1]) :]
        return {
            "episodes": self.individuals * episodes,
            "env_steps": self.steps + more,
            "eval_steps": self.evaluation_steps + centre,
            "surplus_steps": newest.steps(surplus),
            "lost_steps": tally.lost_steps,
            "duplicate": tally.refused["duplicate"] + tally.refused["conflict"],
            "refused": tally.refused.total(),
        }

    def column(self, name: str, of: Sequence[Rows] | None = None) -> NDArray[Any]:
        """A column of the rows ``of`` each table in turn, by default of the training rows."""
        pairs = zip(self.tables, self.trained if of is None else of, strict=True)
        return np.concatenate([slots.table[name][rows] for slots, rows in pairs])

    def scores(self, name: str) -> NDArray[Any]:
        """An entry of the column for each trained individual with a result: [individuals, ...]."""
        values = self.column(name)[self.answered]
        return values.reshape(self.individuals, *values.shape[2:])

    def plans(self, of: Sequence[Rows]) -> Integers:
        """int64 [k, 2]: generation and number of each row."""
        numbers = self.column("number", of).astype(np.int64)
        return np.stack([self.generations(of), numbers], axis=1)

    def generations(self, of: Sequence[Rows]) -> NDArray[np.int64]:
        """The generation of each row's publication, of all tables in turn."""
        counts = [len(rows) for rows in of]
        return np.repeat([slots.generation for slots in self.tables], counts).astype(np.int64)


class Learner:
    """requested: the settings as people made them; config: those at their ``scale``
    target: the return that ends the run, None for none
    population: training slots of a generation, and the most of an asynchronous batch; batch_size:
    how many results close one
    """

    def __init__(
        self,
        config: RunConfig,
        spec: EnvironmentSpec,
        strategy: Strategy,
        noise: NoiseRows,
    ) -> None:
        self.requested, config = config, scaled(config)
        self.config, self.spec, self.strategy, self.noise = config, spec, strategy, noise
        target = parse_target(config.target_reward)
        self.target: float | None = None if target == NONE else spec.reward_threshold
        if target not in (AUTO, NONE):
            self.target = float(target)
        self.deadlines = parse_deadlines(config.restart_deadlines)
        self.is_async = config.schedule == ASYNC
        self.population = config.population // strategy.per_slot
        self.batch_size = strategy.batch_slots()
        self.most_rows = max_slots(config, strategy.per_slot)
        self._fitness_cap = parse_bound(config.fitness_cap)
        self._step_limit = parse_step_limit(config.step_limit)

    # --- what a generation plays

    def slots(
        self, state: RunState, number: int, publication: str, spans: Sequence[Span] | None = None
    ) -> Slots:
        """The table of a state's publication, the ``number``-th; ``spans``: those that it has
        grown to under a former master.
        """
        return Slots(
            self.config,
            self.strategy,
            self.spec,
            number,
            self.spans(state) if spans is None else spans,
            publication=publication,
            step_limit=state.step_limit,
            spread=self.strategy.spread(state.strategy),
        )

    def spans(self, state: RunState) -> list[Span]:
        """What a table begins with; evaluations first, so that they do not end last."""
        config, strategy = self.config, self.strategy
        if state.stage == ENDING:
            return [Span(FINAL, 0, config.final_episodes)]
        spans = [Span(EVAL, 0, config.eval_episodes)] if self._is_evaluated(state) else []
        if state.stage == CLOSING:  # of a model also a snapshot, which the evaluation is of
            return [*spans, Span(ELITE, 0, 1)] if config.model else spans
        spans.append(Span(CENTRE, 0, strategy.centre_count(state.strategy)))
        if elites := strategy.elite_slot_count(state.strategy, state.generation):
            spans.append(Span(ELITE, 0, elites))
        # The asynchronous schedule adds training rows as workers need them.
        return spans if self.is_async else [*spans, Span(TRAIN, 0, self.population)]

    def _is_evaluated(self, state: RunState) -> bool:
        """Whether the generation has an evaluation. Far from the target most are skipped, but not
        one that a deadline may need.
        """
        every, descent = self.config.eval_every, state.descent
        if not every:
            return False
        if state.stage == CLOSING:
            return True
        if state.generation % every:
            return False
        if self.target is None or descent.reached >= self.config.eval_share:
            return True
        steps, best = state.counters.env_steps - descent.steps, descent.best
        return state.generation % (FAR * every) == 0 or any(
            steps >= deadline.steps and (best is None or best < deadline.least)
            for deadline in self.deadlines
        )

    def more(self, state: RunState, slots: Slots) -> list[Span]:
        """The rows that a complete table requires in addition: a pure function of its results."""
        config, rows = self.config, slots.rows(TRAIN)
        if len(rows) and not self.is_async:
            steps = slots.steps(rows)
            if steps < config.min_steps and len(rows) < self.most_rows:
                missing = math.ceil((config.min_steps - steps) / max(1.0, steps / len(rows)))
                return [Span(TRAIN, len(rows), min(self.most_rows, len(rows) + max(1, missing)))]
            if self.strategy.reevaluates and not len(slots.rows(ELITE)):
                chosen = self.choose([slots])
                if chosen.individuals:
                    batch = self.batch(state, chosen)
                    again = self.strategy.candidates(state.strategy, batch).tolist()
                    if again:
                        return [Span(ELITE, number, number + 1) for number in again]
        is_compared = state.stage == CLOSING or state.generation % self.config.target_every == 0
        played = len(slots.rows(CONFIRM))
        look = next_look(played, config.confirm_episodes)
        if look > played and is_compared and self._is_passing(slots):
            return [Span(CONFIRM, played, look)]
        return []

    def is_enough(self, state: RunState, tables: Sequence[Slots]) -> bool:
        """Whether all rows have a result; in the asynchronous schedule, whether a batch of any
        tables and the evaluation have.
        """
        slots = tables[-1]
        if not self.is_async or state.stage != TRAINING:
            return slots.is_complete()
        # When a newer publication opens, no block of this table can be claimed any more, so its
        # elites must be claimed before. Their blocks precede those of training.
        claimed = not len(slots.rows(ELITE)) or not slots.owed[slots.rows(TRAIN)].all()
        fresh = fresh_count(tables)
        return fresh >= self.batch_size and claimed and slots.is_complete(EVAL, CONFIRM)

    def done(self, state: RunState, tables: Sequence[Slots]) -> tuple[int, int]:
        """(slots with a result, slots that the generation closes on)."""
        if self.is_async and state.stage == TRAINING:
            return min(fresh_count(tables), self.batch_size), self.batch_size
        return len(tables[-1]) - int(tables[-1].owed.sum()), len(tables[-1])

    def publication(
        self, state: RunState, slots: Slots, noise: str, poll: float
    ) -> tuple[Floats, Task, str]:
        """The vector float32 [n] that workers perturb, the header, and the run's digest.

        noise: digest of the noise table; poll: seconds between a worker's reads of the leave flags
        """
        vector = self.strategy.published(state.strategy)
        identified = self.strategy.digest_input(state.strategy, vector)
        statistics = state.statistics(self.config.obs_clip)
        if state.stage == ENDING:  # the best parameters play, with the statistics of their time
            best = state.best or self.best_policy(state, math.nan)
            vector = np.zeros_like(vector)
            vector[: len(best.parameters)] = best.parameters
            statistics = replace(statistics, mean=best.mean, std=best.std)
        digest = vector_digest(self.strategy.checked_part(vector))
        task = Task(
            publication=slots.publication,
            sigma=self.strategy.sigma(state.strategy),
            step_limit=state.step_limit,
            size=len(vector),
            digest=digest,
            obs_mean=statistics.mean.astype("<f4").tobytes(),
            obs_std=statistics.std.astype("<f4").tobytes(),
            noise=noise,
            poll=poll,
            spans=spans_to_bytes(slots.spans),
            row=slots.shape.result.itemsize,
            moment=slots.shape.moments.itemsize,
        )
        return vector, task, digest if identified is vector else vector_digest(identified)

    # --- what is learnt from it

    def choose(self, tables: Sequence[Slots]) -> Chosen:
        """The rows of each table that the generation learns from: the shortest prefix of its own,
        or in the asynchronous schedule those of any that arrived first.
        """
        newest, nothing = tables[-1], [NO_ROWS] * (len(tables) - 1)
        if self.is_async and len(newest.rows(CENTRE)):
            trained = earliest(tables, self.population)
            return Chosen(tables, trained, [slots.fresh(ELITE) for slots in tables])
        first = newest.shortest_prefix(self.batch_size, self.config.min_steps)
        return Chosen(tables, [*nothing, first], [*nothing, newest.rows(ELITE)])

    def learn(
        self, state: RunState, chosen: Chosen
    ) -> tuple[RunState, dict[str, float], int | None]:
        """The state after a generation, with its counters; the next generation's, unless training
        is over. Also the strategy's figures, and the generation of a search that was restored. The
        rows are used from now on.
        """
        after, figures, returns_to = self._evaluated(state, chosen.newest), dict[str, float](), None
        if state.stage == TRAINING and not is_confirmed(after):
            after, figures, returns_to = self._next_search(after, chosen)
        for rows_of in (chosen.trained, chosen.elites):
            for slots, rows in zip(chosen.tables, rows_of, strict=True):
                slots.table["used"][rows] = state.generation
        counters = state.add_counts(**chosen.counts(self.config.episodes))
        if after.descent.generation > state.generation:
            after = replace(after, descent=replace(after.descent, steps=counters.env_steps))
        return replace(after, counters=counters), figures, returns_to

    def _update(self, state: RunState, chosen: Chosen) -> tuple[RunState, dict[str, float]]:
        """One update of the strategy, the statistics and the step limit, from the rows in order."""
        before = state.strategy
        search, figures = self.strategy.learn(before, self.batch(state, chosen))
        moments, lengths = state.moments, list[int]()
        for slots, rows in zip(chosen.tables, chosen.trained, strict=True):
            moments = slots.merge(moments, rows)
            lengths += slots.lengths(rows, state.step_limit)
        search, moments = self.strategy.exchange_statistics(before, search, moments)
        limit = self._step_limit.next_limit(state.step_limit, lengths, self.spec.step_limit)
        returns = chosen.column("returns")
        reached = 0.0 if self.target is None else float((returns >= self.target).mean())
        return replace(
            state,
            generation=state.generation + 1,
            strategy=search,
            moments=moments,
            step_limit=limit,
            descent=replace(state.descent, reached=reached),
        ), figures

    def _next_search(
        self, state: RunState, chosen: Chosen
    ) -> tuple[RunState, dict[str, float], int | None]:
        """The next generation's state, newly learnt or with an earlier search; its figures; and the
        generation of that earlier search.

        --rollback returns to the best parameters, optimiser and statistics, if an evaluation has
        regressed. --restart-deadlines returns to the run's first search, if the evaluations of a
        descent are too low for its number of steps.
        """
        anchor, evaluation = state.anchor, evaluation_of(chosen.newest, EVAL)
        if evaluation is None or anchor is None:
            return (*self._update(state, chosen), None)
        earlier = replace(
            state,
            generation=state.generation + 1,
            strategy=anchor.strategy,
            moments=anchor.moments,
            step_limit=anchor.step_limit,
        )
        if self.config.rollback and has_regressed(evaluation, state.best, anchor):
            return earlier, {"rolled_back": float(anchor.generation)}, anchor.generation
        steps, best = state.counters.env_steps - state.descent.steps, state.descent.best
        if best is not None and any(
            steps >= deadline.steps and best < deadline.least for deadline in self.deadlines
        ):
            # Its steps count from its first generation, when those of this one are known.
            descent = CurrentDescent(state.descent.number + 1, earlier.generation)
            return replace(earlier, descent=descent), {"descent": float(descent.number)}, 0
        return (*self._update(state, chosen), None)

    def batch(self, state: RunState, chosen: Chosen) -> Batch:
        """The columns of the chosen rows."""
        ends = np.cumsum([len(rows) for rows in chosen.trained]).tolist()
        spreads = [
            (slice(end - len(rows), end), slots.spread)
            for end, slots, rows in zip(ends, chosen.tables, chosen.trained, strict=True)
            if len(rows)
        ]
        several: dict[str, Any] = {}
        centres = chosen.newest.table[chosen.measured]
        if self.strategy.wants_behaviour:
            several["behaviour"] = chosen.column("behaviour")
            several["centre_behaviour"] = centres["behaviour"][:, 0]
        return Batch(
            self.noise,
            # a failed row's index is not known; its fitness is NaN
            np.where(chosen.answered, chosen.column("index"), 0),
            self.fitness(chosen),
            self._capped(chosen.column("fitness", chosen.elites)[:, 0]),
            spreads=spreads,
            centre_fitness=self._capped(centres["fitness"][:, 0]),
            generation=state.generation,
            slot_plans=chosen.plans(chosen.trained),
            elite_slots=chosen.plans(chosen.elites),
            best=-1 if state.best is None else state.best.generation,
            **several,
        )

    def fitness(self, chosen: Chosen) -> Doubles:
        """float64 [S, per_slot] in slot order, at most ``fitness_cap``; NaN for a slot that
        failed.
        """
        return self._capped(chosen.column("fitness"))

    def _capped(self, fitness: Doubles) -> Doubles:
        values: Doubles = np.ascontiguousarray(fitness)
        return values if self._fitness_cap is None else np.minimum(values, self._fitness_cap)

    # --- older tables of the asynchronous schedule

    def reopen(self, opened: OpenPublication) -> Slots:
        """An older table from a checkpoint. Its results are read again; what was learnt from does
        not count again.
        """
        slots = Slots(
            self.config,
            self.strategy,
            self.spec,
            opened.generation,
            [Span(*span) for span in opened.spans.reshape(-1, 3).tolist()],
            publication=opened.publication,
            step_limit=opened.step_limit,
            spread=opened.spread,
        )
        for start, stop in opened.counted.reshape(-1, 2).tolist():
            slots.table["state"][start:stop] = ANSWERED
            slots.table["used"][start:stop] = opened.generation
        return slots

    def still_open(
        self, state: RunState, tables: Iterable[Slots], number: int, tally: Tally
    ) -> list[Slots]:
        """The tables that stay open when the ``number``-th publication is: those that a worker
        holds a block of, or whose results are not used yet, for at most ``max_lag`` generations;
        none after training. Results of the others go into ``tally``.
        """
        kept: list[Slots] = []
        for slots in tables:
            is_new = number - slots.generation <= self.config.max_lag
            fresh = slots.fresh()
            if state.stage == TRAINING and is_new and (slots.is_held or len(fresh)):
                kept.append(slots)
            elif len(fresh):
                tally.refused["stale"] += len(fresh)
                tally.lost_steps += slots.steps(fresh)
        return kept

    # --- what fails

    def judge_failure(self, slots: Slots, row: int, reason: str) -> str:
        """A failure that depends only on the slot counts as the worst; any other stops the run.
        Returns the slot and the reason in words.
        """
        reports, failure = slots.reports(row).total(), int(slots.table["failure"][row])
        reason, named = sanitize(reason, LONGEST_REASON), format_slot(slots, row)
        if failure == HOST_FAILED:
            raise EnvironmentFailure(
                f"{named} failed {reports} times because of the workers' hosts: {reason}"
            )
        if failure == STRATEGY_FAILED:
            raise StrategyFailure(reason)
        last, unit = f"{named}: {reason}", "episode" if self.config.env else "vector"
        if (kind := int(slots.table["kind"][row])) not in TRAINED:
            rows = slots.rows(kind)
            failed = int((slots.table["state"][rows] == FAILED).sum())
            if failed == len(rows):
                raise EnvironmentFailure(
                    f"every {unit} of an evaluation failed; the last was {last}"
                )
            return f"{last}; the evaluation continues without it"
        if not self.is_async and (slots.table["state"][slots.rows(TRAIN)] == FAILED).all():
            advice = ""
            sharing = resolve_seed_sharing(self.config, self.strategy.per_slot)
            if self.config.env and sharing == "generation":
                advice = (
                    ": all of them had the same environment seed; --env-seeds slot gives each its "
                    "own"
                )
            raise EnvironmentFailure(
                f"every {unit} of a generation failed{advice}; the last was {last}"
            )
        return last

    # --- evaluation

    def is_target_passed(self, figures: ReturnStatistics | None, errors: float) -> bool:
        """Whether the mean is above the target by at least so many standard errors."""
        if self.target is None or figures is None:
            return False
        # 0 times an infinite error would be no number
        least = figures.mean - errors * figures.standard_error if errors else figures.mean
        return least >= self.target

    def _is_passing(self, slots: Slots) -> bool:
        """Whether the evaluation passes the target, and so do the confirming episodes so far."""
        config, played = self.config, len(slots.rows(CONFIRM))
        passes = self.is_target_passed(evaluation_of(slots, EVAL), config.target_margin)
        if not played or not passes:
            return passes
        errors = errors_at(played, config.confirm_episodes, config.target_margin)
        return self.is_target_passed(evaluation_of(slots, CONFIRM), errors)

    def _evaluated(self, state: RunState, slots: Slots) -> RunState:
        """The state after this generation's evaluation: with a new best if that is confirmed, or no
        worse than the best. Of equal evaluations the newest counts, as it was trained for longer.
        """
        evaluation, confirmation = evaluation_of(slots, EVAL), evaluation_of(slots, CONFIRM)
        best, anchor, descent = state.best, state.anchor, state.descent
        if evaluation is None:
            return state
        # After training has ended there is nothing to go back to: a run that is extended later must
        # not know of the evaluation of its end.
        is_training, mean = state.stage == TRAINING, evaluation.mean
        is_whole = len(slots.rows(CONFIRM)) == self.config.confirm_episodes
        confirmed = self._is_passing(slots) and is_whole
        if confirmed or best is None or not (best.confirmed or mean < best.eval_mean):
            best = self.best_policy(state, mean, confirmed)
            if self.config.rollback and is_training:
                anchor = RollbackPoint.of(state, evaluation.std, evaluation.count)
        if self.deadlines and is_training and (descent.best is None or descent.best < mean):
            descent = replace(descent, best=mean)
        return replace(
            state,
            last_evaluation=mean,
            confirm_mean=confirmation.mean if confirmation else state.confirm_mean,
            best=best,
            anchor=anchor,
            descent=descent,
        )

    def best_policy(self, state: RunState, eval_mean: float, confirmed: bool = False) -> Best:
        """This generation's unperturbed policy with the statistics under which it was evaluated."""
        statistics = state.statistics(self.config.obs_clip)
        centre = self.strategy.centre(self.strategy.published(state.strategy)).copy()
        return Best(
            parameters=centre,
            mean=statistics.mean,
            std=statistics.std,
            generation=state.generation,
            eval_mean=eval_mean,
            confirmed=confirmed,
            genome=self.strategy.genome(state.strategy),
        )

    # --- the end of the run

    def next_stage(self, state: RunState, keeps_going: Callable[[], bool]) -> RunState:
        """Training continues, or its last parameters are evaluated, or the final episodes are
        played. ``keeps_going``: whether the caller wants another generation.
        """
        config = self.config
        if config.patience != "none" and state.counters.patience_generations >= 20:
            raise EnvironmentFailure(
                f"patience {config.patience} ended every episode of 20 generations; if rewards "
                "are never positive, all end at the same step: drop --patience or use "
                "--reward-shift"
            )
        if is_confirmed(state):
            return replace(state, stage=ENDING, reason=TARGET)
        if state.stage == CLOSING:
            return replace(state, stage=ENDING)
        if not keeps_going():
            return replace(state, stage=CLOSING, reason="stopped by the caller")
        reason = self.reason_to_stop(state)
        return replace(state, stage=CLOSING, reason=reason) if reason else state

    def reason_to_stop(self, state: RunState) -> str:
        """The budget that is used up at the start of ``state.generation``, or empty. The loop
        checks --max-seconds within a generation, too.
        """
        counters = state.counters
        spent = state.generation, counters.env_steps, counters.seconds
        amounts = zip(BUDGETS, spent, strict=True)
        limits = ((name, amount, getattr(self.requested, name)) for name, amount in amounts)
        return next((name for name, amount, limit in limits if limit and amount >= limit), "")

    def reopened(self, state: RunState) -> RunState:
        """A resumed state; training continues if its budgets or its target now allow it, and ends
        if its budgets are smaller now.

        A run that its target ended continues if it now has no target, or a higher one than was
        confirmed.
        """
        reason = self.reason_to_stop(state)
        if state.stage not in (CLOSING, ENDING):
            return replace(state, stage=CLOSING, reason=reason) if reason else state
        if reason:
            return state
        training = replace(state, stage=TRAINING, reason="")
        if state.reason != TARGET:
            return training
        mean = state.confirm_mean
        is_met = self.target is not None and mean is not None and mean >= self.target
        if is_met or state.best is None:
            return state
        return replace(training, best=replace(state.best, confirmed=False))


def is_confirmed(state: RunState) -> bool:
    return state.best is not None and state.best.confirmed


def has_regressed(evaluation: ReturnStatistics, best: Best | None, anchor: RollbackPoint) -> bool:
    """Whether an evaluation of enough episodes is below the best by more than two standard errors
    of the difference.
    """
    if best is None or min(evaluation.count, anchor.count) < ROLLBACK_EPISODES:
        return False
    error = math.sqrt(evaluation.std**2 / evaluation.count + anchor.std**2 / anchor.count)
    return evaluation.mean < best.eval_mean - STANDARD_ERRORS * error


def evaluation_of(slots: Slots, kind: int) -> ReturnStatistics | None:
    """Returns of the evaluated episodes; None if there are none."""
    return return_statistics(slots.returns(kind))


def to_open_publication(slots: Slots) -> OpenPublication:
    """What a checkpoint keeps of an older table. counted: ranges of rows."""
    used = np.flatnonzero(slots.table["used"] >= 0)
    counted = [(start, stop) for _, start, stop in ranges(used, np.zeros(len(slots), np.uint8))]
    return OpenPublication(
        slots.publication,
        slots.step_limit,
        slots.spread,
        np.array(counted, np.int64).reshape(-1, 2),
        np.array(slots.spans, np.int64).reshape(-1, 3),
    )
