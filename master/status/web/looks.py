"""What the page shows, looked at no more often than it changes: many browsers cost Redis no more than one."""

from __future__ import annotations

import argparse
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from es_queue.config import default_of, option_fields
from es_queue.errors import EsQueueError, UsageError
from es_queue.recipes import expected_points, recipe_for
from master.report import METRICS
from master.status.errors import errors_page
from master.status.observe import Inside, SeenRun
from master.status.runs import run_page, runs_page
from master.status.sources import Found, chosen_sources
from master.status.values import plain
from master.status.web.curves import Curves
from master.wording import METHOD, printable

Data = dict[str, Any]

#: So many things that were looked at are remembered; the longest unasked one goes first.
MOST_REMEMBERED = 100
#: Runs whose workers and refusals are told to Prometheus.
MOST_INSIDE = 20


class Glance:
    """One thing that is looked at anew at most every so many seconds, whoever asks; between that it is remembered."""

    def __init__(self, look: Callable[[], Data], every: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._look, self._every, self._clock = look, every, clock
        self._lock = threading.Lock()
        self._data: Data = {}
        self._error: EsQueueError | None = None
        self._tried, self._seen = -every, 0.0

    def now(self) -> Data:
        """What is seen; where that failed, what was seen last, with ``trouble`` and its ``age`` in seconds.

        Raises EsQueueError where nothing was ever seen.
        """
        with self._lock:
            if self._clock() - self._tried >= self._every:
                self._renew()
            if self._error is None:
                return {**self._data, "trouble": None, "age": 0.0}
            if not self._data:
                raise self._error
            return {**self._data, "trouble": printable(self._error), "age": round(self._clock() - self._seen, 1)}

    def _renew(self) -> None:
        self._tried = self._clock()
        try:
            self._data, self._error, self._seen = self._look(), None, self._clock()
        except EsQueueError as error:
            self._error = error
        finally:
            self._tried = self._clock()  # a look that takes long is not begun at once again


class Looks:
    """All that can be looked at. given: es-status's command line, which says where runs are; every: seconds."""

    def __init__(self, given: argparse.Namespace, every: float) -> None:
        self._given, self.every = given, every
        self._lock = threading.Lock()
        self._glances: OrderedDict[str, Glance] = OrderedDict()

    def runs(self) -> Data:
        """Every run, newest first. Raises EsQueueError, as the others do."""
        return {**self._glance("runs", self._runs).now(), "every": self.every}

    def run(self, run: str) -> Data:
        """One run with its workers, settings and curves. Raises UsageError for one that is not there."""
        self._refuse_unlisted(run)
        curves = Curves()
        return self._glance(f"run {run}", lambda: self._run(run, curves)).now()

    def errors(self, run: str) -> Data:
        """The newest reports of a run's workers."""
        self._refuse_unlisted(run)
        return self._glance(f"errors {run}", lambda: self._errors(run)).now()

    def figures(self) -> Data:
        """What Prometheus is told: every run, the living ones with their refusals and living workers."""
        return self._glance("figures", self._figures).now()

    def _refuse_unlisted(self, run: str) -> None:
        """Names that somebody makes up are not asked for in Redis, and push nothing out of what is remembered."""
        if all(one["run"] != run for one in self.runs()["runs"]):
            raise UsageError(f"there is no run {printable(run, 60)}")

    def _glance(self, name: str, look: Callable[[], Data]) -> Glance:
        with self._lock:
            found = self._glances.setdefault(name, Glance(look, self.every / 2))
            self._glances.move_to_end(name)
            while len(self._glances) > MOST_REMEMBERED:
                self._glances.popitem(last=False)
            return found

    def _runs(self) -> Data:
        with chosen_sources(self._given) as sources:
            return dict(runs_page(sources.runs()).data)

    def _run(self, run: str, curves: Curves) -> Data:
        with chosen_sources(self._given) as sources:
            found = sources.find(run)
            inside = inside_of(found, curves)
            return page_data(found.seen, inside, curves)

    def _errors(self, run: str) -> Data:
        with chosen_sources(self._given) as sources:
            found = sources.find(run)
            return dict(errors_page(found.server, found.seen, Inside({}, 0, 0)).data)

    def _figures(self) -> Data:
        with chosen_sources(self._given) as sources:
            runs = dict(runs_page(sources.runs()).data)["runs"]
            living = [one["run"] for one in runs if one["leased"]][:MOST_INSIDE]
            told: Data = {"runs": runs, "refused": {}, "living": {}, "unread": {}}
            for run in living:  # one after the other: their workers are not held all at once
                server = sources.find(run).server
                if server is not None:
                    inside = server.inside(run)
                    told["refused"][run], told["living"][run], told["unread"][run] = (
                        inside.refused,
                        len(inside.workers),
                        len(inside.unread),
                    )
            return told


def inside_of(found: Found, curves: Curves) -> Inside:
    """The rest of a run; its history goes into the curves."""
    if found.server is not None:
        curves.follow(found.server, found.seen.run)
        return found.server.inside(found.seen.run)
    assert found.folder is not None
    curves.read_file(found.folder.folder / METRICS)
    return Inside({}, 0, 0, config=found.folder.config)


def page_data(seen: SeenRun, inside: Inside, curves: Curves) -> Data:
    """``es-status RUN --json``, and besides its settings (``own``: those that are not the default), curves and what to expect."""
    data = run_page(seen, inside, curves.history).data
    own = [name for name, value in inside.config.items() if name not in option_fields() or (listed(value) or None) != (listed(default_of(name)) or None)]
    return {**data, "config": plain(inside.config), "own": own, "curves": curves.to_json(), "expect": expected(inside.config)}


def listed(value: object) -> object:
    """JSON has lists alone."""
    return list(value) if isinstance(value, tuple) else value


def expected(config: Mapping[str, Any]) -> list[Data]:
    """What the environment's recipe gave after so many steps; nothing for a run of another method."""
    env = config.get("env")
    if not isinstance(env, str) or any(config.get(name) != recipe_for(env).get(name, default_of(name)) for name in METHOD):
        return []
    return [{"env_steps": point.steps, "reward": point.reward, "note": point.note} for point in expected_points(env)]
