"""Learns from a closed generation: the batch, the next state, and the figures.

Pure functions of the state and of the results in slot order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_queue.config.episode_rules import parse_bound, parse_deadlines, parse_step_limit
from es_queue.config.run_config import RunConfig
from es_queue.config.scaling import scaled
from es_queue.environments.spaces import EnvironmentSpec
from es_queue.numerics.arrays import Doubles, Floats, Integers
from es_queue.numerics.normalization import RunningMoments
from es_queue.numerics.return_statistics import ReturnStatistics
from es_queue.protocol.messages import publication_generation
from es_queue.strategies.base import Batch, NoiseRows, Strategy
from master.collect.publication.closed_generation import (
    ClosedGeneration,
    PublicationSlice,
    ReevaluatedSlots,
    ResultArrays,
    Slots,
    merge_moments,
)
from master.loop.state import CLOSING, TRAINING, Best, RunState


class Learner:
    """Both ends of a generation: the expected results, and the update from them.

    requested: the settings as people made them; config: those at their ``scale``
    """

    def __init__(
        self,
        config: RunConfig,
        spec: EnvironmentSpec,
        strategy: Strategy,
        noise: NoiseRows,
        target: float | None,
    ) -> None:
        self.requested, config = config, scaled(config)
        self.config, self.spec, self.strategy = config, spec, strategy
        self.noise, self.target = noise, target
        self._fitness_cap = parse_bound("fitness_cap", config.fitness_cap)
        self._step_limit_rule = parse_step_limit(config.step_limit)
        self.deadlines = parse_deadlines(config.restart_deadlines)

    def learn(self, state: RunState, closed: ClosedGeneration) -> tuple[RunState, dict[str, float]]:
        """The next generation's state, and the strategy's figures."""
        arrays, used = closed.arrays, [(part.publication, part.slots) for part in closed.used]
        batch = Batch(
            self.noise,
            arrays.noise_indices,
            self.fitness(arrays),
            self.reevaluated_fitness(closed.reevaluations),
            batch_spreads(closed.used),
            generation=state.generation,
            slot_plans=slot_plans(used),
            elite_slots=slot_plans(closed.tried),
            **self.behaviour_arrays(closed),
        )
        after, figures = self.strategy.learn(state.strategy, batch)
        after, moments = self.strategy.exchange_statistics(
            state.strategy, after, self._merge_moments(state, closed)
        )
        limit = self._step_limit_rule.next_limit(
            state.step_limit,
            self._episode_lengths(closed, state.step_limit),
            self.spec.step_limit,
        )
        next_state = replace(
            state,
            generation=state.generation + 1,
            strategy=after,
            moments=moments,
            step_limit=limit,
            open=closed.open,
        )
        return next_state, figures

    def candidates(self, state: RunState, counted: Slots) -> list[int]:
        if not self.strategy.reevaluates or all(result is None for result in counted):
            return []
        columns = ResultArrays.from_results(counted)
        batch = Batch(
            self.noise, columns.noise_indices, self.fitness(columns), generation=state.generation
        )
        slots: list[int] = self.strategy.candidates(state.strategy, batch).tolist()
        return slots

    def fitness(self, columns: ResultArrays) -> Doubles:
        """float64 [S, per_slot] in slot order, at most ``fitness_cap``; NaN if a slot failed
        everywhere.
        """
        if columns.valid.any():
            return self._capped(columns.fitness)
        return np.full((len(columns), self.strategy.per_slot), np.nan)

    def _capped(self, fitness: Doubles) -> Doubles:
        return fitness if self._fitness_cap is None else np.minimum(fitness, self._fitness_cap)

    def reevaluated_fitness(self, slots: Slots) -> Doubles:
        """float64 [k]: fitness in repeated evaluations, at most ``fitness_cap``; NaN if one failed
        everywhere.
        """
        values = [math.nan if result is None else result.fitness[0] for result in slots]
        return self._capped(np.array(values, dtype=np.float64))

    def behaviour_arrays(self, closed: ClosedGeneration) -> dict[str, NDArray[Any]]:
        """Fitness of the measured centres, and behaviours if the strategy compares them."""
        fitness = {"centre_fitness": self.reevaluated_fitness(closed.measured)}
        if not self.strategy.wants_behaviour:
            return fitness
        return {
            **fitness,
            "behaviour": self.behaviour(closed.counted, self.strategy.per_slot),
            "centre_behaviour": self.behaviour(closed.measured, 1)[:, 0],
        }

    def behaviour(self, slots: Slots, each: int) -> Floats:
        """float32 [S, each, b]: behaviours of individuals, NaN if a slot failed everywhere."""
        nothing = np.full(each * self.spec.behaviour_size, np.nan, "<f4").tobytes()
        packed = b"".join([nothing if result is None else result.behaviour for result in slots])
        values = np.frombuffer(packed, "<f4").astype(np.float32)
        return values.reshape(len(slots), each, self.spec.behaviour_size)

    def _episode_lengths(self, closed: ClosedGeneration, limit: int) -> Iterator[int]:
        """Episode lengths. If an individual plays several, their sum and the number at the limit
        are exact.
        """
        for result in closed.results:
            for steps, reached in zip(result.steps, result.at_limit, strict=True):
                yield from split_lengths(steps, reached, self.config.episodes, limit)

    def _merge_moments(self, state: RunState, closed: ClosedGeneration) -> RunningMoments:
        if closed.prefix is not None and closed.prefix.base is state.moments:
            return closed.prefix.all_moments(closed.counted)
        return merge_moments(state.moments, closed.counted)

    # --- evaluation

    def is_evaluation_due(self, state: RunState) -> bool:
        every = self.config.eval_every
        if not every or state.stage != TRAINING:
            return bool(every) and state.stage == CLOSING
        return state.generation % every == 0

    def is_target_compared(self, state: RunState) -> bool:
        """Whether this generation's evaluation may end the run."""
        return state.stage == CLOSING or state.generation % self.config.target_every == 0

    def is_target_passed(self, figures: ReturnStatistics | None) -> bool:
        """Whether the mean is at least the target, also less its ``target_margin``."""
        if self.target is None or figures is None:
            return False
        margin = self.config.target_margin  # 0 times an infinite error would be no number
        least = figures.mean - margin * figures.standard_error if margin else figures.mean
        return least >= self.target

    def with_best(self, state: RunState, closed: ClosedGeneration) -> RunState:
        """The state with a new best if this generation's evaluation is confirmed, or no worse than
        the best: of equal evaluations the newest counts, as it was trained for longer.
        """
        evaluation, confirmation, best = closed.evaluation, closed.confirmation, state.best
        if evaluation is None:
            return state
        confirmed = self.is_target_passed(evaluation) and self.is_target_passed(confirmation)
        confirm_mean = confirmation.mean if confirmation else state.confirm_mean
        state = replace(state, last_evaluation=evaluation.mean, confirm_mean=confirm_mean)
        if confirmed or best is None or not (best.confirmed or evaluation.mean < best.eval_mean):
            best = self.best_policy(state, evaluation.mean, confirmed)
        return replace(state, best=best)

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


def batch_spreads(used: Sequence[PublicationSlice]) -> list[tuple[slice, Floats]]:
    """The rows of each publication in a batch, with its spread."""
    ends = accumulate(len(part.slots) for part in used)
    return [
        (slice(end - len(part.slots), end), part.spread)
        for end, part in zip(ends, used, strict=True)
    ]


def slot_plans(slots: ReevaluatedSlots) -> Integers:
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
