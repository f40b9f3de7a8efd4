"""Figures that the README takes from other pages are those of the pages."""

from __future__ import annotations

import re
from pathlib import Path

from es_queue.config.run_config import RESUMABLE

HOUSE = Path(__file__).resolve().parents[2]
README = (HOUSE / "README.md").read_text("utf-8")


def page(name: str) -> str:
    return (HOUSE / "docs" / name).read_text("utf-8")


def median(figure: str) -> float:
    """Of a row of docs/performance.md."""
    (found,) = re.findall(
        rf"^\| {re.escape(figure)} \|[^|]*\| ([\d.]+)", page("performance.md"), re.MULTILINE
    )
    return float(found)


def test_the_faults_are_as_many_as_the_table_has() -> None:
    table = page("reliability.md").partition("<!-- table:")[2].partition("<!-- end of the table")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][2:]
    cells = [[cell.strip() for cell in line.split("|")] for line in rows]
    equal = sum(row[7] == "equal" for row in cells)
    assert f" {len(rows)} kinds of fault " in README and {row[4] for row in cells} == {"0"}
    assert f" {equal} kinds of fault that compare them" in README
    assert f"({len(rows) - equal} of them check something other" in README


def test_the_figures_of_speed_are_those_that_were_measured() -> None:
    told = [
        (
            r"first result ([\d.]+) s after a worker starts",
            median("plain rq worker, launch to first result, lean"),
        ),
        (
            r"leaves ([\d.]+) s after SIGTERM",
            median("plain rq worker, SIGTERM while it plays to exit, lean"),
        ),
        (
            r"([\d.]+) % of the speed of bare episode loops",
            100 * median("CPU-seconds per counted step, bare loops ÷ whole run, lean"),
        ),
        (r"walker runs ([\d.]+) times", median("lean BipedalWalker ÷ stock loop, 32 episodes")),
        (
            r"or ([\d.]+) times with EnvPool",
            median("envpool BipedalWalker ÷ stock loop, 32 episodes"),
        ),
        (r"CartPole ([\d.]+) to", median("CartPole vectorised ÷ stock loop")),
        (r"CartPole [\d.]+ to ([\d.]+) times", median("CartPole vectorised ÷ stock loop, linear")),
        (
            r"\(([\d.]+) with an untrained policy",
            median("CartPole vectorised ÷ stock loop, untrained"),
        ),
    ]
    for words, measured in told:
        (figure,) = re.findall(words, README)
        last = 10.0 ** -len(figure.partition(".")[2])
        assert abs(float(figure) - measured) <= 0.501 * last, (words, measured)


def test_the_page_of_control_has_the_settings_that_a_resume_may_change() -> None:
    text = page("running.md")
    told = text.partition("With `--resume`, you can change")[2].partition("To begin a new run")[0]
    assert set(re.findall(r"`--([\w-]+)`", told)) == {name.replace("_", "-") for name in RESUMABLE}
