"""/metrics: what Prometheus reads."""

from __future__ import annotations

from typing import Any

from master.status.web import format_metrics

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


def text_of(data: dict[str, Any]) -> str:
    return format_metrics(data).decode()


def metrics(**more: Any) -> str:
    return text_of(
        {
            "runs": [{**RUN, "refused": {"stale": 3}, "living": [{}, {}], **more}],
            "trouble": None,
        }
    )


def test_values_are_those_of_the_run_and_what_is_not_known_is_left_out() -> None:
    text = metrics()
    assert (
        'es_queue_generation{run="walker-1"} 7.0\n' in text
        and 'es_queue_env_steps_total{run="walker-1"} 1.23456789e+08\n' in text
    )
    assert 'es_queue_eval_mean{run="walker-1"} -12.5\n' in text and "eta_seconds" not in text
    assert (
        'es_queue_refused_total{reason="stale",run="walker-1"} 3.0\n' in text
        and 'es_queue_living_workers{run="walker-1"} 2.0\n' in text
    )
    assert (
        'es_queue_run_info{env="BipedalWalker-v3",health="healthy",run="walker-1",'
        'state="running",strategy="pgpe"} 1.0\n'
    ) in text


def test_what_cannot_be_read_is_down_and_no_error_page() -> None:
    assert text_of({"trouble": "Redis at x cannot be read"}).splitlines()[-1] == "es_queue_up 0.0"
    assert "es_queue_up 0.0\n" in text_of({"runs": [RUN], "trouble": "gone"}), (
        "what was seen last is told beside it"
    )
