"""/metrics: runs as Prometheus reads them (text format 0.0.4)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from master.display.format import finite_or_none
from master.status.health import HEALTHY

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
GAUGE, COUNTER = "gauge", "counter"

#: Name without its prefix, type, the field of a run that it shows, and what it is.
METRIC_FAMILIES = (
    ("generation", GAUGE, "generation", "Number of the open generation"),
    ("env_steps_total", COUNTER, "env_steps", "Environment steps of training that counted"),
    ("eval_steps_total", COUNTER, "eval_steps", "Environment steps of evaluations"),
    ("episodes_total", COUNTER, "episodes", "Training episodes that counted"),
    ("training_seconds_total", COUNTER, "seconds", "Seconds for which the run has trained"),
    (
        "steps_per_second",
        GAUGE,
        "steps_per_second",
        "Environment steps a second in the newest generation",
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
    ("workers", GAUGE, "workers", "Workers of which the master knows"),
    ("eta_seconds", GAUGE, "eta", "Seconds until the nearest budget ends the run"),
    ("recovered_total", COUNTER, "recovered", "Blocks of work that were lost and issued again"),
    (
        "reissued_total",
        COUNTER,
        "reissued",
        "Overdue blocks of work that were issued a second time",
    ),
    ("late_total", COUNTER, "late", "Answers that came too late to count"),
    ("duplicate_total", COUNTER, "duplicate", "Answers to what had been answered"),
    ("lost_steps_total", COUNTER, "lost_steps", "Environment steps that were not used"),
    ("updated_timestamp_seconds", GAUGE, "updated", "When the master last wrote, by its own clock"),
)

Sample = tuple[Mapping[str, str], float]


def format_metrics(data: Mapping[str, Any]) -> str:
    """What ``DashboardQueries.figures`` saw, as text. Nothing of it: runs that could not be looked
    at are no runs.
    """
    runs = data.get("runs", ())
    families = [
        format_family(
            "up",
            GAUGE,
            "Whether what is shown was seen just now (1) or could not be read (0)",
            [({}, 0.0 if data.get("trouble") else 1.0)],
        ),
        format_family(
            "run_info",
            GAUGE,
            "A run, its environment, strategy, state and health",
            [(run_labels(run), 1.0) for run in runs],
        ),
        format_family(
            "run_healthy",
            GAUGE,
            "Whether a run trains, or is paused by somebody",
            [(run_label(run), float(run["health"] == HEALTHY)) for run in runs],
        ),
        *(
            format_family(name, kind, text, run_samples(runs, field))
            for name, kind, field, text in METRIC_FAMILIES
        ),
        format_family(
            "living_workers",
            GAUGE,
            "Workers whose heartbeat stands in Redis",
            [({"run": run}, count) for run, count in data.get("living", {}).items()],
        ),
        format_family(
            "unread_keys",
            GAUGE,
            "Keys that are too large to be read, so that something may be missing here",
            [({"run": run}, count) for run, count in data.get("unread", {}).items()],
        ),
        format_family(
            "refused_total",
            COUNTER,
            "Answers that were refused, by reason",
            refusal_samples(data.get("refused", {})),
        ),
    ]
    return "".join(family_text for family_text in families if family_text)


def format_family(name: str, kind: str, text: str, samples: Iterable[Sample]) -> str:
    """One metric with its samples; nothing where there are none."""
    lines = [f"es_queue_{name}{format_labels(labels)} {value:.10g}" for labels, value in samples]
    return (
        "\n".join([f"# HELP es_queue_{name} {text}", f"# TYPE es_queue_{name} {kind}", *lines, ""])
        if lines
        else ""
    )


def run_samples(runs: Iterable[Mapping[str, Any]], field: str) -> Iterator[Sample]:
    for run in runs:
        value = finite_or_none(run.get(field))
        if value is not None:
            yield run_label(run), value


def refusal_samples(refused: Mapping[str, Mapping[str, int]]) -> Iterator[Sample]:
    for run, reasons in refused.items():
        for reason, count in reasons.items():
            yield {"run": run, "reason": reason}, float(count)


def run_label(run: Mapping[str, Any]) -> dict[str, str]:
    return {"run": str(run["run"])}


def run_labels(run: Mapping[str, Any]) -> dict[str, str]:
    return {
        **run_label(run),
        **{name: str(run.get(name) or "") for name in ("env", "strategy", "state", "health")},
    }


def format_labels(labels: Mapping[str, str]) -> str:
    return (
        "{" + ",".join(f'{name}="{escape_label(value)}"' for name, value in labels.items()) + "}"
        if labels
        else ""
    )


def escape_label(value: str) -> str:
    """A label's value as the format wants it."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
