"""es-plot --cloud: a dot for everybody who lived, where it went, the colour how well."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from es_queue.slot_record import read_record, record_path
from master.plot import command
from master.plot.individuals import draw_cloud, project_points
from tests.cases import each_case
from tests.deceptive import MAZE
from tests.unit.master.storage.test_generation_store import trained

pytest.importorskip("matplotlib", reason="the extra 'plot' is not installed")


def lived(folder: Path, **values: Any) -> Path:
    config = trained(folder, **values)
    (folder / "config.json").write_text(json.dumps(config.to_dict()))
    (folder / "metrics.jsonl").write_text(
        json.dumps({"generation": 0, "env_steps": 1, "seconds": 1.0}) + "\n"
    )
    return folder


def test_everybody_who_lived_is_a_dot_in_its_place(tmp_path: Path) -> None:
    folder = lived(tmp_path, env=MAZE, strategy="novelty", population=12)
    with command.empty_figure() as figure:
        draw_cloud(figure, folder, [1, 3])
    panels = figure.axes[:2]
    assert [panel.get_title() for panel in panels] == ["generation 1", "generation 3"]
    for panel, generation in zip(panels, (1, 3), strict=True):
        record = read_record(record_path(folder, generation))
        dots = panel.collections[0]
        order = np.argsort(record.columns["fitness"], kind="stable")
        assert len(order) == 12
        np.testing.assert_allclose(
            np.asarray(dots.get_offsets()), record.columns["behaviour"][order]
        )
        np.testing.assert_allclose(np.asarray(dots.get_array()), record.columns["fitness"][order])


def test_more_than_two_numbers_are_turned_to_where_they_differ_most() -> None:
    draw = np.random.default_rng(4)
    along = draw.normal(size=200)
    where = np.stack([3 * along, 4 * along, 0.1 * draw.normal(size=200)], axis=1)
    (first, second), seen = project_points(where, True)
    assert first == "behaviour, first principal component (100 %)" and second == "second (0 %)"
    np.testing.assert_allclose(seen[:, 0], 5 * (along - along.mean()), atol=0.05)
    assert project_points(-where, True)[1][:, 0] @ seen[:, 0] < 0, (
        "the sign of a direction does not flip with the data"
    )


@each_case(
    ("argv", "said"),
    [
        (["--cloud", "--generation", "90"], "has not recorded: the nearest recorded one is 3"),
        (["--cloud", "--generation", "1,x"], "use whole numbers"),
        (["--generation", "1"], "add --cloud"),
        (["--cloud", "--generation", ",".join("1" * 13)], "at most 12"),
    ],
)
def test_what_cannot_be_drawn_is_said_in_one_sentence(
    argv: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = lived(tmp_path / "run")
    assert command.main([str(folder), *argv, "--out", str(tmp_path / "a.png")]) in (2, 6)
    assert said in capsys.readouterr().err and not (tmp_path / "a.png").exists()
