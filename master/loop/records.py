"""The recorded figures of each generation, and the counters of its run."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from es_queue.config.episode_rules import parse_patience
from es_queue.config.run_config import RunConfig
from es_queue.numerics.arrays import Doubles
from es_queue.numerics.return_statistics import ReturnStatistics
from es_queue.protocol.messages import SlotResult, publication_generation
from master.collect.collector import Collector
from master.collect.publication.closed_generation import (
    ClosedGeneration,
    first_returns,
    ordered_statistics,
    total_steps,
)
from master.display.format import Record
from master.loop.publisher import OpenGeneration
from master.loop.state import Counters, RunState

COUNTER_NAMES = (
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


class RunTotals:
    """The run's totals under this master, without pauses."""

    def __init__(self, collector: Collector) -> None:
        self._collector, self._last_clock = collector, time.monotonic()

    def count(
        self, generation: OpenGeneration, closed: ClosedGeneration, paused: float
    ) -> Counters:
        """The counters including a closed generation, with its seconds of pause."""
        config, ledger, state = generation.learner.config, generation.ledger, generation.state
        centre = sum(closed.centre.steps) if closed.centre else 0
        counters = state.add_counts(
            episodes=closed.arrays.individuals * config.episodes,
            env_steps=closed.arrays.total_steps
            + total_steps(closed.reevaluations)
            + total_steps(closed.measured),
            eval_steps=closed.eval_steps + centre,
            surplus_steps=total_steps(closed.surplus),
            lost_steps=ledger.tally.lost_steps,
            seconds=self.take_seconds(paused),
            duplicate=ledger.refused["duplicate"] + ledger.refused["conflict"],
            refused=ledger.refused.total(),
            reissued=ledger.tally.reissued,
            recovered=ledger.tally.recovered,
            late=self._collector.late_answers.take(),
        )
        at_patience = is_all_at_patience(closed, config)
        patience = state.counters.patience_generations + 1 if at_patience else 0
        return replace(counters, patience_generations=patience)

    def take_seconds(self, paused: float) -> float:
        """Seconds since the last call, without the seconds ``paused``."""
        now = time.monotonic()
        took, self._last_clock = max(0.0, now - self._last_clock - paused), now
        return took

    def seconds(self, state: RunState) -> float:
        """The run's seconds until now, without pauses; ``state``: of the open generation."""
        elapsed = time.monotonic() - self._last_clock - self._collector.pauses.seconds
        return state.counters.seconds + elapsed

    def record(
        self, generation: OpenGeneration, state: RunState, closed: ClosedGeneration, seconds: float
    ) -> Record:
        """The run's totals in ``state``; seconds: of publishing and waiting."""
        counters, steps = state.counters, closed.arrays.total_steps + closed.eval_steps
        return {
            **{name: getattr(counters, name) for name in COUNTER_NAMES},
            "steps_per_second": steps / seconds if seconds > 0 else None,
            "workers": len(generation.ledger.tally.contributors),
            "eta": remaining_seconds(
                generation.learner.config, counters.seconds, counters.env_steps, state.generation
            ),
        }


def training_record(closed_generation: ClosedGeneration) -> Record:
    """Returns and fitness of the counted individuals; returns are always the environment's own."""
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
    record["return_median"] = float(np.median(returns)) if len(returns) else None
    record["return_min"] = of_returns.minimum if of_returns else None
    centre = closed_generation.centre
    record["centre_return"] = centre.returns[0] if centre is not None else None
    record["centre_rank"] = centre_rank(centre, fitness)
    return record


def lag_record(state: RunState, closed_generation: ClosedGeneration) -> Record:
    """How many generations ago the results of an asynchronous batch were published."""
    lags = [
        state.generation - publication_generation(part.publication)
        for part in closed_generation.used
        for _ in part.slots
    ]
    return {"lag_mean": sum(lags) / len(lags), "lag_max": max(lags)} if lags else {}


def episodes_record(closed_generation: ClosedGeneration, episodes: int) -> Record:
    columns = closed_generation.arrays
    played, steps = columns.individuals * episodes, columns.total_steps
    return {
        "population": columns.individuals,
        "episodes_generation": played,
        "steps_generation": steps,
        "length_mean": steps / played if played else None,
        "cut_fraction": int(columns.cut.sum()) / played if played else None,
    }


def evaluation_figures(figures: ReturnStatistics | None) -> dict[str, float | None]:
    """The figures of an evaluation; None for each if there was none."""
    return {
        "eval_mean": figures.mean if figures else None,
        "eval_std": figures.std if figures else None,
        "eval_min": figures.minimum if figures else None,
        "eval_max": figures.maximum if figures else None,
    }


def evaluation_record(closed_generation: ClosedGeneration, state: RunState) -> Record:
    confirmation = closed_generation.confirmation
    slots = [result for result in closed_generation.evaluated if result is not None]
    return {
        **evaluation_figures(closed_generation.evaluation),
        "eval_median": float(np.median(first_returns(slots))) if slots else None,
        "eval_length_mean": total_steps(slots) / len(slots) if slots else None,
        "eval_best": state.best.eval_mean if state.best else None,
        "confirm_mean": confirmation.mean if confirmation else None,
    }


def centre_rank(centre: SlotResult | None, fitness: Sequence[float] | Doubles) -> float | None:
    """Fraction of the population that the unperturbed policy beats under training's rules, ties
    half.
    """
    if centre is None or not len(fitness):
        return None
    others, centre_fitness = np.asarray(fitness), centre.fitness[0]
    return (
        int((others < centre_fitness).sum()) + 0.5 * int((others == centre_fitness).sum())
    ) / len(others)


def is_all_at_patience(closed_generation: ClosedGeneration, config: RunConfig) -> bool:
    """Whether patience ended every episode at the earliest step: no reward was ever positive."""
    patience, columns = parse_patience(config.patience), closed_generation.arrays
    if patience is None or not columns.valid.any():
        return False
    steps, cut = columns.steps[columns.valid], columns.cut[columns.valid]
    return bool(
        (steps == patience.steps * config.episodes).all() and (cut == config.episodes).all()
    )


def remaining_seconds(
    config: RunConfig, seconds: float, env_steps: int, generation: int
) -> float | None:
    """Seconds until the nearest budget ends the run, None without one."""
    shares = [
        done / budget
        for done, budget in (
            (env_steps, config.max_steps),
            (generation, config.generations),
            (seconds, config.max_seconds),
        )
        if budget
    ]
    share = max(shares, default=0.0)
    return seconds * (1 - share) / share if 0 < share < 1 else None
