"""/metrics: the text format to the letter, whatever the runs are called."""

from __future__ import annotations

import re
from typing import Any

from master.status.web.prometheus import METRIC_FAMILIES, format_metrics

LINE = re.compile(
    r'es_queue_[a-z_]+(\{[a-z]+="(?:[^"\\\n]|\\["\\n])*"(?:,[a-z]+="(?:[^"\\\n]|\\["\\n])*")*\})? '
    r""
    r""
    r"-?[0-9.e+-]+"
)
RUN: dict[str, Any] = {
    "run": "walker-1",
    "env": "BipedalWalker-v3",
    "strategy": "pgpe",
    "state": "running",
    "health": "healthy",
    "generation": 7,
    "env_steps": 123456789,
    "eval_mean": -12.5,
    "eta": None,
}


def metrics(**more: Any) -> str:
    return format_metrics(
        {
            "runs": [{**RUN, **more}],
            "refused": {"walker-1": {"stale": 3}},
            "living": {"walker-1": 2},
            "trouble": None,
        }
    )


def test_every_line_is_of_the_format_and_every_metric_is_typed_once_before_its_samples() -> None:
    typed: list[str] = []
    for line in metrics().splitlines():
        if line.startswith("# TYPE"):
            typed.append(line.split()[2])
        elif not line.startswith("# HELP"):
            assert LINE.fullmatch(line), line
            assert line.startswith(typed[-1])
    assert len(typed) == len(set(typed)) and metrics().endswith("\n")


def test_values_are_those_of_the_run_and_what_is_not_known_is_left_out() -> None:
    text = metrics()
    assert (
        'es_queue_generation{run="walker-1"} 7\n' in text
        and 'es_queue_env_steps_total{run="walker-1"} 123456789\n' in text
    )
    assert 'es_queue_eval_mean{run="walker-1"} -12.5\n' in text and "eta_seconds" not in text
    assert (
        'es_queue_refused_total{run="walker-1",reason="stale"} 3\n' in text
        and 'es_queue_living_workers{run="walker-1"} 2\n' in text
    )
    assert (
        'es_queue_run_info{run="walker-1",env="BipedalWalker-v3",strategy="pgpe",'
        'state="running",health="healthy"} '
        ""
        "1\n"
    ) in text


def test_labels_are_escaped() -> None:
    text = metrics(env='a"b\\c\nd} 1\nevil 2')
    assert r'env="a\"b\\c\nd} 1\nevil 2"' in text and all(
        LINE.fullmatch(line) for line in text.splitlines() if not line.startswith("#")
    )


def test_counters_end_in_total_and_gauges_do_not() -> None:
    assert all(
        name.endswith("_total") == (kind == "counter") for name, kind, _, _ in METRIC_FAMILIES
    )


def test_what_cannot_be_read_is_down_and_no_error_page() -> None:
    assert (
        format_metrics({"trouble": "Redis at x cannot be read"}).splitlines()[-1] == "es_queue_up 0"
    )
    assert "es_queue_up 0\n" in format_metrics({"runs": [RUN], "trouble": "gone"}), (
        "what was seen last is told beside it"
    )
