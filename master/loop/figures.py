"""The figures of a generation, and the counters of its run, from the slot tables."""

from __future__ import annotations

import math

import numpy as np

from es_queue.config.episode_rules import parse_patience
from es_queue.config.run_config import RunConfig
from es_queue.numerics.arrays import Doubles
from es_queue.numerics.statistics import ReturnStatistics
from es_queue.protocol.messages import CONFIRM, EVAL
from es_queue.slots import ANSWERED, Slots
from master.loop.learner import Chosen, evaluation_of
from master.loop.state import RunState
from master.status.figures import Record

COUNTER_NAMES = (
    *("episodes", "env_steps", "eval_steps", "surplus_steps", "lost_steps", "late"),
    *("duplicate", "reissued", "refused", "recovered", "seconds"),
)


def counts(chosen: Chosen, config: RunConfig) -> dict[str, int]:
    """What the run's counters gain by a generation."""
    newest, tally = chosen.newest, chosen.newest.tally
    again = sum(slots.steps(rows) for slots, rows in zip(chosen.tables, chosen.elites, strict=True))
    centre = 0 if chosen.centre is None else int(newest.table["steps"][chosen.centre].sum())
    return {
        "episodes": individuals(chosen) * config.episodes,
        "env_steps": training_steps(chosen) + again + newest.steps(chosen.measured),
        "eval_steps": evaluation_steps(newest) + centre,
        "surplus_steps": newest.steps(chosen.surplus),
        "lost_steps": tally.lost_steps,
        "duplicate": tally.refused["duplicate"] + tally.refused["conflict"],
        "refused": tally.refused.total(),
    }


def training_steps(chosen: Chosen) -> int:
    return sum(slots.steps(rows) for slots, rows in zip(chosen.tables, chosen.trained, strict=True))


def evaluation_steps(slots: Slots) -> int:
    return slots.steps(slots.rows(EVAL, CONFIRM))


def individuals(chosen: Chosen) -> int:
    """Number of individuals with a result."""
    return int(valid(chosen).sum()) * chosen.newest.shape.individuals


def valid(chosen: Chosen) -> np.ndarray:
    """bool [S]: training rows that did not fail."""
    return np.asarray(chosen.column("state") == ANSWERED)


def training_record(chosen: Chosen) -> Record:
    """Returns and fitness of the counted individuals; returns are always the environment's own."""
    counted = valid(chosen)
    returns, fitness = (
        np.ascontiguousarray(chosen.column(name)[counted]).ravel()
        for name in ("returns", "fitness")
    )
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
    row = None if chosen.centre is None else chosen.newest.table[chosen.centre]
    record["centre_return"] = None if row is None else float(row["returns"][0])
    rank = None if row is None else fraction_below(fitness, float(row["fitness"][0]))
    record["centre_rank"] = rank
    return record


def fraction_below(fitness: Doubles, centre: float) -> float | None:
    """Fraction of the population that the unperturbed policy beats under training's rules, ties
    half.
    """
    if not len(fitness):
        return None
    below, equal = int((fitness < centre).sum()), int((fitness == centre).sum())
    return (below + 0.5 * equal) / len(fitness)


def lag_record(state: RunState, chosen: Chosen) -> Record:
    """How many generations ago the results of an asynchronous batch were published."""
    lags = state.generation - chosen.generations(chosen.trained)
    return {"lag_mean": float(lags.sum() / len(lags)), "lag_max": int(lags.max())}


def episodes_record(chosen: Chosen, episodes: int) -> Record:
    people, steps = individuals(chosen), training_steps(chosen)
    played = people * episodes
    return {
        "population": people,
        "episodes_generation": played,
        "steps_generation": steps,
        "length_mean": steps / played if played else None,
        "cut_fraction": int(chosen.column("cut").sum()) / played if played else None,
    }


def evaluation_figures(figures: ReturnStatistics | None) -> dict[str, float | None]:
    """The figures of an evaluation; None for each if there was none."""
    return {
        "eval_mean": figures.mean if figures else None,
        "eval_std": figures.std if figures else None,
        "eval_min": figures.minimum if figures else None,
        "eval_max": figures.maximum if figures else None,
    }


def evaluation_record(slots: Slots, state: RunState) -> Record:
    returns, rows = slots.returns(EVAL), slots.answered(slots.rows(EVAL))
    confirmation = evaluation_of(slots, CONFIRM)
    return {
        **evaluation_figures(evaluation_of(slots, EVAL)),
        "eval_median": float(np.median(returns)) if returns else None,
        "eval_length_mean": slots.steps(rows) / len(rows) if len(rows) else None,
        "eval_best": state.best.eval_mean if state.best else None,
        "confirm_mean": confirmation.mean if confirmation else None,
    }


def is_all_at_patience(chosen: Chosen, config: RunConfig) -> bool:
    """Whether patience ended every episode at the earliest step: no reward was ever positive."""
    patience, counted = parse_patience(config.patience), valid(chosen)
    if patience is None or not counted.any():
        return False
    steps, cut = chosen.column("steps")[counted], chosen.column("cut")[counted]
    earliest = patience.steps * config.episodes
    return bool((steps == earliest).all() and (cut == config.episodes).all())


def totals_record(
    state: RunState, config: RunConfig, steps: int, seconds: float, workers: int
) -> Record:
    """The run's totals in ``state``; steps, seconds: of the generation, waiting included."""
    counters = state.counters
    return {
        **{name: getattr(counters, name) for name in COUNTER_NAMES},
        "steps_per_second": steps / seconds if seconds > 0 else None,
        "workers": workers,
        "eta": remaining_seconds(config, counters.seconds, counters.env_steps, state.generation),
    }


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


def ordered_statistics(values: Doubles) -> ReturnStatistics | None:
    """``return_statistics`` for float64 [k], to the bit: sums run left to right, with the math
    library's squares.
    """
    if not len(values):
        return None
    with np.errstate(all="ignore"):
        mean = ordered_sum(values) / len(values)
        deviations = (values - mean).tolist()
    try:
        squares = np.array([deviation**2 for deviation in deviations])
        std = math.sqrt(ordered_sum(squares) / len(values))
    except OverflowError:
        std = math.inf
    listed = values.tolist()
    return ReturnStatistics(mean, std, min(listed), max(listed), len(listed))


def ordered_sum(values: Doubles) -> float:
    """Left to right from 0, in float64."""
    with np.errstate(all="ignore"):  # as Python's own, which says nothing
        return float(np.add.accumulate(np.concatenate([np.zeros(1), values]))[-1])
