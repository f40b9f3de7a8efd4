"""Closing a generation: the batch from its answers, the next state, and the figures that people see.

Everything here is a pure function of the state and of the answers in slot order, never of who answered when.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_queue.config import RunConfig
from es_queue.episode_rules import parse_patience, parse_step_limit
from es_queue.figures import Figures, figures_of
from es_queue.normalization import RunningMoments
from es_queue.protocol import messages
from es_queue.protocol.messages import SlotResult, publication_generation
from es_queue.spaces import EnvironmentSpec
from es_queue.strategies.base import Batch, NoiseRows, Part, Strategy
from master.collect import Ledger
from master.columns import Columns, Gathered, figures_in_order, merged
from master.rollback import fallen
from master.state import CLOSING, TRAINING, Best, Floats, OpenPublication, RunState

Record = dict[str, float | int | str | None]
Slots = Sequence[SlotResult | None]


@dataclass(frozen=True)
class Used:
    """Slots of one publication in an asynchronous batch, ascending; spread: what learning must know of its perturbations."""

    publication: str
    slots: NDArray[np.int64]
    spread: Floats


#: (publication, its slots ascending).
Tried = Sequence[tuple[str, NDArray[np.int64]]]


@dataclass(frozen=True)
class Closed:
    """A closed generation: the counted training slots, the surplus ones, those evaluated again, the centres that were measured, and its evaluations.

    In the asynchronous schedule ``counted`` is the batch; used: whose slots it has, in their order; tried: publication and
    slots of those in ``again``; open: the publications that stay open after it. gathered: what was made of the first
    counted slots before the last were there.
    """

    counted: Slots
    surplus: Slots
    evaluation: Figures | None
    confirmation: Figures | None
    eval_steps: int
    centre: SlotResult | None
    again: Slots = ()
    measured: Slots = ()
    used: Sequence[Used] = ()
    tried: Tried = ()
    open: tuple[OpenPublication, ...] = ()
    gathered: Gathered | None = None

    @property
    def results(self) -> list[SlotResult]:
        return [one for one in self.counted if one is not None]

    @cached_property
    def columns(self) -> Columns:
        """The counted slots as arrays."""
        return Columns.of(self.counted) if self.gathered is None else self.gathered.columns(self.counted)


def steps_of(slots: Slots) -> int:
    return sum(sum(one.steps) for one in slots if one is not None)


def returns_of(slots: Slots) -> list[float]:
    return [one.returns[0] for one in slots if one is not None]


def shortest_prefix(slots: Slots, least: int, min_steps: int) -> int:
    """How many slots make the batch: the fewest, but ``least``, whose episodes have ``min_steps`` steps."""
    if not min_steps:
        return min(len(slots), max(1, least))
    steps = 0
    for count, one in enumerate(slots, 1):
        steps += 0 if one is None else sum(one.steps)
        if count >= least and steps >= min_steps:
            return count
    return len(slots)


def closed(ledger: Ledger, least: int, min_steps: int) -> Closed:
    """What a complete ledger says, in slot order."""
    slots = ledger.ordered(messages.TRAIN)
    count = shortest_prefix(slots, least, min_steps) if slots else 0
    evaluation, confirmation = ledger.verified(messages.EVAL), ledger.verified(messages.CONFIRM)
    centre = ledger.ordered(messages.CENTRE)
    return Closed(
        slots[:count], slots[count:], figures_of(returns_of(evaluation)), figures_of(returns_of(confirmation)),
        steps_of(evaluation) + steps_of(confirmation), centre[0] if centre else None, ledger.ordered(messages.ELITE), centre[1:], gathered=ledger.gathered,
    )  # fmt: skip


class Learner:
    """Both ends of a generation for one run: what it must be answered with, and what its answers teach."""

    def __init__(self, config: RunConfig, spec: EnvironmentSpec, strategy: Strategy, noise: NoiseRows, target: float | None) -> None:
        self.config, self.spec, self.strategy, self.noise, self.target = config, spec, strategy, noise, target
        self._limit = parse_step_limit(config.step_limit)

    def learn(self, state: RunState, done: Closed) -> tuple[RunState, dict[str, float]]:
        """The next generation's state, and the strategy's figures."""
        columns = done.columns
        batch = Batch(
            self.noise, columns.noise_indices, self.fitness(columns), self.again(done.again), parts_of(done.used), generation=state.generation,
            drawn=plans_of([(one.publication, one.slots) for one in done.used]) if done.used else None,
            tried_again=plans_of(done.tried) if done.used else None, **self.behaved(done),
        )  # fmt: skip
        after, figures = self.strategy.learn(state.strategy, batch)
        after, moments = self.strategy.exchanged(state.strategy, after, self._merged(state, done))
        limit = self._limit.next(state.step_limit, self._lengths(done, state.step_limit), self.spec.step_limit)
        following = replace(
            state, generation=state.generation + 1, strategy=after, moments=moments, step_limit=limit, open=done.open
        )
        return following, figures

    def candidates(self, state: RunState, counted: Slots) -> list[int]:
        """Slots that are to be evaluated again before anything is learnt."""
        if not self.strategy.reevaluates or all(one is None for one in counted):
            return []
        columns = Columns.of(counted)
        batch = Batch(self.noise, columns.noise_indices, self.fitness(columns), generation=state.generation)
        slots: list[int] = self.strategy.candidates(state.strategy, batch).tolist()
        return slots

    def fitness(self, columns: Columns) -> NDArray[np.float64]:
        """float64 [S, per_slot] in slot order; NaN where a slot failed everywhere."""
        return columns.fitness if columns.there.any() else np.full((len(columns), self.strategy.per_slot), np.nan)

    def again(self, slots: Slots) -> NDArray[np.float64]:
        """float64 [k]: the fitness of those evaluated again; NaN where one failed everywhere."""
        return np.array([float("nan") if one is None else one.fitness[0] for one in slots], dtype=np.float64)

    def behaved(self, done: Closed) -> dict[str, NDArray[Any]]:
        """What a batch says of how individuals and measured centres behaved; nothing where nobody asks."""
        if not self.strategy.wants_behaviour:
            return {}
        centres = self.behaviour(done.measured, 1)[:, 0]
        return {"behaviour": self.behaviour(done.counted, self.strategy.per_slot), "centre_fitness": self.again(done.measured), "centre_behaviour": centres}

    def behaviour(self, slots: Slots, each: int) -> Floats:
        """float32 [S, each, b]: how individuals behaved, NaN where a slot failed everywhere."""
        nothing = np.full(each * self.spec.behaviour_size, np.nan, "<f4").tobytes()
        found = b"".join([nothing if one is None else one.behaviour for one in slots])
        return np.frombuffer(found, "<f4").astype(np.float32).reshape(len(slots), each, self.spec.behaviour_size)

    def _lengths(self, done: Closed, limit: int) -> Iterator[int]:
        """Episode lengths, with the sum and the number at the limit exact when an individual plays several."""
        for one in done.results:
            for steps, reached in zip(one.steps, one.at_limit, strict=True):
                yield from split_lengths(steps, reached, self.config.episodes, limit)

    def _merged(self, state: RunState, done: Closed) -> RunningMoments:
        """The observation statistics with those of the counted episodes."""
        if done.gathered is not None and done.gathered.base is state.moments:
            return done.gathered.all_moments(done.counted)
        return merged(state.moments, done.counted)

    # --- evaluation

    def due(self, state: RunState) -> bool:
        """Whether this generation's parameters are evaluated."""
        if state.stage == CLOSING:
            return self.config.eval_every > 0
        return state.stage == TRAINING and self.config.eval_every > 0 and state.generation % self.config.eval_every == 0

    def passes(self, figures: Figures | None) -> bool:
        return self.target is not None and figures is not None and figures.mean >= self.target

    def weighs(self, state: RunState, kind: str, figures: Figures) -> int:
        """What depends on an evaluation: 1 where high returns decide something, -1 where low ones do, 0 for nothing."""
        if kind == messages.FINAL:
            return 1
        best = state.best
        if self.passes(figures) or (kind == messages.EVAL and (best is None or (not best.confirmed and figures.mean > best.eval_mean))):
            return 1
        return -int(kind == messages.EVAL and self.config.rollback and fallen(state, figures))

    def judged(self, state: RunState, done: Closed) -> RunState:
        """The state with its best replaced where this generation's evaluation is better, or confirmed."""
        if done.evaluation is None:
            return state
        confirmed = self.passes(done.evaluation) and self.passes(done.confirmation)
        confirm_mean = done.confirmation.mean if done.confirmation else state.confirm_mean
        state = replace(state, last_evaluation=done.evaluation.mean, confirm_mean=confirm_mean)
        best = state.best
        if best is not None and not confirmed and (best.confirmed or done.evaluation.mean <= best.eval_mean):
            return state
        return replace(state, best=self.chosen(state, done.evaluation.mean, confirmed))

    def chosen(self, state: RunState, eval_mean: float, confirmed: bool = False) -> Best:
        """This generation's unperturbed policy with the statistics under which it was evaluated."""
        statistics = state.statistics(self.config.obs_clip)
        centre = self.strategy.centre(self.strategy.published(state.strategy)).copy()
        return Best(centre, statistics.mean, statistics.std, state.generation, eval_mean, confirmed, self.strategy.genome(state.strategy))


def parts_of(used: Sequence[Used]) -> list[Part]:
    """The rows of each publication in a batch of several."""
    ends = accumulate(len(one.slots) for one in used)
    return [Part(stop, one.spread) for stop, one in zip(ends, used, strict=True)]


def plans_of(slots: Tried) -> NDArray[np.int64]:
    """int64[S, 2]: generation and slot of each."""
    each = [np.stack([np.full(len(own), publication_generation(name)), own], axis=1) for name, own in slots]
    return np.concatenate(each) if each else np.empty((0, 2), np.int64)


def split_lengths(steps: int, reached: int, episodes: int, limit: int) -> list[int]:
    """``episodes`` lengths whose sum is ``steps``, ``reached`` of which are at the limit."""
    if episodes == 1:
        return [steps]
    rest = episodes - reached
    left = max(0, steps - reached * limit)
    return [limit] * reached + [left // rest + (one < left % rest) for one in range(rest)]


def training_record(done: Closed) -> Record:
    """Returns and fitness of the counted individuals; a return is the environment's own, always."""
    returns, fitness = (done.columns.scores(name) for name in ("returns", "fitness"))
    of_returns = figures_in_order(returns)
    same = np.array_equal(returns.view(np.int64), fitness.view(np.int64))
    record: Record = {}
    for name, figures in (("return", of_returns), ("fitness", of_returns if same else figures_in_order(fitness))):
        record[f"{name}_mean"] = figures.mean if figures else None
        record[f"{name}_std"] = figures.std if figures else None
        record[f"{name}_max"] = figures.greatest if figures else None
    record["return_min"] = of_returns.least if of_returns else None
    record["centre_rank"] = centre_rank(done.centre, fitness)
    return record


def all_at_patience(done: Closed, config: RunConfig) -> bool:
    """Whether patience ended every episode at the first step at which it can: no reward was ever positive."""
    patience, columns = parse_patience(config.patience), done.columns
    if patience is None or not columns.there.any():
        return False
    steps, cut = columns.steps[columns.there], columns.cut[columns.there]
    return bool((steps == patience.steps * config.episodes).all() and (cut == config.episodes).all())


def episodes_record(done: Closed, episodes: int) -> Record:
    """Counts of the counted episodes."""
    columns = done.columns
    played, steps = columns.individuals * episodes, columns.total_steps
    return {
        "population": columns.individuals, "episodes_generation": played, "steps_generation": steps,
        "length_mean": steps / played if played else None, "cut_fraction": int(columns.cut.sum()) / played if played else None,
    }  # fmt: skip


def evaluation_record(done: Closed, state: RunState) -> Record:
    shown = done.evaluation
    return {
        "eval_mean": shown.mean if shown else None, "eval_std": shown.std if shown else None,
        "eval_min": shown.least if shown else None, "eval_max": shown.greatest if shown else None,
        "eval_best": state.best.eval_mean if state.best else None,
        "confirm_mean": done.confirmation.mean if done.confirmation else None,
    }  # fmt: skip


def centre_rank(centre: SlotResult | None, fitness: Sequence[float] | NDArray[np.float64]) -> float | None:
    """Fraction of the population that the unperturbed policy beats under training's rules, ties half."""
    if centre is None or not len(fitness):
        return None
    others, own = np.asarray(fitness), centre.fitness[0]
    return (int((others < own).sum()) + 0.5 * int((others == own).sum())) / len(others)
