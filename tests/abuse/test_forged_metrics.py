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
from master.status.figures import format_bar, format_graph
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
    "-1e308",
    "1.7976931348623157e308",
    "NaN",
    "Infinity",
    "-Infinity",
    "1e999",
    "1" + "0" * 400,
    "9" * 5000,
    '"1e308"',
    '"text"',
    "[1e308]",
    "{}",
    "true",
    "null",
)
#: Of these a file says nothing: a text, a list or a missing figure is not a figure that is out of
#: range.
SILENT = ("9" * 5000, '"text"', "[1e308]", "{}", "true", "null")
DRAWINGS = (
    (),
    ("--by", "time"),
    ("--by", "generations"),
    ("--statistic", "iqm"),
    ("--metric", "return_mean"),
    ("--panels",),
    ("--panels", "--by", "episodes"),
)


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


@pytest.mark.parametrize("words", [(), ("--panels",)], ids=" ".join)
@pytest.mark.parametrize("value", FORGED, ids=lambda one: one[:12])
def test_a_forged_figure_is_left_out_and_the_rest_is_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], value: str, words: tuple[str, ...]
) -> None:
    path = forged(tmp_path / "a", dict.fromkeys(FIGURES, value))
    assert main([str(path), *words, "--out", str(tmp_path / "a.png")]) == 0
    said = capsys.readouterr().err
    assert said.count("WARNING") == (value not in SILENT) and said.count("\n") == said.count(
        "WARNING"
    ), said


@pytest.mark.parametrize("words", DRAWINGS, ids=" ".join)
def test_every_drawing_of_a_run_with_forged_figures_is_made(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    path = forged(tmp_path / "a", dict.fromkeys(FIGURES[1:], "1e308"))
    assert main([str(path), *words, "--out", str(tmp_path / "a.png")]) == 0


@pytest.mark.parametrize("name", FIGURES)
def test_one_figure_alone_may_be_forged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    path = forged(tmp_path / "a", {name: "-1e308"})
    for words in ((), ("--panels",)):
        assert main([str(path), *words, "--out", str(tmp_path / "a.svg")]) == 0
        assert capsys.readouterr().err == (
            f"es-plot: WARNING: {path}/metrics.jsonl has 1 figure beyond ±1e+30: it is left out\n"
        )


@pytest.mark.parametrize("seeds", [1, 2, 3])
def test_bands_of_seeds_with_figures_at_both_ends_are_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], seeds: int
) -> None:
    paths = [
        forged(
            tmp_path / str(seed),
            {"eval_mean": ("1e308", "-1e308", "1e30")[seed], "env_steps": "1e30"},
            seed=seed,
        )
        for seed in range(seeds)
    ]
    for statistic in ("mean", "iqm"):
        assert (
            main([*map(str, paths), "--statistic", statistic, "--out", str(tmp_path / "a.png")])
            == 0
        )
        assert capsys.readouterr().err.count("WARNING") == min(seeds, 2)


def test_figures_that_are_just_in_range_are_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = [
        record(
            place,
            eval_mean=sign * 1e30,
            eval_std=1e30,
            return_mean=sign * 1e30,
            episodes=place,
            centre_rank=sign * 1e30,
        )
        for place, sign in enumerate((1, -1) * 5)
    ]
    path = run(tmp_path / "a", records, target_reward="-1e30")
    for words in DRAWINGS:
        assert main([str(path), *words, "--out", str(tmp_path / "a.png")]) == 0
        assert capsys.readouterr().err == ""


@pytest.mark.parametrize("target", [1e308, "-1e308", "NaN", 10**400, [1]])
def test_a_forged_target_is_no_line(tmp_path: Path, target: object) -> None:
    path = run(
        tmp_path / "a", [record(place, eval_mean=1.0) for place in range(3)], target_reward=target
    )
    assert main([str(path), "--out", str(tmp_path / "a.png")]) == 0


@pytest.mark.parametrize("column", ["fitness", "return", "behaviour"])
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


@pytest.mark.parametrize(
    "values", [[1e308, -1e308], [1e308] * 80, [1e308, -1e308] * 40, [5e-324, 1e308]], ids=str
)
def test_a_graph_in_the_terminal_shows_forged_figures_too(values: list[float]) -> None:
    """es-status, the live view and the log draw returns as blocks."""
    assert len(format_graph(values, 30).split("  ")[0]) == min(30, len(values))


def test_a_bar_of_forged_figures_is_full_or_empty() -> None:
    assert format_bar(1e308, 1e-308, 12) == "█" * 12 and format_bar(-1e308, 1e-308, 12) == "░" * 12
