"""Curves of the page: every generation is in them, few points are shown, and hostile records do no
harm.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from master.status.web import queries as module
from master.status.web.queries import (
    TRAINING_FIELDS,
    DecimatedSeries,
    LearningCurves,
    read_json_lines,
)
from tests.cases import each_case


def record(generation: float, mean: float | str | None, **more: Any) -> dict[str, Any]:
    return {
        "generation": generation,
        "env_steps": 100 * generation,
        "seconds": 0.5 * generation,
        "return_mean": mean,
        **more,
    }


@each_case("value", [None, "x", "nan", "inf", float("nan"), [], {}, True])
def test_a_generation_without_a_figure_is_no_point(value: Any) -> None:
    thinned = DecimatedSeries(TRAINING_FIELDS)
    thinned.add(record(1, value))
    thinned.add({**record(1, 2.0), "generation": value})
    assert thinned.to_json()["return_mean"] == []


def test_a_file_is_read_whole_and_again_only_when_it_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, curves, reads = tmp_path / "metrics.jsonl", LearningCurves(), list[Path]()
    monkeypatch.setattr(
        module,
        "read_json_lines",
        lambda one, most: reads.append(one) or read_json_lines(one, most),
    )
    curves.read_file(path)
    path.write_text(
        "".join(
            json.dumps(record(generation, 1.0, eval_mean=2.0 if generation % 2 else None)) + "\n"
            for generation in range(6)
        )
        + "{broken\n[]\n"
    )
    for _ in range(2):
        curves.read_file(path)
        told = curves.to_json()
        assert told["training"]["generation"] == [0, 1, 2, 3, 4, 5] and told["evaluation"][
            "generation"
        ] == [1, 3, 5]
    assert len(reads) == 1
    path.write_text(json.dumps(record(0, 9.0)) + "\n")
    curves.read_file(path)
    assert (
        curves.to_json()["training"]["return_mean"] == [9] and len(curves.history.evaluations) == 0
    )
