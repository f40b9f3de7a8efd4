"""/metrics: the runs' figures in Prometheus's text format 0.0.4."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from es_queue.text import sanitize
from master.display.format import finite_or_none
from master.status.health import HEALTHY

if TYPE_CHECKING:
    from prometheus_client import Metric

#: The field of a run, its metric (of a counter, with _total), and what it is.
FIGURES = (
    ("generation", "generation", "Number of the open generation"),
    ("env_steps", "env_steps_total", "Environment steps of training that counted"),
    ("eval_steps", "eval_steps_total", "Environment steps of evaluations"),
    ("episodes", "episodes_total", "Training episodes that counted"),
    ("seconds", "training_seconds_total", "Seconds that the run has trained"),
    ("steps_per_second", "steps_per_second", "Steps per second in the newest generation"),
    ("return_mean", "return_mean", "Mean return of the newest generation's training episodes"),
    ("return_max", "return_max", "Highest return of the newest generation's training episodes"),
    ("eval_mean", "eval_mean", "Mean return of the newest evaluation"),
    ("eval_best", "eval_best", "Mean return of the best evaluation so far"),
    ("workers", "workers", "Workers known to the master"),
    ("busy", "busy_workers", "Workers that are busy on average: the sum of their shares"),
    ("eta", "eta_seconds", "Seconds until the nearest budget ends the run"),
    ("recovered", "recovered_total", "Blocks of work that were lost and issued again"),
    ("reissued", "reissued_total", "Overdue blocks of work that were issued a second time"),
    ("late", "late_total", "Results that arrived too late to count"),
    ("duplicate", "duplicate_total", "Results for slots that already had one"),
    ("lost_steps", "lost_steps_total", "Environment steps that were not used"),
    ("updated", "updated_timestamp_seconds", "Time of the master's last update, by its own clock"),
)


def format_metrics(data: Mapping[str, Any]) -> bytes:
    """runs: as es-status --json; refused: counts by run and reason; living: workers by run;
    trouble: why Redis could not be read.
    """
    # start-up: prometheus_client takes 0.1 s and 8 MB, and only /metrics needs it
    from prometheus_client import Metric, generate_latest

    metrics: dict[str, Metric] = {}

    def add(name: str, text: str, value: float, **labels: str) -> None:
        name = f"es_queue_{name}"
        if name not in metrics:
            kind = "counter" if name.endswith("_total") else "gauge"
            metrics[name] = Metric(name.removesuffix("_total"), text, kind)
        metrics[name].add_sample(name, labels, float(value))

    class Collected:
        def collect(self) -> Iterator[Metric]:
            yield from metrics.values()

    is_read = not data.get("trouble")
    add("up", "1 if these values were just read, 0 if Redis could not be read", is_read)
    for run in data.get("runs", ()):
        name = str(run["run"])
        about = {key: str(run.get(key) or "") for key in ("env", "strategy", "state", "health")}
        text = "A run, its environment, strategy, state and health"
        add("run_info", text, 1.0, run=name, **about)
        text = "1 while a run trains or is paused on request, 0 otherwise"
        add("run_healthy", text, run["health"] == HEALTHY, run=name)
        for field, metric, text in FIGURES:
            if (value := finite_or_none(run.get(field))) is not None:
                add(metric, text, value, run=name)
    for name, count in data.get("living", {}).items():
        add("living_workers", "Workers whose heartbeat is in Redis", count, run=name)
    for name, reasons in data.get("refused", {}).items():
        for reason, count in reasons.items():
            text = "Results that the master refused, by reason"
            add("refused_total", text, count, run=name, reason=sanitize(reason, 100))
    return generate_latest(Collected())
