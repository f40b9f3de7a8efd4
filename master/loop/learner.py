"""Closing a generation: the batch from its answers, the next state, and the figures that people
see.

Everything here is a pure function of the state and of the answers in slot order, never of who
answered when.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_queue.config.episode_rules import parse_patience, parse_step_limit
from es_queue.config.run_config import RunConfig
from es_queue.environments.spaces import EnvironmentSpec
from es_queue.numerics.normalization import RunningMoments
from es_queue.numerics.return_statistics import ReturnStatistics, return_statistics
from es_queue.protocol import messages
from es_queue.protocol.messages import SlotResult, publication_generation
from es_queue.strategies.base import Batch, BatchSegment, NoiseRows, Strategy
from master.collect.ledger import Ledger
from master.loop.result_arrays import (
    PrefixAccumulator,
    ResultArrays,
    merge_moments,
    ordered_statistics,
)
from master.loop.rollback import has_regressed
from master.loop.state import CLOSING, TRAINING, Best, Floats, OpenPublication, RunState

Record = dict[str, float | int | str | None]
Slots = Sequence[SlotResult | None]


@dataclass(frozen=True)
class PublicationSlice:
    """Slots of one publication in an asynchronous batch, ascending; spread: what learning must know
    of its perturbations.
    """

    publication: str
    slots: NDArray[np.int64]
    spread: Floats


#: (publication, its slots ascending).
ReevaluatedSlots = Sequence[tuple[str, NDArray[np.int64]]]


@dataclass(frozen=True)
class ClosedGeneration:
    """A closed generation: the counted training slots, the surplus ones, those evaluated again, the
    centres that were measured, and its evaluations.

    In the asynchronous schedule ``counted`` is the batch; used: whose slots it has, in their order;
    tried: publication and slots of those in ``reevaluations``; open: the publications that stay
    open after it. prefix: what was made of the first counted slots before the last were there.
    """

    counted: Slots
    surplus: Slots
    evaluation: ReturnStatistics | None
    confirmation: ReturnStatistics | None
    eval_steps: int
    centre: SlotResult | None
    reevaluations: Slots = ()
    measured: Slots = ()
    used: Sequence[PublicationSlice] = ()
    tried: ReevaluatedSlots = ()
    open: tuple[OpenPublication, ...] = ()
    prefix: PrefixAccumulator | None = None

    @property
    def results(self) -> list[SlotResult]:
        return [result for result in self.counted if result is not None]

    @cached_property
    def arrays(self) -> ResultArrays:
        """The counted slots as arrays."""
        return (
            ResultArrays.from_results(self.counted)
            if self.prefix is None
            else self.prefix.to_arrays(self.counted)
        )


def total_steps(slots: Slots) -> int:
    return sum(sum(result.steps) for result in slots if result is not None)


def first_returns(slots: Slots) -> list[float]:
    return [result.returns[0] for result in slots if result is not None]


def shortest_prefix(slots: Slots, least: int, min_steps: int) -> int:
    """How many slots make the batch: the fewest, but ``least``, whose episodes have ``min_steps``
    steps.
    """
    if not min_steps:
        return min(len(slots), max(1, least))
    steps = 0
    for count, result in enumerate(slots, 1):
        steps += 0 if result is None else sum(result.steps)
        if count >= least and steps >= min_steps:
            return count
    return len(slots)


def close_generation(ledger: Ledger, least: int, min_steps: int) -> ClosedGeneration:
    """What a complete ledger says, in slot order."""
    slots = ledger.results_in_order(messages.TRAIN)
    count = shortest_prefix(slots, least, min_steps) if slots else 0
    evaluation, confirmation = (
        ledger.verified_results(messages.EVAL),
        ledger.verified_results(messages.CONFIRM),
    )
    centre = ledger.results_in_order(messages.CENTRE)
    return ClosedGeneration(
        slots[:count],
        slots[count:],
        return_statistics(first_returns(evaluation)),
        return_statistics(first_returns(confirmation)),
        total_steps(evaluation) + total_steps(confirmation),
        centre[0] if centre else None,
        ledger.results_in_order(messages.ELITE),
        centre[1:],
        prefix=ledger.prefix,
    )


class Learner:
    """Both ends of a generation for one run: what it must be answered with, and what its answers
    teach.
    """

    def __init__(
        self,
        config: RunConfig,
        spec: EnvironmentSpec,
        strategy: Strategy,
        noise: NoiseRows,
        target: float | None,
    ) -> None:
        self.config, self.spec, self.strategy, self.noise, self.target = (
            config,
            spec,
            strategy,
            noise,
            target,
        )
        self._step_limit_rule = parse_step_limit(config.step_limit)

    def learn(
        self, state: RunState, closed_generation: ClosedGeneration
    ) -> tuple[RunState, dict[str, float]]:
        """The next generation's state, and the strategy's figures."""
        arrays = closed_generation.arrays
        batch = Batch(
            self.noise,
            arrays.noise_indices,
            self.fitness(arrays),
            self.reevaluated_fitness(closed_generation.reevaluations),
            batch_segments(closed_generation.used),
            generation=state.generation,
            slot_plans=slot_plans(
                [(part.publication, part.slots) for part in closed_generation.used]
            )
            if closed_generation.used
            else None,
            elite_slots=slot_plans(closed_generation.tried) if closed_generation.used else None,
            **self.behaviour_arrays(closed_generation),
        )
        after, figures = self.strategy.learn(state.strategy, batch)
        after, moments = self.strategy.exchange_statistics(
            state.strategy, after, self._merge_moments(state, closed_generation)
        )
        limit = self._step_limit_rule.next_limit(
            state.step_limit,
            self._episode_lengths(closed_generation, state.step_limit),
            self.spec.step_limit,
        )
        next_state = replace(
            state,
            generation=state.generation + 1,
            strategy=after,
            moments=moments,
            step_limit=limit,
            open=closed_generation.open,
        )
        return next_state, figures

    def candidates(self, state: RunState, counted: Slots) -> list[int]:
        """Slots that are to be evaluated again before anything is learnt."""
        if not self.strategy.reevaluates or all(result is None for result in counted):
            return []
        columns = ResultArrays.from_results(counted)
        batch = Batch(
            self.noise, columns.noise_indices, self.fitness(columns), generation=state.generation
        )
        slots: list[int] = self.strategy.candidates(state.strategy, batch).tolist()
        return slots

    def fitness(self, columns: ResultArrays) -> NDArray[np.float64]:
        """float64 [S, per_slot] in slot order; NaN where a slot failed everywhere."""
        return (
            columns.fitness
            if columns.valid.any()
            else np.full((len(columns), self.strategy.per_slot), np.nan)
        )

    def reevaluated_fitness(self, slots: Slots) -> NDArray[np.float64]:
        """float64 [k]: the fitness of those evaluated again; NaN where one failed everywhere."""
        return np.array(
            [float("nan") if result is None else result.fitness[0] for result in slots],
            dtype=np.float64,
        )

    def behaviour_arrays(self, closed_generation: ClosedGeneration) -> dict[str, NDArray[Any]]:
        """What a batch says of how individuals and measured centres behaved; nothing where nobody
        asks.
        """
        if not self.strategy.wants_behaviour:
            return {}
        centres = self.behaviour(closed_generation.measured, 1)[:, 0]
        return {
            "behaviour": self.behaviour(closed_generation.counted, self.strategy.per_slot),
            "centre_fitness": self.reevaluated_fitness(closed_generation.measured),
            "centre_behaviour": centres,
        }

    def behaviour(self, slots: Slots, each: int) -> Floats:
        """float32 [S, each, b]: how individuals behaved, NaN where a slot failed everywhere."""
        nothing = np.full(each * self.spec.behaviour_size, np.nan, "<f4").tobytes()
        packed = b"".join([nothing if result is None else result.behaviour for result in slots])
        return (
            np.frombuffer(packed, "<f4")
            .astype(np.float32)
            .reshape(len(slots), each, self.spec.behaviour_size)
        )

    def _episode_lengths(self, closed_generation: ClosedGeneration, limit: int) -> Iterator[int]:
        """Episode lengths, with the sum and the number at the limit exact when an individual plays
        several.
        """
        for result in closed_generation.results:
            for steps, reached in zip(result.steps, result.at_limit, strict=True):
                yield from split_lengths(steps, reached, self.config.episodes, limit)

    def _merge_moments(
        self, state: RunState, closed_generation: ClosedGeneration
    ) -> RunningMoments:
        """The observation statistics with those of the counted episodes."""
        if closed_generation.prefix is not None and closed_generation.prefix.base is state.moments:
            return closed_generation.prefix.all_moments(closed_generation.counted)
        return merge_moments(state.moments, closed_generation.counted)

    # --- evaluation

    def is_evaluation_due(self, state: RunState) -> bool:
        """Whether this generation's parameters are evaluated."""
        if state.stage == CLOSING:
            return self.config.eval_every > 0
        return (
            state.stage == TRAINING
            and self.config.eval_every > 0
            and state.generation % self.config.eval_every == 0
        )

    def is_target_passed(self, figures: ReturnStatistics | None) -> bool:
        return self.target is not None and figures is not None and figures.mean >= self.target

    def weighs(self, state: RunState, kind: str, figures: ReturnStatistics) -> int:
        """What depends on an evaluation: 1 where high returns decide something, -1 where low ones
        do, 0 for nothing.
        """
        if kind == messages.FINAL:
            return 1
        if kind == messages.CENTRE:  # an archive of behaviours keeps what it is told
            return int(self.strategy.max_centres > 1)
        best = state.best
        if self.is_target_passed(figures) or (
            kind == messages.EVAL
            and (best is None or (not best.confirmed and figures.mean > best.eval_mean))
        ):
            return 1
        return -int(
            kind == messages.EVAL and self.config.rollback and has_regressed(state, figures)
        )

    def with_best(self, state: RunState, closed_generation: ClosedGeneration) -> RunState:
        """The state with its best replaced where this generation's evaluation is better, or
        confirmed.
        """
        if closed_generation.evaluation is None:
            return state
        confirmed = self.is_target_passed(closed_generation.evaluation) and self.is_target_passed(
            closed_generation.confirmation
        )
        confirm_mean = (
            closed_generation.confirmation.mean
            if closed_generation.confirmation
            else state.confirm_mean
        )
        state = replace(
            state, last_evaluation=closed_generation.evaluation.mean, confirm_mean=confirm_mean
        )
        best = state.best
        if (
            best is not None
            and not confirmed
            and (best.confirmed or closed_generation.evaluation.mean <= best.eval_mean)
        ):
            return state
        return replace(
            state, best=self.best_policy(state, closed_generation.evaluation.mean, confirmed)
        )

    def best_policy(self, state: RunState, eval_mean: float, confirmed: bool = False) -> Best:
        """This generation's unperturbed policy with the statistics under which it was evaluated."""
        statistics = state.statistics(self.config.obs_clip)
        centre = self.strategy.centre(self.strategy.published(state.strategy)).copy()
        return Best(
            centre,
            statistics.mean,
            statistics.std,
            state.generation,
            eval_mean,
            confirmed,
            self.strategy.genome(state.strategy),
        )


def batch_segments(used: Sequence[PublicationSlice]) -> list[BatchSegment]:
    """The rows of each publication in a batch of several."""
    ends = accumulate(len(part.slots) for part in used)
    return [BatchSegment(stop, part.spread) for stop, part in zip(ends, used, strict=True)]


def slot_plans(slots: ReevaluatedSlots) -> NDArray[np.int64]:
    """int64[S, 2]: generation and slot of each."""
    each = [
        np.stack([np.full(len(indices), publication_generation(name)), indices], axis=1)
        for name, indices in slots
    ]
    return np.concatenate(each) if each else np.empty((0, 2), np.int64)


def split_lengths(steps: int, reached: int, episodes: int, limit: int) -> list[int]:
    """``episodes`` lengths whose sum is ``steps``, ``reached`` of which are at the limit."""
    if episodes == 1:
        return [steps]
    rest = episodes - reached
    left = max(0, steps - reached * limit)
    return [limit] * reached + [left // rest + (index < left % rest) for index in range(rest)]


def training_record(closed_generation: ClosedGeneration) -> Record:
    """Returns and fitness of the counted individuals; a return is the environment's own, always."""
    returns, fitness = (closed_generation.arrays.scores(name) for name in ("returns", "fitness"))
    of_returns = ordered_statistics(returns)
    same = np.array_equal(returns.view(np.int64), fitness.view(np.int64))
    record: Record = {}
    for name, figures in (
        ("return", of_returns),
        ("fitness", of_returns if same else ordered_statistics(fitness)),
    ):
        record[f"{name}_mean"] = figures.mean if figures else None
        record[f"{name}_std"] = figures.std if figures else None
        record[f"{name}_max"] = figures.maximum if figures else None
    record["return_min"] = of_returns.minimum if of_returns else None
    record["centre_rank"] = centre_rank(closed_generation.centre, fitness)
    return record


def is_all_at_patience(closed_generation: ClosedGeneration, config: RunConfig) -> bool:
    """Whether patience ended every episode at the first step at which it can: no reward was ever
    positive.
    """
    patience, columns = parse_patience(config.patience), closed_generation.arrays
    if patience is None or not columns.valid.any():
        return False
    steps, cut = columns.steps[columns.valid], columns.cut[columns.valid]
    return bool(
        (steps == patience.steps * config.episodes).all() and (cut == config.episodes).all()
    )


def episodes_record(closed_generation: ClosedGeneration, episodes: int) -> Record:
    """Counts of the counted episodes."""
    columns = closed_generation.arrays
    played, steps = columns.individuals * episodes, columns.total_steps
    return {
        "population": columns.individuals,
        "episodes_generation": played,
        "steps_generation": steps,
        "length_mean": steps / played if played else None,
        "cut_fraction": int(columns.cut.sum()) / played if played else None,
    }


def evaluation_record(closed_generation: ClosedGeneration, state: RunState) -> Record:
    figures = closed_generation.evaluation
    return {
        "eval_mean": figures.mean if figures else None,
        "eval_std": figures.std if figures else None,
        "eval_min": figures.minimum if figures else None,
        "eval_max": figures.maximum if figures else None,
        "eval_best": state.best.eval_mean if state.best else None,
        "confirm_mean": closed_generation.confirmation.mean
        if closed_generation.confirmation
        else None,
    }


def centre_rank(
    centre: SlotResult | None, fitness: Sequence[float] | NDArray[np.float64]
) -> float | None:
    """Fraction of the population that the unperturbed policy beats under training's rules, ties
    half.
    """
    if centre is None or not len(fitness):
        return None
    others, centre_fitness = np.asarray(fitness), centre.fitness[0]
    return (
        int((others < centre_fitness).sum()) + 0.5 * int((others == centre_fitness).sum())
    ) / len(others)
