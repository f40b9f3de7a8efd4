"""es-plot --archive: the elites of MAP-Elites over their behaviours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from master.plot import command
from master.plot.individuals import draw_archive
from tests.archives import archived
from tests.cases import each_case

pytest.importorskip("matplotlib", reason="the extra 'plot' is not installed")


def test_each_elite_colours_its_cell_of_the_grid(tmp_path: Path) -> None:
    folder = archived(tmp_path, [[0.1, 0.1], [0.1, 0.5]], [5.0, -7.0], cells=(2, 3))
    with command.empty_figure() as figure:
        draw_archive(figure, folder)
    panel, bar = figure.axes
    colours = np.ma.filled(panel.collections[0].get_array().astype(float), np.nan)
    expected = np.full((3, 2), np.nan)
    expected[0, 0], expected[1, 0] = 5.0, -7.0  # the first number is horizontal
    np.testing.assert_array_equal(colours, expected)
    assert bar.get_ylabel() == "fitness" and panel.get_xlabel() == "behaviour, first number"
    assert figure.get_suptitle() == "CartPole-v1"
    assert panel.get_title() == "2 of 6 cells, coverage 33.3 %, QD score -2"


def test_a_centroids_cell_is_what_is_nearest_to_it(tmp_path: Path) -> None:
    folder = archived(tmp_path, [[0.2, 0.2], [0.8, 0.3]], [5.0, -7.0], cells=(4,), archive="cvt")
    with command.empty_figure() as figure:
        draw_archive(figure, folder)
    cells = np.asarray(figure.axes[0].collections[0].get_array())
    size = len(cells)
    assert cells[size // 5, size // 5] == 5.0 and cells[3 * size // 10, 4 * size // 5] == -7.0


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
