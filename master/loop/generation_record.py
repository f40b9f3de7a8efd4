"""The figures of a generation and of its run: from slot tables, its counters, its recoveries."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from es_queue.config.run_config import RunConfig
from es_queue.environments.episode_rules import parse_patience
from es_queue.numerics.statistics import ReturnStatistics, finite_means, return_statistics
from es_queue.protocol.messages import CONFIRM, EVAL
from es_queue.slots import ANSWERED, Rows, Slots
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


# --- recoveries

WORKER_DIED, STRAGGLER = "worker-died", "overdue"
REDIS_AWAY, REDIS_LOST, TAKEOVER = "redis-away", "redis-lost", "taken-over"
#: Of more recoveries that are not over yet, a new one counts as one with the newest of its cause.
MOST_OPEN = 100


class RecoveryStatistics:
    """How often the run recovered, by cause, and how long that took.

    A death, a copy or a lost result is recovered when the last of its rows has a result; an outage,
    when Redis responds again. Seconds begin when the master noticed, on its own monotonic clock.
    """

    def __init__(self) -> None:
        #: By cause: how often, the seconds of all together, and those of the longest.
        self._totals: dict[str, list[float]] = {}
        self._ongoing: list[tuple[str, float, set[int]]] = []

    def restore(self, totals: Mapping[str, Sequence[float]]) -> None:
        for cause, (count, seconds, worst) in totals.items():
            self._add(cause, int(count), seconds, worst)

    def record(self, cause: str, seconds: float) -> None:
        """The run recovered from a fault within so many seconds."""
        self._add(cause, 1, seconds, seconds)

    def _add(self, cause: str, count: int, seconds: float, worst: float) -> None:
        before, total, worst_before = self._totals.get(cause, (0, 0.0, 0.0))
        self._totals[cause] = [before + count, total + seconds, max(worst_before, worst)]

    def begin(self, cause: str, rows: Sequence[int]) -> None:
        """Note a fault that delays these rows of the newest table."""
        same = [waiting for other, _, waiting in self._ongoing if other == cause]
        if rows and same and len(self._ongoing) >= MOST_OPEN:
            same[-1].update(rows)
        elif rows:
            self._ongoing.append((cause, time.monotonic(), set(rows)))

    def settle(self, rows: Rows | None = None) -> None:
        """Rows have a result, by default all: recoveries that waited only for them are over."""
        ongoing, self._ongoing = self._ongoing, []
        settled = set[int]() if rows is None or not ongoing else set(rows.tolist())
        for cause, began, waiting in ongoing:
            waiting -= settled
            if waiting and rows is not None:
                self._ongoing.append((cause, began, waiting))
            else:
                self.record(cause, time.monotonic() - began)

    def totals(self) -> dict[str, list[float]]:
        """Count, seconds and worst by cause: plain data for a checkpoint."""
        return {
            cause: [count, round(seconds, 3), round(worst, 3)]
            for cause, (count, seconds, worst) in self._totals.items()
        }

    def to_json(self) -> str:
        """The totals as JSON, for the run's progress; empty while there are none."""
        return json.dumps(self.totals()) if self._totals else ""
