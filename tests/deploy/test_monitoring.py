"""docker/monitoring: alerts and a dashboard that name only what /metrics has."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

from master.status.figures import FIGURES
from master.status.snapshot import STALLED
from master.status.web import format_metrics
from workers.heartbeat import EpisodeControl, WorkerMetrics

FOLDER = Path(__file__).resolve().parents[2] / "docker" / "monitoring"
ALERTS: dict[str, Any] = yaml.safe_load((FOLDER / "alerts.yaml").read_text())
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "grafana.json").read_text())
RULES = ALERTS["groups"][0]["rules"]
PANELS = DASHBOARD["panels"]
#: The labels of a metric, beside ``run``.
LABELS = {
    "run_info": {"run", "env", "strategy", "state", "health"},
    "refused_total": {"run", "reason"},
    "up": set(),
    "worker_busy_seconds_total": {"run", "worker"},
    "worker_memory_bytes": {"run", "worker"},
}


def metric_names() -> set[str]:
    run = {**dict.fromkeys(FIGURES, 1.0), "run": "a", "health": "", "living": [{}]}
    data = {"runs": [{**run, "refused": {"late": 1}}]}
    shown = re.findall(r"^es_queue_(\w+)", format_metrics(data).decode(), re.M)
    return set(shown) | {
        sample.name.removeprefix("es_queue_")
        for metric in WorkerMetrics({}, EpisodeControl()).collect()
        for sample in metric.samples
    }


def validate_expression(expression: str) -> None:
    """Every metric exists, every label is one of its own, and brackets are closed."""
    for opening, closing in ("()", "[]", "{}"):
        assert expression.count(opening) == expression.count(closing), expression
    found = re.findall(r"es_queue_(\w+)(?:\{([^}]*)\})?", expression)
    assert found, expression
    for name, selector in found:
        assert name in metric_names(), name
        used = set(re.findall(r"(\w+)=~?\"", selector))
        assert used <= LABELS.get(name, {"run"}), expression
    # A counter is read by what it grows.
    for name in re.findall(r"es_queue_(\w+_total)", expression):
        assert re.search(rf"(rate|increase)\(es_queue_{name}[^)]*\[\d+m\]", expression), expression


def test_alerts_name_existing_metrics_and_cover_workers_stalls_and_refusals() -> None:
    for rule in RULES:
        assert rule.keys() <= {"alert", "expr", "for", "annotations"} and rule["annotations"]
        assert re.fullmatch(r"\d+m", rule.get("for", "0m"))
        validate_expression(rule["expr"])
    by_name = {rule["alert"]: rule["expr"] for rule in RULES}
    assert len(by_name) == len(RULES)
    assert "es_queue_living_workers == 0" in by_name["EsQueueNoWorker"]
    assert STALLED in by_name["EsQueueStalled"]
    assert "es_queue_refused_total" in by_name["EsQueueRefusals"]


def test_the_dashboard_names_existing_metrics_and_no_panel_covers_another() -> None:
    assert DASHBOARD["schemaVersion"] >= 36 and "id" not in DASHBOARD
    variables = {item["name"] for item in DASHBOARD["templating"]["list"]}
    assert set(re.findall(r"\$\{?(\w+)", json.dumps(PANELS))) == variables
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    cells: set[tuple[int, int]] = set()
    for panel in PANELS:
        for target in panel["targets"]:
            validate_expression(target["expr"])
        place = panel["gridPos"]
        own = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not own & cells and place["x"] + place["w"] <= 24
        cells |= own
    drawn = re.findall(r"es_queue_(worker_\w+)", json.dumps(PANELS))
    assert set(drawn) == {"worker_busy_seconds_total", "worker_memory_bytes"}
