"""es-status without a server: what it makes of what was read."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from master.display.log_view import SafeStream
from master.display.panel import format_plain
from master.status.command import main
from master.status.curve import Curve
from master.status.figures import PROGRESS
from master.status.snapshot import (
    WORKER,
    Run,
    clean,
    judge,
)
from master.status.texts import Page, make_run_page, make_runs_page, print_page
from tests.cases import each_case

FIGURES = {
    "state": "running",
    "env": "BipedalWalker-v3",
    "strategy": "pgpe",
    "generation": "12",
    "answered": "64/130",
    "env_steps": "1234567",
    "episodes": "1536",
    "steps_per_second": "43210.2",
    "return_mean": "-92.31",
    "return_std": "10.1",
    "return_max": "3.2",
    "cut_fraction": "0.35",
    "eval_mean": "-80.2",
    "eval_best": "-70",
    "workers": "2",
    "eta": "4000",
    "updated": "1000",
}
HOSTILE = {
    "state": "run\x1b[31mning[bold]",
    "env": "\u202eevil\n" * 50,
    "generation": "nan",
    "env_steps": "1e999",
    "workers": "[red]",
    "updated": "later",
    "started": "-",
    "eval_mean": "inf",
    "eta": "-5",
    "answered": "\x07",
    "why": "\x9b2J",
    "cut_fraction": "x",
}


@pytest.fixture(autouse=True)
def _nothing_in_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def seen(run: str = "walker-1", *, leased: bool = True, **progress: str) -> Run:
    return judge(
        Run(
            run,
            "redis://host",
            900.0,
            leased,
            resume=f"es-master --resume {run}",
            purge=f"es-master --purge {run}",
            figures=clean({**FIGURES, **progress}, PROGRESS),
        )
    )


def page_of(run: Run, **details: Any) -> Page:
    detailed = replace(run, is_detailed=True, **details)
    return make_run_page(judge(detailed, curve := Curve()), curve)


def said(page: Page) -> str:
    return "\n".join(format_plain(page.parts))


def refused(capsys: pytest.CaptureFixture[str], code: int, *argv: str) -> str:
    assert main(list(argv)) == code
    told = capsys.readouterr()
    assert told.out == "" and told.err.startswith("es-status: ") and told.err.count("\n") == 1
    return told.err


# --- state


def test_an_orphan_is_shown_with_the_commands_that_go_on_with_it_and_remove_it() -> None:
    orphan = seen(leased=False)
    for command in (orphan.resume, orphan.purge):
        assert command in said(make_runs_page([orphan])) and command in said(page_of(orphan))
        assert command not in said(make_runs_page([seen()])) + said(page_of(seen()))


# --- tables and JSON


def test_a_table_in_a_pipe_is_whole_and_without_codes() -> None:
    out = io.StringIO()
    print_page(make_runs_page([seen("a" * 40), seen("b")]), SafeStream(out), as_json=False)
    assert "a" * 40 in out.getvalue() and "\x1b" not in out.getvalue()
    row = out.getvalue().splitlines()[1].split()
    assert (
        row[:9]
        == ["a" * 40, "running", "BipedalWalker-v3", "12", "1.23", "M", "-80.2", "-70.0", "2"]
        and row[-1] == "ago"
    )


WORKERS = {
    "h-1-abcdef": {
        "host": "h",
        "pid": "1",
        "backend": "lean",
        "generation": "generation 12",
        "block": "train 0 4",
        "steps_per_second": "1000",
        "late": "3",
        "beat_ttl": "5",
    },
    "g-2-abcdef": {"host": "g", "refuses": "noise digest: \x1b[2J differs"},
}


def test_a_run_is_shown_with_its_workers_its_refusals_and_its_errors() -> None:
    living = [{**clean(about, WORKER), "seen": 1.5} for about in WORKERS.values()]
    refused = {"stale": 4, "digest": 0}
    text = said(page_of(seen(), living=living, ever=3, errors=2, refused=refused))
    assert "2 living of 3 known" in text and "stale 4" in text and "digest 0" not in text
    assert "2 reports" in text and "35 % of episodes cut short" in text
    assert re.search(r"\nh +1 +lean +1,000 +12 +train 0 4 +3 .* 2 s ago(\n|$)", text)
    assert "1 worker on g cannot join: noise digest: \\x1b[2J differs" in text


@each_case("progress", [HOSTILE, {}])
@each_case("as_json", [False, True])
def test_odd_values_neither_crash_nor_reach_the_terminal(
    progress: dict[str, str], as_json: bool
) -> None:
    config = {
        "max_steps": float("nan"),
        "generations": [],
        "target_reward": {},
        "max_seconds": 1e999,
    }
    living = [{"worker": "w", **clean(dict.fromkeys(WORKER, "\x1b[2J\n"), WORKER), "seen": None}]
    odd = judge(Run("odd", "redis://host", None, True, figures=clean(progress, PROGRESS)))
    out = io.StringIO()
    for page in (make_runs_page([odd]), page_of(odd, living=living, ever=10**9, config=config)):
        print_page(page, SafeStream(out), as_json=as_json)
    assert not re.search(r"[^\S\n ]|[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", out.getvalue())


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True
