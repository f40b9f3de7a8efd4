"""es-plot --archive: the elites of MAP-Elites over their behaviours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from es_queue.strategies.map_elites.cells import centroids_of, nearest
from master.plot import command
from master.plot.archive_map import archive_map, voronoi_regions
from tests.archives import archived
from tests.cases import each_case

matplotlib = pytest.importorskip("matplotlib", reason="the extra 'plot' is not installed")


def test_each_elite_colours_its_cell_of_the_grid(tmp_path: Path) -> None:
    folder = archived(tmp_path, [[0.1, 0.1], [0.1, 0.5]], [5.0, -7.0], cells=(2, 3))
    panel, bar = archive_map(folder, "two").axes
    colours = np.ma.filled(panel.collections[0].get_array().astype(float), np.nan)
    expected = np.full((3, 2), np.nan)
    expected[0, 0], expected[1, 0] = 5.0, -7.0  # the first number is horizontal
    np.testing.assert_array_equal(colours, expected)
    assert bar.get_ylabel() == "fitness" and panel.get_xlabel() == "behaviour, first number"
    title = panel.get_figure().get_suptitle()
    assert title == "two\n2 of 6 cells, coverage 33.3 %, QD score -2"


def test_a_region_has_the_points_that_are_nearest_to_its_centroid() -> None:
    points = np.random.default_rng(3).random((2000, 2))
    for count in (2, 3, 40):
        centroids = centroids_of(count, 2)
        cells = nearest(points, centroids)
        paths = [matplotlib.path.Path(region) for region in voronoi_regions(centroids)]
        inside = np.stack([path.contains_points(points) for path in paths])
        np.testing.assert_array_equal(inside.argmax(axis=0), cells)
        assert (inside.sum(axis=0) == 1).all()


def test_the_regions_of_centroids_are_drawn_in_the_units_of_the_behaviour(tmp_path: Path) -> None:
    folder = archived(
        tmp_path, [[0.0, 0.0]], [4.0], archive="cvt", cells=(5,), behaviour_bounds="-10:10,0:1"
    )
    regions = archive_map(folder).axes[0].collections[0]
    corners = np.concatenate([path.vertices for path in regions.get_paths()])
    np.testing.assert_allclose([corners.min(axis=0), corners.max(axis=0)], [[-10, 0], [10, 1]])
    assert np.ma.compressed(regions.get_array()).tolist() == [4.0]


def test_behaviours_of_one_number_are_bars(tmp_path: Path) -> None:
    folder = archived(tmp_path, [[0.1], [0.3]], [2.0, 3.0], cells=(4,))
    (panel,) = archive_map(folder).axes
    values, edges, _ = panel.patches[0].get_data()
    np.testing.assert_array_equal(values, [2.0, 3.0, np.nan, np.nan])
    np.testing.assert_allclose(edges, [0, 0.25, 0.5, 0.75, 1])


@each_case(
    ("behaviour", "words", "sentence"),
    [
        ([[0.1, 0.1, 0.1]], ["--archive"], "one or two numbers, and those of"),
        (np.empty((0, 2)), ["--archive"], "has none yet"),
        ([[0.1], [0.2]], ["--archive"], "not each in a cell of their own behaviour"),
        ([[0.1, 0.1]], ["--archive", "--cloud"], "--archive and --cloud are different figures"),
    ],
)
def test_an_archive_that_cannot_be_drawn_is_refused(
    behaviour: Any,
    words: list[str],
    sentence: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = archived(tmp_path / "run", behaviour, [1.0] * len(behaviour), cells=(2,))
    assert command.main([str(folder), *words, "--out", str(tmp_path / "a.png")]) in (2, 6)
    assert sentence in capsys.readouterr().err and not (tmp_path / "a.png").exists()


def test_a_run_without_an_archive_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = archived(tmp_path / "run", [[0.1, 0.1]], [1.0])
    file = folder / "checkpoints/generation-00000003.npz"
    with np.load(file) as arrays:
        kept = {name: arrays[name] for name in arrays if not name.startswith("strategy.")}
    np.savez(file, **kept)
    out = tmp_path / "a.svg"
    assert command.main([str(folder), "--archive", "--out", str(out)]) == 6
    assert "name a run of the strategy map_elites" in capsys.readouterr().err
    file.unlink()
    assert command.main([str(folder), "--archive", "--out", str(out)]) == 6
    assert "wait until the run has saved one" in capsys.readouterr().err


@each_case("suffix", ["svg", "pdf", "png"])
def test_the_command_draws_an_archive(suffix: str, tmp_path: Path) -> None:
    folder, out = archived(tmp_path / "run", [[0.1, 0.1]], [1.0]), tmp_path / f"a.{suffix}"
    assert command.main([str(folder), "--archive", "--out", str(out)]) == 0
    assert out.stat().st_size > 1000
