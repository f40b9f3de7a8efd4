"""es-plot on metrics and records that nobody honest wrote: figures are drawn or left out, and never
a traceback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from es_queue.slot_record import read_record, record_path
from master.plot.command import main
from tests.cases import each_case
from tests.unit.master.plot.test_plot_cloud import lived
from tests.unit.master.plot.test_plot_curves import record, run

pytest.importorskip("matplotlib", reason="the extra 'plot' is not installed")

FIGURES = (
    "generation",
    "env_steps",
    "seconds",
    "episodes",
    "eval_mean",
    "eval_std",
    "return_mean",
    "return_min",
    "return_max",
    "seconds_wait",
    "centre_rank",
)
#: As they are in the file: JSON of Python has NaN and Infinity, and numbers of any length.
FORGED = (
    "1e308",
    "NaN",
    "Infinity",
    "1" + "0" * 400,
    "9" * 5000,
    '"text"',
    "[1e308]",
    "{}",
    "null",
)
#: Of these a file says nothing: a text, a list or a missing figure is not a figure that is out of
#: range.
SILENT = ("9" * 5000, '"text"', "[1e308]", "{}", "true", "null")


def forged(folder: Path, values: dict[str, str], seed: int = 0) -> Path:
    """A run of ten generations, into which one is written with these figures."""
    records: list[dict[str, Any]] = [
        record(place, eval_mean=float(place), eval_std=1.0, return_min=0.0, episodes=place)
        for place in range(10)
    ]
    path = run(folder, records, seed=seed)
    lines = (path / "metrics.jsonl").read_text().splitlines()
    spoilt = {name: json.dumps(value) for name, value in records[5].items()} | values
    lines[5] = "{" + ", ".join(f'"{name}": {value}' for name, value in spoilt.items()) + "}"
    (path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    return path


@each_case("words", [(), ("--panels",)])
@each_case("value", FORGED)
def test_a_forged_figure_is_left_out_and_the_rest_is_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], value: str, words: tuple[str, ...]
) -> None:
    path = forged(tmp_path / "a", dict.fromkeys(FIGURES, value))
    assert main([str(path), *words, "--out", str(tmp_path / "a.png")]) == 0
    said = capsys.readouterr().err
    assert said.count("WARNING") == (value not in SILENT) and said.count("\n") == said.count(
        "WARNING"
    ), said


@each_case("target", [1e308, "NaN", 10**400, [1]])
def test_a_forged_target_is_no_line(tmp_path: Path, target: object) -> None:
    path = run(
        tmp_path / "a", [record(place, eval_mean=1.0) for place in range(3)], target_reward=target
    )
    assert main([str(path), "--out", str(tmp_path / "a.png")]) == 0


@each_case("column", ["fitness", "behaviour"])
def test_forged_individuals_are_no_points_of_a_cloud(tmp_path: Path, column: str) -> None:
    settings: dict[str, Any] = (
        {"strategy": "novelty", "behaviour": "last-observation", "population": 12}
        if column == "behaviour"
        else {}
    )
    folder = lived(tmp_path / "run", **settings)
    kept = read_record(record_path(folder, 3))
    kept.columns[column] = kept.columns[column].astype(np.float64)
    kept.columns[column][0], kept.columns[column][1] = 1e308, -1e308
    record_path(folder, 3).write_bytes(kept.encode())
    assert main([str(folder), "--cloud", "--out", str(tmp_path / "a.png")]) == 0
