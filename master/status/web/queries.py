"""Cached queries of the page: many browsers cost Redis no more than one."""

from __future__ import annotations

import argparse
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from es_queue.config.recipes import expected_points, recipe_for
from es_queue.config.run_config import default_of, option_fields
from es_queue.errors import EsQueueError, UsageError
from es_queue.protocol.keys import RunKeys
from es_queue.run_folder import find_run
from es_queue.text import sanitize, to_text
from master.display.format import METHOD_SETTINGS, drawable_or_none, finite_or_none
from master.status.discovery import find_sources
from master.status.errors import make_errors_page
from master.status.history import History, parse_entry
from master.status.redis_reader import RedisReader, RunDetails, RunSummary
from master.status.values import to_plain_json
from master.status.views import make_run_page, make_runs_page
from master.status.web.archive import archive_data
from master.storage.metrics_files import read_json_lines

#: Neighbouring points are averaged when there are so many: a screen has no more columns.
MOST_POINTS = 800
#: Entries that one look reads: a long history is there after a few looks.
ENTRIES_PER_UPDATE = 4000
READ_COUNT = 500
MOST_LINES = 500_000

#: Where a point stands, whichever axis is chosen; then its figures, of which the first must be
#: there.
AXIS_FIELDS = ("generation", "env_steps", "seconds")
TRAINING_FIELDS = ("return_mean", "return_std", "return_max")
EVALUATION_FIELDS = ("eval_mean", "eval_std", "eval_min")

PointRow = tuple[float | None, ...]


class DecimatedSeries:
    """Rows of figures in the order of generations, at most ``most``. Each represents
    ``generations_per_point`` generations.
    """

    def __init__(self, figures: Sequence[str], most: int = MOST_POINTS) -> None:
        self.names = (*AXIS_FIELDS, *figures)
        self.generations_per_point = 1
        self._most, self._rows, self._partial_rows = most, list[PointRow](), list[PointRow]()

    def add(self, record: Mapping[str, Any]) -> None:
        """A generation, if it has such a figure; those that it repeats are removed."""
        row = tuple(finite_or_none(record.get(name)) for name in self.names)
        if row[0] is None or row[len(AXIS_FIELDS)] is None:
            return
        for rows in (self._rows, self._partial_rows):
            while rows and (rows[-1][0] or 0.0) >= row[0]:
                rows.pop()
        self._partial_rows.append(row)
        if len(self._partial_rows) >= self.generations_per_point:
            self._rows.append(average_rows(self._partial_rows))
            self._partial_rows.clear()
        if len(self._rows) >= self._most:
            self._rows = [
                average_rows(self._rows[start : start + 2])
                for start in range(0, len(self._rows), 2)
            ]
            self.generations_per_point *= 2

    def to_json(self) -> dict[str, Any]:
        """Columns by name, six digits each; ``generations_per_point`` is the number of generations
        per point.
        """
        rows = [*self._rows, *([average_rows(self._partial_rows)] if self._partial_rows else [])]
        return {
            "each": self.generations_per_point,
            **{
                name: [round_or_none(row[place]) for row in rows]
                for place, name in enumerate(self.names)
            },
        }


def average_rows(rows: Sequence[PointRow]) -> PointRow:
    """The last row's place, with the means of the figures."""
    figures = (
        mean_or_none([row[place] for row in rows])
        for place in range(len(AXIS_FIELDS), len(rows[0]))
    )
    return (*rows[-1][: len(AXIS_FIELDS)], *figures)


def mean_or_none(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def round_or_none(value: float | None) -> float | None:
    """Six digits; None for a figure that no axis can show."""
    shown = drawable_or_none(value)
    return None if shown is None else float(f"{shown:.6g}")


class LearningCurves:
    """A run's training returns and evaluations, read incrementally."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self.history = History()
        self.training, self.evaluation = (
            DecimatedSeries(TRAINING_FIELDS),
            DecimatedSeries(EVALUATION_FIELDS),
        )
        self._last, self._stamp = "", (0, 0)

    def update(self, server: RedisReader, run: str) -> None:
        """Read new entries of the run's stream."""
        key = RunKeys(run).history
        for _ in range(ENTRIES_PER_UPDATE // READ_COUNT):
            (piece,) = server.ask(
                [("xrange", key, f"({self._last}" if self._last else "-", "+", READ_COUNT)]
            )
            if piece:
                self._last = to_text(piece[-1][0])
                self._add_records([parse_entry(fields) for _, fields in piece])
            if len(piece or ()) < READ_COUNT:
                break

    def read_file(self, metrics: Path) -> None:
        """From its beginning if it has changed."""
        try:
            about = metrics.stat()
        except OSError:
            return
        if self._stamp == (about.st_mtime_ns, about.st_size):
            return
        self._reset()
        self._stamp = (about.st_mtime_ns, about.st_size)
        with suppress(OSError):
            self._add_records(read_json_lines(metrics, MOST_LINES))

    def _add_records(self, records: Iterable[Mapping[str, Any]]) -> None:
        for record in records:
            self.history.add_records([record])
            self.training.add(record)
            self.evaluation.add(record)

    def to_json(self) -> dict[str, Any]:
        return {"training": self.training.to_json(), "evaluation": self.evaluation.to_json()}


Data = dict[str, Any]

#: So many things that were looked at are remembered; the longest unasked one goes first.
MOST_REMEMBERED = 100
#: Runs whose workers and refusals are told to Prometheus.
MOST_DETAILED = 20


class CachedQuery:
    """A query that runs at most once in ``every`` seconds, for all callers; in between, its result
    is cached.
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
        """The result. If the query failed, the last result, with ``trouble`` and its ``age`` in
        seconds.

        Raises EsQueueError if it has never succeeded.
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
    """All queries of the page. given: es-status's command line, which names the runs' place; every:
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
        """Raises UsageError if there is no such run."""
        self._validate_listed(run)
        curves = LearningCurves()
        return self._cached_query(f"run {run}", lambda: self._query_run(run, curves)).current()

    def errors(self, run: str) -> Data:
        self._validate_listed(run)
        return self._cached_query(f"errors {run}", lambda: self._query_errors(run)).current()

    def archive(self, run: str) -> Data:
        """Raises UsageError if the run has none, or its folder is not on this host."""
        self._validate_listed(run)
        return self._cached_query(f"archive {run}", lambda: self._query_archive(run)).current()

    def figures(self) -> Data:
        """For Prometheus: every run; of live ones also refusals and workers."""
        return self._cached_query("figures", self._query_figures).current()

    def _validate_listed(self, run: str) -> None:
        """Invented names cost no query of Redis, and push nothing out of the cache."""
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

    def _query_archive(self, run: str) -> Data:
        with find_sources(self._given) as sources:
            folder = sources.find_run(run).source.folder
        named_runs = [
            *([] if folder is None else find_run(folder).members),
            find_run(run, self._given.runs_dir),
        ]
        for named_run in named_runs:
            if named_run.run == run and named_run.folder.is_dir():
                return archive_data(named_run)
        raise UsageError(f"the archive of {run} is in its folder, which is not on this host")

    def _query_figures(self) -> Data:
        with find_sources(self._given) as sources:
            runs = dict(make_runs_page(sources.list_runs()).data)["runs"]
            living = [run_fields["run"] for run_fields in runs if run_fields["leased"]][
                :MOST_DETAILED
            ]
            figures: Data = {"runs": runs, "refused": {}, "living": {}}
            for run in living:  # one after the other: their workers are not held all at once
                server = sources.find_run(run).source
                if isinstance(server, RedisReader):
                    inside = server.read_details(run)
                    figures["refused"][run] = inside.refused
                    figures["living"][run] = len(inside.workers)
            return figures


def run_page_data(summary: RunSummary, details: RunDetails, curves: LearningCurves) -> Data:
    """``es-status RUN --json``, with settings (``own``: those that differ from the default), curves
    and expectations.
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
    return list(value) if isinstance(value, tuple) else value


def expected_rewards(config: Mapping[str, Any]) -> list[Data]:
    """The recipe's points; none for a run of another method."""
    env = config.get("env")
    if not isinstance(env, str) or any(
        config.get(name) != recipe_for(env).get(name, default_of(name)) for name in METHOD_SETTINGS
    ):
        return []
    return [
        {"env_steps": point.steps, "reward": point.reward, "note": point.note}
        for point in expected_points(env)
    ]
