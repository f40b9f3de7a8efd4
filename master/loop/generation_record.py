"""The figures of a generation, and the counters of its run, from the slot tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from es_queue.config.episode_rules import parse_patience
from es_queue.config.run_config import RunConfig
from es_queue.numerics.statistics import ReturnStatistics, finite_means, return_statistics
from es_queue.protocol.messages import CONFIRM, EVAL
from es_queue.slots import ANSWERED, Slots
from master.loop.learner import Chosen, evaluation_of
from master.loop.state import RunState
from master.status.figures import Record

COUNTER_NAMES = (
    *("episodes", "env_steps", "eval_steps", "surplus_steps", "lost_steps", "late"),
    *("duplicate", "reissued", "refused", "recovered", "seconds"),
)


def valid(chosen: Chosen, name: str) -> np.ndarray[Any, Any]:
    """A column of the training rows that did not fail, an entry for each individual."""
    return np.ascontiguousarray(chosen.column(name)[chosen.column("state") == ANSWERED]).ravel()


def training_record(chosen: Chosen) -> Record:
    """Returns and fitness of the counted individuals; returns are always the environment's own."""
    returns, fitness = valid(chosen, "returns"), valid(chosen, "fitness")
    figures = {"return": return_statistics(returns)}
    same = np.array_equal(returns.view(np.int64), fitness.view(np.int64))
    figures["fitness"] = figures["return"] if same else return_statistics(fitness)
    record: Record = {}
    for name, each in figures.items():
        record[f"{name}_mean"] = each.mean if each else None
        record[f"{name}_std"] = each.std if each else None
        record[f"{name}_max"] = each.maximum if each else None
    reported = chosen.column("info")[chosen.column("state") == ANSWERED]
    reported = reported.reshape(len(reported) * reported.shape[1], reported.shape[2])
    row = None if chosen.centre is None else chosen.newest.table[chosen.centre]
    rank = None
    if row is not None and len(fitness):
        # The fraction of the population that the unperturbed policy beats under training's rules,
        # ties half.
        below, equal = (fitness < row["fitness"][0]).sum(), (fitness == row["fitness"][0]).sum()
        rank = float((int(below) + 0.5 * int(equal)) / len(fitness))
    return {
        **record,
        "return_median": float(np.median(returns)) if len(returns) else None,
        "return_min": figures["return"].minimum if figures["return"] else None,
        "centre_return": None if row is None else float(row["returns"][0]),
        "centre_rank": rank,
        **info_record("info", chosen.newest.info_names, reported),
    }


def info_record(prefix: str, names: Sequence[str], values: np.ndarray[Any, Any]) -> Record:
    """Means of what the environments reported at the ends of episodes, as numbers and in words.

    values: float32 [n, k], NaN where an environment reported none
    """
    means = finite_means(names, values)
    words = ", ".join(f"{name} {mean:.4g}" for name, mean in means.items())
    return {prefix: words or None, **{f"{prefix}_{name}": one for name, one in means.items()}}


def lag_record(state: RunState, chosen: Chosen) -> Record:
    """How many generations ago the results of an asynchronous batch were published."""
    lags = state.generation - chosen.generations(chosen.trained)
    return {"lag_mean": float(lags.sum() / len(lags)), "lag_max": int(lags.max())}


def episodes_record(chosen: Chosen, episodes: int) -> Record:
    people, steps = chosen.individuals, chosen.training_steps
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
    names = {"mean": "mean", "std": "std", "min": "minimum", "max": "maximum"}
    return {f"eval_{name}": getattr(figures, of, None) for name, of in names.items()}


def evaluation_info(slots: Slots, kind: int) -> Record:
    """``info_record`` of an evaluation's episodes."""
    rows = slots.answered(slots.rows(kind))
    return info_record("eval_info", slots.info_names, slots.table["info"][rows, 0])


def evaluation_record(slots: Slots, state: RunState) -> Record:
    returns, rows = slots.returns(EVAL), slots.answered(slots.rows(EVAL))
    confirmation = evaluation_of(slots, CONFIRM)
    return {
        **evaluation_figures(evaluation_of(slots, EVAL)),
        **evaluation_info(slots, EVAL),
        "eval_median": float(np.median(returns)) if returns else None,
        "eval_length_mean": slots.steps(rows) / len(rows) if len(rows) else None,
        "eval_best": state.best.eval_mean if state.best else None,
        "confirm_mean": confirmation.mean if confirmation else None,
    }


def is_all_at_patience(chosen: Chosen, config: RunConfig) -> bool:
    """Whether patience ended every episode at the earliest step: no reward was ever positive."""
    patience = parse_patience(config.patience)
    if patience is None or not chosen.individuals:
        return False
    earliest = patience.steps * config.episodes
    ended = (valid(chosen, "steps") == earliest).all()
    return bool(ended and (valid(chosen, "cut") == config.episodes).all())


def speeds_record(training: int, evaluation: int, seconds: float) -> Record:
    """Steps per second of a generation; seconds: waiting included."""
    return {
        "steps_per_second": training / seconds if seconds > 0 else None,
        "eval_steps_per_second": evaluation / seconds if seconds > 0 else None,
    }


def totals_record(state: RunState, config: RunConfig, workers: int) -> Record:
    """The run's totals in ``state``."""
    counters = state.counters
    shares = [
        done / budget
        for done, budget in (
            (counters.env_steps, config.max_steps),
            (state.generation, config.generations),
            (counters.seconds, config.max_seconds),
        )
        if budget
    ]
    share = max(shares, default=0.0)  # of the nearest budget
    return {
        **{name: getattr(counters, name) for name in COUNTER_NAMES},
        "workers": workers,
        "eta": counters.seconds * (1 - share) / share if 0 < share < 1 else None,
    }
