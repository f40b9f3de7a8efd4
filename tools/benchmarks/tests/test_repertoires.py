"""The comparison of archives with pyribs."""

from __future__ import annotations

import pytest

from tools.benchmarks.micro.repertoires import TASKS, filled_by_pyribs, filled_here, format_row


@pytest.mark.parametrize("task", TASKS[1:3], ids=lambda task: task.title)
def test_a_short_run_fills_as_much_of_the_same_cells_as_pyribs(task: object) -> None:
    pytest.importorskip("ribs")
    assert isinstance(task, type(TASKS[0]))
    config = task.config(1, 100)
    ours, theirs = (fill(task, config, 20) for fill in (filled_here, filled_by_pyribs))
    assert ours[1] == pytest.approx(theirs[1], rel=0.2)


def test_a_row_has_means_ranges_and_ratios() -> None:
    row = format_row(TASKS[0], [(10.0, 0.5), (30.0, 0.7)], [(20.0, 0.6)])
    assert row.startswith(
        "| arm, 12 joints; 1,000 centroids | 20 (10 to 30) | 20 (20 to 20) | 1.000"
    )
    assert "| 0.600 (0.500 to 0.700) |" in row
