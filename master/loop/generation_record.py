"""The figures of a generation and of its run: from slot tables, its counters, its recoveries."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from es_queue.config.run_config import RunConfig
from es_queue.config.schedules import ASYNC
from es_queue.environments.episode_rules import parse_patience
from es_queue.numerics.statistics import ReturnStatistics, finite_means, return_statistics
from es_queue.protocol.messages import CONFIRM, EVAL
from es_queue.slots import Rows, Slots
from master.loop.learner import Chosen, evaluation_of
from master.loop.state import RunState
from master.status.figures import Record


def closed_record(
    state: RunState, chosen: Chosen, after: RunState, config: RunConfig, seconds: float
) -> Record:
    """The figures of a closed generation of ``state``: of its training slots, of its evaluation,
    and the run's totals. seconds: that it took, waiting included
    """
    newest, people = chosen.newest, chosen.individuals
    played, steps, evaluation_steps = (
        people * config.episodes,
        chosen.steps,
        chosen.evaluation_steps,
    )
    record: Record = {}
    if config.schedule == ASYNC and after.generation > state.generation:
        lags = state.generation - chosen.generations(chosen.trained)
        record = {"lag_mean": float(lags.sum() / len(lags)), "lag_max": int(lags.max())}
    # Returns are always the environment's own.
    returns, fitness = chosen.scores("returns"), chosen.scores("fitness")
    of_returns = of_fitness = return_statistics(returns)
    if not np.array_equal(returns.view(np.int64), fitness.view(np.int64)):
        of_fitness = return_statistics(fitness)
    for name, each in (("return", of_returns), ("fitness", of_fitness)):
        record[f"{name}_mean"] = each.mean if each else None
        record[f"{name}_std"] = each.std if each else None
        record[f"{name}_max"] = each.maximum if each else None
    centre = None if chosen.centre is None else newest.table[chosen.centre]
    rank = None
    if centre is not None and len(fitness):
        # The fraction of the population that the unperturbed policy beats under training's rules,
        # ties half.
        own = centre["fitness"][0]
        below, equal = int((fitness < own).sum()), int((fitness == own).sum())
        rank = (below + 0.5 * equal) / len(fitness)
    confirmation, lengths = evaluation_of(newest, CONFIRM), newest.answered(newest.rows(EVAL))
    evaluated = newest.returns(EVAL)
    counters, totals = after.counters, asdict(after.counters)
    del totals["patience_generations"]
    spent = (
        (counters.env_steps, config.max_steps),
        (after.generation, config.generations),
        (counters.seconds, config.max_seconds),
    )
    share = max((done / budget for done, budget in spent if budget), default=0.0)  # of the nearest
    return {
        **record,
        "return_median": float(np.median(returns)) if len(returns) else None,
        "return_min": of_returns.minimum if of_returns else None,
        "centre_return": None if centre is None else float(centre["returns"][0]),
        "centre_rank": rank,
        **info_record("info", newest.info_names, chosen.scores("info")),
        "population": people,
        "episodes_generation": played,
        "steps_generation": steps,
        "length_mean": steps / played if played else None,
        "cut_fraction": int(chosen.column("cut").sum()) / played if played else None,
        **evaluation_figures(evaluation_of(newest, EVAL)),
        **evaluation_info(newest, EVAL),
        "eval_median": float(np.median(evaluated)) if evaluated else None,
        "eval_length_mean": newest.steps(lengths) / len(lengths) if len(lengths) else None,
        "eval_best": after.best.eval_mean if after.best else None,
        "confirm_mean": confirmation.mean if confirmation else None,
        **totals,
        "eta": counters.seconds * (1 - share) / share if 0 < share < 1 else None,
        "steps_per_second": steps / seconds if seconds > 0 else None,
        "eval_steps_per_second": evaluation_steps / seconds if seconds > 0 else None,
    }


def info_record(prefix: str, names: Sequence[str], values: np.ndarray[Any, Any]) -> Record:
    """Means of what the environments reported at the ends of episodes, as numbers and in words.

    values: float32 [n, k], NaN where an environment reported none
    """
    means = finite_means(names, values)
    words = ", ".join(f"{name} {mean:.4g}" for name, mean in means.items())
    return {prefix: words or None, **{f"{prefix}_{name}": one for name, one in means.items()}}


def evaluation_figures(figures: ReturnStatistics | None) -> dict[str, float | None]:
    """The figures of an evaluation; None for each if there was none."""
    names = {"mean": "mean", "std": "std", "min": "minimum", "max": "maximum"}
    return {f"eval_{name}": getattr(figures, of, None) for name, of in names.items()}


def evaluation_info(slots: Slots, kind: int) -> Record:
    """``info_record`` of an evaluation's episodes."""
    rows = slots.answered(slots.rows(kind))
    return info_record("eval_info", slots.info_names, slots.table["info"][rows, 0])


def is_all_at_patience(chosen: Chosen, config: RunConfig) -> bool:
    """Whether patience ended every episode at the earliest step: no reward was ever positive."""
    patience = parse_patience(config.patience)
    if patience is None or not chosen.individuals:
        return False
    ended = (chosen.scores("steps") == patience.steps * config.episodes).all()
    return bool(ended and (chosen.scores("cut") == config.episodes).all())


# --- recoveries

WORKER_DIED, STRAGGLER = "worker-died", "overdue"
REDIS_AWAY, REDIS_LOST, TAKEOVER = "redis-away", "redis-lost", "taken-over"
#: Of more recoveries that are not over yet, a new one counts as one with the newest of its cause.
MOST_OPEN = 100


class RecoveryStatistics:
    """How often the run recovered, by cause, and how long that took.

    A death, a copy or a lost result is recovered when the last of its rows has a result; an outage,
    when Redis responds again. Seconds begin when the master noticed, on its own monotonic clock.
    totals: by cause, how often, the seconds of all together, and those of the longest
    """

    def __init__(self) -> None:
        self.totals: dict[str, list[float]] = {}
        self._ongoing: list[tuple[str, float, set[int]]] = []

    def record(self, cause: str, seconds: float) -> None:
        """The run recovered from a fault within so many seconds."""
        self.add({cause: (1, seconds, seconds)})

    def add(self, more: Mapping[str, Sequence[float]]) -> None:
        """Add the ``totals`` of a former master."""
        for cause, (count, seconds, worst) in more.items():
            before, total, longest = self.totals.get(cause, (0, 0.0, 0.0))
            both, longer = round(total + seconds, 3), round(max(longest, worst), 3)
            self.totals[cause] = [int(before + count), both, longer]

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

    def to_json(self) -> str:
        """The totals as JSON, for the run's progress; empty while there are none."""
        return json.dumps(self.totals) if self.totals else ""
