"""The view of a notebook: its bar, its curve, and what it leaves out."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

from es_queue.config.run_config import RunConfig
from master.display.notebook_view import (
    MOST_POINTS,
    NotebookView,
    draw_curve,
)


def test_each_display_has_the_bar_the_line_and_the_curve_of_all_generations() -> None:
    shown: list[tuple[str, str]] = []
    records: list[dict[str, Any]] = []
    seconds = iter(range(100))
    view = NotebookView(
        records.append,
        lambda markup, text: shown.append((markup, text)),
        RunConfig(generations=10),
        lambda: float(next(seconds)),
    )
    view.resumed([{"generation": 1, "env_steps": 100, "return_mean": 5.0}])
    view.generation({"generation": 2, "env_steps": 200, "return_mean": 7.0, "eval_mean": 9.0})
    view.generation({"generation": 5, "env_steps": 500, "return_mean": float("nan")})
    view.summary({"run": "<walker>", "state": "finished", "seconds": 9})
    assert [text.split(" |")[0].split(" after")[0] for _, text in shown] == [
        "generation 2 of 10",
        "generation 5 of 10",
        "run <walker> finished",
    ]
    bars = [re.findall(r'value="([\d.]+)"', markup)[0] for markup, _ in shown]
    assert bars == ["0.2000", "0.5000", "1.0000"]
    assert shown[0][0].count("<circle") == 1 and "500 steps" not in shown[0][0]
    assert "&lt;walker&gt;" in shown[2][0] and "<walker>" not in shown[2][0]
    assert len(records) == 2


def test_the_curve_is_a_figure_of_at_most_so_many_points_that_stays_within_its_edges() -> None:
    returns = [(float(step), step**1.5) for step in range(3 * MOST_POINTS)]
    root = ElementTree.fromstring(draw_curve(returns, [(0.0, -5.0), (900.0, 3.0)]))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    lines = [element.attrib["points"].split() for element in root.iter("polyline")]
    assert [len(points) for points in lines] == [MOST_POINTS + 1, 2]
    for points in lines:
        for x, y in (map(float, point.split(",")) for point in points):
            assert 0 < x < width and 0 < y < height
    assert draw_curve([(5.0, 1.0)], []) == draw_curve([], []) == ""
    assert draw_curve([(0.0, 1.0), (5.0, 1.0)], []), "equal returns are a line too"
