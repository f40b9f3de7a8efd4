"""/metrics: the runs' figures in Prometheus's text format 0.0.4."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from es_queue.text import sanitize
from master.status.figures import FIGURES, finite_or_none
from master.status.snapshot import HEALTHY

if TYPE_CHECKING:
    from prometheus_client import Metric


def format_metrics(data: Mapping[str, Any]) -> bytes:
    """runs: as es-status --json, some with details; trouble: why Redis could not be read."""
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

    up = "1 if these values were just read, 0 if Redis could not be read"
    add("up", up, not data.get("trouble"))
    for run in data.get("runs", ()):
        name = str(run["run"])
        about = {key: str(run.get(key) or "") for key in ("env", "strategy", "state", "health")}
        text = "A run, its environment, strategy, state and health"
        add("run_info", text, 1.0, run=name, **about)
        text = "1 while a run trains or is paused on request, 0 otherwise"
        add("run_healthy", text, run["health"] == HEALTHY, run=name)
        for figure in FIGURES.values():
            value = finite_or_none(run.get(figure.name)) if figure.metric else None
            if value is not None:
                unit = f" [{figure.unit}]" if figure.unit else ""
                add(figure.metric, f"{figure.sentence}{unit}", value, run=name)
        if "living" in run:
            text = "Workers whose heartbeat is in Redis"
            add("living_workers", text, len(run["living"]), run=name)
        for reason, count in run.get("refused", {}).items():
            text = "Results that the master refused, by reason"
            add("refused_total", text, count, run=name, reason=sanitize(reason, 100))
    return generate_latest(Collected())
