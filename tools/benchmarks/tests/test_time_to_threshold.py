"""Time to a threshold: what a run's folder tells, and the model of it on more workers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from tools.benchmarks.charts.line_chart import LINE, Line, drawing, powers, spread
from tools.benchmarks.cluster.simulation.discrete_events import STANDSTILL
from tools.benchmarks.cluster.time_to_threshold import (
    Recorded,
    page,
    read_run,
    seconds_to_threshold,
    table,
)

ONE = Recorded("lander", 1.0, 1, True, [[100, 150, 120, 90]] * 5)
FOUR = Recorded("lander", 4.0, 1, True, [[100, 150, 120, 90] * 4] * 2)


def test_a_run_counts_until_the_evaluation_that_reached_the_threshold(tmp_path: Path) -> None:
    (tmp_path / "slots").mkdir()
    (tmp_path / "config.json").write_text(json.dumps({"scale": 4.0, "seed": 7}))
    means = [None, 199.0, 201.0, 250.0]  # of an evaluation's confirmation
    (tmp_path / "metrics.jsonl").write_text(
        "".join(
            json.dumps({"generation": number, "eval_mean": 220.0, "confirm_mean": mean}) + "\n"
            for number, mean in enumerate(means)
        )
    )
    for number in range(3):  # two slots, the second of them a pair
        slot, length = np.array([0, 1, 1]), np.array([10 + number, 20, 30])
        np.savez(tmp_path / "slots" / f"{number:08d}.npz", slot=slot, length=length)
    run = read_run("lander", tmp_path)
    assert run == Recorded("lander", 4.0, 7, True, [[10, 50], [11, 50]])
    assert (run.steps, run.generations) == (121, 2)


def test_more_workers_than_slots_save_no_time_and_fewer_generations_do() -> None:
    alone, few, many = (seconds_to_threshold(ONE, workers, 0.005) for workers in (1, 4, 40))
    assert alone == pytest.approx(5 * 460 * 0.005, rel=0.05)
    assert few < alone / 2 and many > few * 0.9
    assert seconds_to_threshold(FOUR, 1, 0.005) > alone
    assert seconds_to_threshold(FOUR, 40, 0.005) < many


def test_generations_too_long_for_the_simulation_are_summed() -> None:
    step = STANDSTILL / 100
    assert seconds_to_threshold(ONE, 1, step) == pytest.approx(5 * 460 * step)


def test_the_best_scale_of_each_number_of_workers_is_bold() -> None:
    text = page([ONE, FOUR], table([ONE, FOUR], 0.005))
    rows = {line.split("|")[1].strip(): line for line in text.splitlines() if "**" in line}
    assert rows["1"].index("**") < rows["1"].index(" s |") and rows["1,440"].endswith("s** |")


def test_a_seed_that_missed_the_threshold_is_counted_and_has_no_time() -> None:
    missed = replace(ONE, seed=2, reached=False)
    figures = table([missed, ONE], 0.005)
    assert figures == table([ONE], 0.005)
    assert "| 1 | 1, 2 | 5, 5 (not) | 2,300, 2,300 |" in page([missed, ONE], figures)


def test_a_chart_is_valid_xml_with_every_line_and_mark() -> None:
    text = drawing([Line("scale 4 & up", [(1, 40.0), (10, 5.0)])], "t", (1, 10), ("x", "y"))
    said = [node.text for node in ElementTree.fromstring(text).iter() if node.text]
    assert {"scale 4 & up", "1", "10", "100"} <= set(said)
    assert powers(5.0, 40.0) == [1.0, 10.0, 100.0]


def test_names_of_lines_that_end_together_do_not_overlap() -> None:
    assert spread([105.0, 100.0, 300.0]) == [100.0 + LINE, 100.0, 300.0]


def test_lines_of_a_group_differ_in_their_dashes_and_groups_in_their_colours() -> None:
    points = [(1.0, 40.0), (10.0, 5.0)]
    lines = [Line("a1", points, "a"), Line("b1", points, "b"), Line("a2", points, "a")]
    text = drawing(lines, "t", (1, 10), ("x", "y"))
    drawn = [node for node in ElementTree.fromstring(text).iter() if node.tag.endswith("polyline")]
    colours, dashes = (
        [node.get(name) for node in drawn] for name in ("stroke", "stroke-dasharray")
    )
    assert colours[0] == colours[2] != colours[1]
    assert dashes[0] == dashes[1] != dashes[2]
