"""/metrics: runs as Prometheus metrics, written by prometheus_client."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from master.display.format import finite_or_none
from master.status.health import HEALTHY

if TYPE_CHECKING:
    from prometheus_client import Metric

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
GAUGE, COUNTER = "gauge", "counter"

#: Name without its prefix, type, the field of a run that it shows, and what it is.
METRIC_FAMILIES = (
    ("generation", GAUGE, "generation", "Number of the open generation"),
    ("env_steps_total", COUNTER, "env_steps", "Environment steps of training that counted"),
    ("eval_steps_total", COUNTER, "eval_steps", "Environment steps of evaluations"),
    ("episodes_total", COUNTER, "episodes", "Training episodes that counted"),
    ("training_seconds_total", COUNTER, "seconds", "Seconds that the run has trained"),
    (
        "steps_per_second",
        GAUGE,
        "steps_per_second",
        "Environment steps per second in the newest generation",
    ),
    (
        "return_mean",
        GAUGE,
        "return_mean",
        "Mean return of the newest generation's training episodes",
    ),
    (
        "return_max",
        GAUGE,
        "return_max",
        "Highest return of the newest generation's training episodes",
    ),
    ("eval_mean", GAUGE, "eval_mean", "Mean return of the newest evaluation"),
    ("eval_best", GAUGE, "eval_best", "Mean return of the best evaluation so far"),
    ("workers", GAUGE, "workers", "Workers known to the master"),
    ("eta_seconds", GAUGE, "eta", "Seconds until the nearest budget ends the run"),
    ("recovered_total", COUNTER, "recovered", "Blocks of work that were lost and issued again"),
    (
        "reissued_total",
        COUNTER,
        "reissued",
        "Overdue blocks of work that were issued a second time",
    ),
    ("late_total", COUNTER, "late", "Results that arrived too late to count"),
    ("duplicate_total", COUNTER, "duplicate", "Results for slots that already had one"),
    ("lost_steps_total", COUNTER, "lost_steps", "Environment steps that were not used"),
    (
        "updated_timestamp_seconds",
        GAUGE,
        "updated",
        "Time of the master's last update, by its own clock",
    ),
)

#: Name, the field with a count per run, and what it is.
COUNT_FAMILIES = (
    ("living_workers", "living", "Workers whose heartbeat is in Redis"),
    (
        "unread_keys",
        "unread",
        "Keys that are too large to read, so some metrics may be missing",
    ),
)

Sample = tuple[Mapping[str, str], float]
Info = Mapping[str, Any]


@dataclass(frozen=True)
class RunMetrics:
    """Collects what ``DashboardQueries.figures`` saw. Metrics without samples are left out."""

    data: Info

    def collect(self) -> Iterator[Metric]:
        for name, kind, text, samples in self._families():
            if samples:
                yield make_metric(name, kind, text, samples)

    def _families(self) -> Iterator[tuple[str, str, str, list[Sample]]]:
        runs: tuple[Info, ...] = tuple(self.data.get("runs", ()))
        yield (
            "up",
            GAUGE,
            "1 if these values were just read, 0 if Redis could not be read",
            [({}, 0.0 if self.data.get("trouble") else 1.0)],
        )
        yield (
            "run_info",
            GAUGE,
            "A run, its environment, strategy, state and health",
            [(run_labels(run), 1.0) for run in runs],
        )
        yield (
            "run_healthy",
            GAUGE,
            "1 while a run trains or is paused on request, 0 otherwise",
            [(run_label(run), float(run["health"] == HEALTHY)) for run in runs],
        )
        for name, kind, field, text in METRIC_FAMILIES:
            values = [(run_label(run), finite_or_none(run.get(field))) for run in runs]
            yield name, kind, text, [(run, value) for run, value in values if value is not None]
        for name, field, text in COUNT_FAMILIES:
            counts = self.data.get(field, {}).items()
            yield name, GAUGE, text, [({"run": run}, count) for run, count in counts]
        yield (
            "refused_total",
            COUNTER,
            "Results that the master refused, by reason",
            [
                ({"run": run, "reason": reason}, float(count))
                for run, reasons in self.data.get("refused", {}).items()
                for reason, count in reasons.items()
            ],
        )


def format_metrics(data: Info) -> bytes:
    """Prometheus's text format 0.0.4."""
    # start-up: prometheus_client takes 0.1 s and 8 MB, and only /metrics needs it
    from prometheus_client import generate_latest

    return generate_latest(RunMetrics(data))


def make_metric(name: str, kind: str, text: str, samples: list[Sample]) -> Metric:
    # start-up: see format_metrics
    from prometheus_client import Metric

    metric = Metric(f"es_queue_{name.removesuffix('_total')}", text, kind)
    for labels, value in samples:
        metric.add_sample(f"es_queue_{name}", dict(labels), value)
    return metric


def run_label(run: Info) -> dict[str, str]:
    return {"run": str(run["run"])}


def run_labels(run: Info) -> dict[str, str]:
    texts = {name: str(run.get(name) or "") for name in ("env", "strategy", "state", "health")}
    return run_label(run) | texts
