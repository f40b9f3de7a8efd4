"""es-play --cell: an elite of MAP-Elites by its behaviour."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from es_queue import load_policy
from tests.cases import each_case
from tests.unit.workers.play.test_play_cli import CARTPOLE, checkpoint, played, refused
from workers.es_play import main

#: Of cells 0 and 3 of 2 × 2, in a box that is 20 wide and 1 high.
BEHAVIOUR = [[-8.0, 0.1], [8.0, 0.9]]


def run_with_elites(folder: Path, behaviour: Any = BEHAVIOUR) -> np.ndarray:
    """A run whose newest checkpoint has these elites; returns their parameters."""
    config = replace(
        CARTPOLE, strategy="map_elites", cells=(2, 2), behaviour_bounds="-10:10,0:1", obs_norm=False
    )
    file = folder / "checkpoints/generation-00000003.npz"
    checkpoint(file, config)
    with np.load(file) as saved:
        arrays = dict(saved)
    draw = np.random.default_rng(7)
    parameters = draw.normal(size=(2, len(arrays["parameters"]))).astype(np.float32)[
        : len(behaviour)
    ]
    elites = {
        "archive_centroids": np.empty((0, 0)),
        "elite_cell": np.array([0, 3])[: len(behaviour)],
        "elite_fitness": np.array([9.0, 20.0])[: len(behaviour)],
        "elite_behaviour": np.array(behaviour, np.float32),
        "elite_parameters": parameters,
    }
    np.savez(file, **arrays, **{f"strategy.{name}": array for name, array in elites.items()})
    return parameters


@each_case(
    ("cell", "row", "contains"),
    [("-3,0.4", 0, True), ("30,0.6", 1, True), ("4,0.1", 0, False), ("-2,0.9", 1, False)],
)
def test_the_elite_of_a_cell_is_played_or_else_the_nearest(
    cell: str, row: int, contains: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_with_elites(tmp_path)
    summary = played(capsys, tmp_path, "--cell", cell, "--episodes", 2)
    elite = summary["elite"]
    assert elite["cell"] == (0, 3)[row] and elite["contains"] is contains
    assert elite["fitness"] == (9.0, 20.0)[row]
    np.testing.assert_allclose(elite["behaviour"], BEHAVIOUR[row], rtol=1e-6)
    assert summary["recorded"] is None


def test_an_exported_elite_plays_as_in_its_archive(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parameters = run_with_elites(tmp_path)
    out = tmp_path / "elite.npz"
    assert main([str(tmp_path), "--cell", "9,1", "--export", str(out)]) == 0
    assert "the elite of cell 3" in capsys.readouterr().out
    np.testing.assert_array_equal(load_policy(out).parameters, parameters[1])
    in_archive = played(capsys, tmp_path, "--cell", "9,1")
    exported = played(capsys, out)
    assert in_archive["eval_mean"] == exported["eval_mean"]
    assert exported["recorded"] is None


@each_case(
    ("words", "code", "sentence"),
    [
        (["--cell", "0.5"], 2, "have 2 numbers: give as many, such as --cell=8,0.9"),
        (["--cell", "1,x"], 2, "use a behaviour's numbers"),
        (["--cell", "1,1", "--cell", "2,0"], 2, "plays one elite, so give it once"),
        (["--cell", "1,1", "--generation", "3"], 2, "leave --generation out"),
    ],
)
def test_a_cell_that_cannot_be_found_is_refused(
    words: list[str], code: int, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_with_elites(tmp_path)
    assert sentence in refused(capsys, code, tmp_path, *words)
