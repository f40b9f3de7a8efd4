"""The reply to each path of the page. The paths are fixed, so none leads out of the folder."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import blake2b
from importlib import resources
from typing import TYPE_CHECKING, Any

from es_queue.errors import EsQueueError, UsageError
from es_queue.protocol.keys import RUN_ID
from es_queue.security.sanitize import sanitize
from es_queue.util.metrics_endpoint import Sample, make_metric
from master.display.format import finite_or_none
from master.status.health import HEALTHY
from master.status.web.queries import DashboardQueries

if TYPE_CHECKING:
    from prometheus_client import Metric

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

#: Name without its prefix (of a counter, with _total), the field of a run, and what it is.
METRIC_FAMILIES = (
    ("generation", "generation", "Number of the open generation"),
    ("env_steps_total", "env_steps", "Environment steps of training that counted"),
    ("eval_steps_total", "eval_steps", "Environment steps of evaluations"),
    ("episodes_total", "episodes", "Training episodes that counted"),
    ("training_seconds_total", "seconds", "Seconds that the run has trained"),
    (
        "steps_per_second",
        "steps_per_second",
        "Environment steps per second in the newest generation",
    ),
    ("return_mean", "return_mean", "Mean return of the newest generation's training episodes"),
    ("return_max", "return_max", "Highest return of the newest generation's training episodes"),
    ("eval_mean", "eval_mean", "Mean return of the newest evaluation"),
    ("eval_best", "eval_best", "Mean return of the best evaluation so far"),
    ("workers", "workers", "Workers known to the master"),
    ("busy_workers", "busy", "Workers that are busy on average: the sum of their shares"),
    ("eta_seconds", "eta", "Seconds until the nearest budget ends the run"),
    ("recovered_total", "recovered", "Blocks of work that were lost and issued again"),
    ("reissued_total", "reissued", "Overdue blocks of work that were issued a second time"),
    ("late_total", "late", "Results that arrived too late to count"),
    ("duplicate_total", "duplicate", "Results for slots that already had one"),
    ("lost_steps_total", "lost_steps", "Environment steps that were not used"),
    ("updated_timestamp_seconds", "updated", "Time of the master's last update, by its own clock"),
)

#: Name, the field with a count per run, and what it is.
COUNT_FAMILIES = (("living_workers", "living", "Workers whose heartbeat is in Redis"),)

Info = Mapping[str, Any]


@dataclass(frozen=True)
class RunMetrics:
    """Collects the results of ``DashboardQueries.figures``. Metrics without samples are left
    out.
    """

    data: Info

    def collect(self) -> Iterator[Metric]:
        for name, text, samples in self._families():
            if samples:
                yield make_metric(name, text, samples)

    def _families(self) -> Iterator[tuple[str, str, list[Sample]]]:
        runs: tuple[Info, ...] = tuple(self.data.get("runs", ()))
        yield (
            "up",
            "1 if these values were just read, 0 if Redis could not be read",
            [({}, 0.0 if self.data.get("trouble") else 1.0)],
        )
        yield (
            "run_info",
            "A run, its environment, strategy, state and health",
            [(run_labels(run, "env", "strategy", "state", "health"), 1.0) for run in runs],
        )
        yield (
            "run_healthy",
            "1 while a run trains or is paused on request, 0 otherwise",
            [(run_labels(run), float(run["health"] == HEALTHY)) for run in runs],
        )
        for name, source, text in METRIC_FAMILIES:
            values = [(run_labels(run), finite_or_none(run.get(source))) for run in runs]
            yield name, text, [(run, value) for run, value in values if value is not None]
        for name, source, text in COUNT_FAMILIES:
            counts = self.data.get(source, {}).items()
            yield name, text, [({"run": run}, count) for run, count in counts]
        yield (
            "refused_total",
            "Results that the master refused, by reason",
            [
                ({"run": run, "reason": sanitize(reason, 100)}, float(count))
                for run, reasons in self.data.get("refused", {}).items()
                for reason, count in reasons.items()
            ],
        )


def format_metrics(data: Info) -> bytes:
    """Prometheus's text format 0.0.4."""
    # start-up: prometheus_client takes 0.1 s and 8 MB, and only /metrics needs it
    from prometheus_client import generate_latest

    return generate_latest(RunMetrics(data))


def run_labels(run: Info, *names: str) -> dict[str, str]:
    return {"run": str(run["run"]), **{name: str(run.get(name) or "") for name in names}}


#: Only what comes from here runs, and nobody may put the page into a frame.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src "
    "'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SECURITY_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}
MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
JSON, TEXT = "application/json", "text/plain; charset=utf-8"
RUN_PATH = re.compile(rf"/api/runs/(?P<run>{RUN_ID.pattern})(?:/(?P<part>errors|archive))?")
#: Shorter answers gain nothing by being packed.
WORTH_PACKING = 1400


@dataclass(frozen=True)
class Reply:
    """An answer: its status, media type and bytes, and further headers."""

    status: int
    media_type: str
    body: bytes
    headers: dict[str, str] = field(default_factory=lambda: {"Cache-Control": "no-store"})

    def compress(self) -> Reply:
        headers = {**self.headers, "Vary": "Accept-Encoding"}
        if len(self.body) < WORTH_PACKING:
            return replace(self, headers=headers)
        return replace(
            self,
            body=gzip.compress(self.body, 1, mtime=0),
            headers={**headers, "Content-Encoding": "gzip"},
        )


def text_reply(status: int, text: str, **headers: str) -> Reply:
    return Reply(status, TEXT, f"{text}\n".encode(), {"Cache-Control": "no-store", **headers})


class WebRoutes:
    def __init__(self, queries: DashboardQueries) -> None:
        self._queries = queries

    def reply(self, path: str) -> Reply:
        if path in static_files():
            return static_files()[path]
        if path == "/metrics":
            return self._metrics()
        if path == "/api/runs":
            return json_reply(self._queries.runs)
        match = RUN_PATH.fullmatch(path)
        if match is None:
            return text_reply(404, "there is no such page")
        queries = {"errors": self._queries.errors, "archive": self._queries.archive}
        query = queries.get(match["part"], self._queries.run)
        return json_reply(lambda: query(match["run"]))

    def _metrics(self) -> Reply:
        try:
            data = self._queries.figures()
        except EsQueueError as error:
            data = {"trouble": str(error)}
        return Reply(200, METRICS_TYPE, format_metrics(data))


def json_reply(query: Callable[[], dict[str, Any]]) -> Reply:
    """404 for what is missing, 503 for what cannot be read, each with one sentence."""
    try:
        return Reply(200, JSON, json.dumps(query(), allow_nan=False).encode())
    except EsQueueError as error:
        status = 404 if isinstance(error, UsageError) else 503
        return Reply(status, JSON, json.dumps({"trouble": sanitize(error)}).encode())


@cache
def static_files() -> dict[str, Reply]:
    """The page's files by path; a browser asks each time whether they have changed."""
    replies = {}
    for entry in resources.files("master.status.web").joinpath("static").iterdir():
        kind = MEDIA_TYPES.get(entry.name.rpartition(".")[2])
        if kind is not None:
            body = entry.read_bytes()
            tag = blake2b(body, digest_size=12).hexdigest()
            replies[f"/{entry.name}"] = Reply(
                200, kind, body, {"Cache-Control": "no-cache", "ETag": f'"{tag}"'}
            )
    return {**replies, "/": replies["/index.html"]}
