"""Cached queries of the page: many browsers cost Redis no more than one."""

from __future__ import annotations

import argparse
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from es_queue.config.recipes import expected_points, recipe_for
from es_queue.config.run_config import default_of, option_fields
from es_queue.errors import EsQueueError, UsageError
from es_queue.security.sanitize import sanitize
from master.display.format import METHOD_SETTINGS
from master.status.discovery import find_sources
from master.status.errors import make_errors_page
from master.status.redis_reader import RunDetails, RunSummary
from master.status.values import to_plain_json
from master.status.views import make_run_page, make_runs_page
from master.status.web.curves import LearningCurves

Data = dict[str, Any]

#: So many things that were looked at are remembered; the longest unasked one goes first.
MOST_REMEMBERED = 100
#: Runs whose workers and refusals are told to Prometheus.
MOST_DETAILED = 20


class CachedQuery:
    """One thing that is looked at anew at most every so many seconds, whoever asks; between that it
    is remembered.
    """

    def __init__(
        self, query: Callable[[], Data], every: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._query, self._every, self._clock = query, every, clock
        self._lock = threading.Lock()
        self._data: Data = {}
        self._error: EsQueueError | None = None
        self._last_tried, self._last_succeeded = -every, 0.0

    def current(self) -> Data:
        """What is seen; where that failed, what was seen last, with ``trouble`` and its ``age`` in
        seconds.

        Raises EsQueueError if nothing was ever seen.
        """
        with self._lock:
            if self._clock() - self._last_tried >= self._every:
                self._refresh()
            if self._error is None:
                return {**self._data, "trouble": None, "age": 0.0}
            if not self._data:
                raise self._error
            return {
                **self._data,
                "trouble": sanitize(self._error),
                "age": round(self._clock() - self._last_succeeded, 1),
            }

    def _refresh(self) -> None:
        self._last_tried = self._clock()
        try:
            self._data, self._error, self._last_succeeded = self._query(), None, self._clock()
        except EsQueueError as error:
            self._error = error
        finally:
            self._last_tried = self._clock()  # a look that takes long is not begun at once again


class DashboardQueries:
    """All that can be looked at. given: es-status's command line, which says where runs are; every:
    seconds.
    """

    def __init__(self, given: argparse.Namespace, every: float) -> None:
        self._given, self.every = given, every
        self._lock = threading.Lock()
        self._queries: OrderedDict[str, CachedQuery] = OrderedDict()

    def runs(self) -> Data:
        """Every run, newest first. Raises EsQueueError, as the others do."""
        return {**self._cached_query("runs", self._query_runs).current(), "every": self.every}

    def run(self, run: str) -> Data:
        """One run with its workers, settings and curves. Raises UsageError for one that is not
        there.
        """
        self._validate_listed(run)
        curves = LearningCurves()
        return self._cached_query(f"run {run}", lambda: self._query_run(run, curves)).current()

    def errors(self, run: str) -> Data:
        """The newest reports of a run's workers."""
        self._validate_listed(run)
        return self._cached_query(f"errors {run}", lambda: self._query_errors(run)).current()

    def figures(self) -> Data:
        """What Prometheus is told: every run, the living ones with their refusals and living
        workers.
        """
        return self._cached_query("figures", self._query_figures).current()

    def _validate_listed(self, run: str) -> None:
        """Names that somebody makes up are not asked for in Redis, and push nothing out of what is
        remembered.
        """
        if all(listed_run["run"] != run for listed_run in self.runs()["runs"]):
            raise UsageError(f"there is no run {sanitize(run, 60)}")

    def _cached_query(self, name: str, query: Callable[[], Data]) -> CachedQuery:
        with self._lock:
            cached = self._queries.setdefault(name, CachedQuery(query, self.every / 2))
            self._queries.move_to_end(name)
            while len(self._queries) > MOST_REMEMBERED:
                self._queries.popitem(last=False)
            return cached

    def _query_runs(self) -> Data:
        with find_sources(self._given) as sources:
            return dict(make_runs_page(sources.list_runs()).data)

    def _query_run(self, run: str, curves: LearningCurves) -> Data:
        with find_sources(self._given) as sources:
            location = sources.find_run(run)
            details = location.read_details(curves)
            return run_page_data(location.summary, details, curves)

    def _query_errors(self, run: str) -> Data:
        with find_sources(self._given) as sources:
            location = sources.find_run(run)
            return dict(
                make_errors_page(location.source, location.summary, RunDetails({}, 0, 0)).data
            )

    def _query_figures(self) -> Data:
        with find_sources(self._given) as sources:
            runs = dict(make_runs_page(sources.list_runs()).data)["runs"]
            living = [run_fields["run"] for run_fields in runs if run_fields["leased"]][
                :MOST_DETAILED
            ]
            figures: Data = {"runs": runs, "refused": {}, "living": {}, "unread": {}}
            for run in living:  # one after the other: their workers are not held all at once
                server = sources.find_run(run).server
                if server is not None:
                    inside = server.read_details(run)
                    figures["refused"][run], figures["living"][run], figures["unread"][run] = (
                        inside.refused,
                        len(inside.workers),
                        len(inside.unread),
                    )
            return figures


def run_page_data(summary: RunSummary, details: RunDetails, curves: LearningCurves) -> Data:
    """``es-status RUN --json``, and besides its settings (``own``: those that are not the default),
    curves and what to expect.
    """
    data = make_run_page(summary, details, curves.history).data
    changed_settings = [
        name
        for name, value in details.config.items()
        if name not in option_fields()
        or (to_json_list(value) or None) != (to_json_list(default_of(name)) or None)
    ]
    return {
        **data,
        "config": to_plain_json(details.config),
        "own": changed_settings,
        "curves": curves.to_json(),
        "expect": expected_rewards(details.config),
    }


def to_json_list(value: object) -> object:
    """JSON has lists alone."""
    return list(value) if isinstance(value, tuple) else value


def expected_rewards(config: Mapping[str, Any]) -> list[Data]:
    """What the environment's recipe gave after so many steps; nothing for a run of
    another method.
    """
    env = config.get("env")
    if not isinstance(env, str) or any(
        config.get(name) != recipe_for(env).get(name, default_of(name)) for name in METHOD_SETTINGS
    ):
        return []
    return [
        {"env_steps": point.steps, "reward": point.reward, "note": point.note}
        for point in expected_points(env)
    ]
