"""Which episodes count: the figures' pure parts, and a master that drops what comes late."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import gymnasium
import pytest

from tests.cases import each_case
from tools.benchmarks.bias.bias import (
    ASYNC,
    FIRST,
    SYNC,
    Mean,
    lines,
    mean_of,
    picture,
    rows,
    together,
)
from tools.benchmarks.bias.paced_cartpole import STEP_SECONDS, Paced
from tools.benchmarks.charts.bar_chart import Bar, drawing, ticks

TRUTH = Mean("truth", 1000, 80.0, 0.5)
HOUSE = Path(__file__).resolve().parents[3]


def test_neighbouring_batches_are_taken_together_for_the_error() -> None:
    alternating = [0.0, 2.0, 0.0, 2.0, 2.0, 0.0, 2.0, 0.0] * 2
    assert mean_of(SYNC, 64, alternating).error == 0.0
    assert mean_of(SYNC, 64, alternating).mean == 1.0


def test_runs_of_several_seeds_make_one_mean() -> None:
    one = together([Mean(SYNC, 64, 70.0, 3.0, 10, 1.0), Mean(SYNC, 64, 80.0, 4.0, 10, 2.0)])
    assert (one.mean, one.error, one.batches, one.seconds) == (75.0, 2.5, 20, 3.0)


def known() -> dict[str, dict[str, object]]:
    return {
        f"{population} {name} {seed}": Mean(name, population, 60.0 + seed, 1.0, 4).__dict__
        for population in (64, 256)
        for name in (ASYNC, FIRST, SYNC)
        for seed in (7, 9)
    }


def test_rows_are_by_population_and_schedule() -> None:
    found = rows({**known(), "truth": TRUTH.__dict__, "spread": {}})
    assert [(one.population, one.name) for one in found] == [
        (size, name) for size in (64, 256) for name in (FIRST, SYNC, ASYNC)
    ]
    assert {one.mean for one in found} == {68.0}
    assert lines(found, TRUTH).count("-15.0%") == 6


def test_the_picture_is_well_formed_and_has_a_bar_each_and_one_line() -> None:
    root = ElementTree.fromstring(picture(rows(known()), TRUTH))
    shapes = [one for one in root.iter() if one.tag.endswith("rect")]
    assert len(shapes) == 1 + 6 + 3, "a background, six bars, three in the legend"
    assert sum(bool(one.get("stroke-dasharray")) for one in root.iter()) == 1


def test_a_taller_bar_is_taller() -> None:
    root = ElementTree.fromstring(
        drawing([Bar("g", "a", 1.0, 0.1), Bar("g", "b", 2.0, 0.1)], "title", (1.5, "line"), "below")
    )
    heights = [float(one.get("height", 0)) for one in root.iter() if one.tag.endswith("rect")][1:3]
    assert heights[1] == pytest.approx(2 * heights[0], abs=0.2)


@each_case("most", [0.3, 1.0, 7.0, 80.0, 99.9, 12345.0])
def test_ticks_reach_the_largest_value(most: float) -> None:
    found = ticks(most)
    assert found[0] == 0 and found[-1] >= most and 4 <= len(found) <= 10


def test_an_episode_at_a_pace_lasts_at_least_its_steps() -> None:
    with Paced(gymnasium.make("CartPole-v1")) as env:
        began = time.monotonic()
        env.reset(seed=1)
        for _ in range(5):
            env.step(0)
    assert time.monotonic() - began >= 5 * STEP_SECONDS


def test_first_arrivals_keep_no_publication_open() -> None:
    """In a process of its own: it changes the schedule for good."""
    said = (
        "import sys; from tools.benchmarks.bias import first_arrivals as f; from "
        "master.collect.publication.closing import AsyncBatch, BatchSize; "
        "assert AsyncBatch.take_still_open is f.none_kept; tally = f.Tally(0.0); "
        "prior = f.PriorPublication('4.1-00000000', None, 1, None); "
        "w = AsyncBatch(prior, BatchSize(1, 1)); "
        "assert w.take_still_open(tally, 5, 8) == [] "
        "and f.succeeded(w, tally, 5, 8) == [prior]"
    )
    subprocess.run([sys.executable, "-c", said], check=True, cwd=HOUSE, timeout=60)
