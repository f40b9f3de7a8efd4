"""Figures that the README takes from other pages are those of the pages."""

from __future__ import annotations

import re
from pathlib import Path

HOUSE = Path(__file__).resolve().parents[2]
README = (HOUSE / "README.md").read_text("utf-8")


def page(name: str) -> str:
    return (HOUSE / "docs" / name).read_text("utf-8")


def median(figure: str) -> float:
    """Of a row of docs/performance.md."""
    (found,) = re.findall(rf"^\| {re.escape(figure)} \|[^|]*\| ([\d.]+)", page("performance.md"), re.MULTILINE)
    return float(found)


def test_the_faults_are_as_many_as_the_table_has() -> None:
    table = page("reliability.md").partition("<!-- table:")[2].partition("<!-- end of the table")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][2:]
    assert f" {len(rows)} kinds of fault " in README and all(line.split("|")[5].strip() == "0" for line in rows)


def test_the_figures_of_speed_are_those_that_were_measured() -> None:
    start, leave = median("plain rq worker, launch to first result, lean"), median("plain rq worker, SIGTERM while it plays to exit, lean")
    assert f"first result {start:.2f} s after the launch of a worker, gone {leave:.2f} s after SIGTERM" in README
    assert f"{100 * median('CPU-seconds a counted step, bare loops ÷ whole run, lean'):.0f} % of bare rollouts' speed" in README
    walker, envpool = median("lean BipedalWalker ÷ stock loop, 32 episodes"), median("envpool BipedalWalker ÷ stock loop, 32 episodes")
    deep, linear = median("CartPole vectorised ÷ stock loop"), median("CartPole vectorised ÷ stock loop, linear")
    assert f"walker {walker:.1f} times, with EnvPool {envpool:.1f}, CartPole {deep:.0f} to {linear:.0f} times" in README
