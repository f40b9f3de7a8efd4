"""/metrics: the runs' figures in Prometheus's text format 0.0.4."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from es_queue.security.sanitize import sanitize
from es_queue.util.metrics_endpoint import Sample, make_metric
from master.display.format import finite_or_none
from master.status.health import HEALTHY

if TYPE_CHECKING:
    from prometheus_client import Metric

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
