"""es-status without a server: what it makes of what was read, of its flags, and of servers that do
not answer.
"""

from __future__ import annotations

import io
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from es_queue.errors import NoRunError, RedisError
from master.display.log_view import SafeStream
from master.status.command import main
from master.status.discovery import RunSources
from master.status.history import History
from master.status.redis_reader import (
    ORPHANED,
    RedisReader,
    RunDetails,
    RunSummary,
)
from master.status.render import Page, format_plain, print_page
from master.status.views import make_run_page, make_runs_page
from tests.cases import each_case

PROGRESS = {
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
    monkeypatch.delenv("RQ_REDIS_URL", raising=False)
    monkeypatch.delenv("REDIS_URL", raising=False)
    monkeypatch.chdir(tmp_path)


def seen(run: str = "walker-1", *, leased: bool = True, **progress: str) -> RunSummary:
    return RunSummary(
        run,
        "redis://host",
        f"es-master --resume {run}",
        900.0,
        leased,
        {**PROGRESS, **progress},
        f"es-master --purge {run}",
    )


def page_of(
    seen: RunSummary, inside: RunDetails | None = None, *evaluations: tuple[int, float]
) -> Page:
    history = History()
    history.add_records(
        {"generation": generation, "eval_mean": mean} for generation, mean in evaluations
    )
    return make_run_page(seen, inside or RunDetails({}, 0, 0), history)


def said(page: Page) -> str:
    return "\n".join(format_plain(page))


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
    text = said(
        page_of(
            seen(),
            RunDetails(
                WORKERS, 3, 2, {"stale": 4, "digest": 0}, beat_seconds_left={"h-1-abcdef": 3.5}
            ),
        )
    )
    assert (
        "2 living of 3 known" in text
        and "stale 4" in text
        and "digest 0" not in text
        and "2 reports" in text
        and "35 % of episodes cut short" in text
    )
    assert re.search(r"\nh +1 +lean +1,000 +12 +train 0 4 +3 .* 2 s ago(\n|$)", text)
    assert "1 worker on g cannot join: noise digest: \\x1b[2J differs" in text


def test_json_of_a_run_has_its_workers_its_budget_and_its_curve() -> None:
    inside = RunDetails(
        {"h-1-abcdef": {"pid": "1", "host": "h"}}, 1, 0, {"stale": 4}, config={"generations": 20}
    )
    found = page_of(seen(leased=False), inside, (0, 1.5)).data
    assert found["living"] == [
        {"worker": "h-1-abcdef", "pid": 1, "host": "h", "seen": None}
    ] and found["refused"] == {"stale": 4}
    assert found["state"] == ORPHANED == found["health"] and found["stored_state"] == "running"
    assert found["budget"] == {
        "generations": {"limit": 20.0, "spent": 12.0, "left": 8.0}
    } and found["evaluations"] == [{"generation": 0, "eval_mean": 1.5}]


@each_case("progress", [HOSTILE, {}])
@each_case("as_json", [False, True])
def test_odd_values_neither_crash_nor_reach_the_terminal(
    progress: dict[str, str], as_json: bool
) -> None:
    odd = RunSummary("odd", "redis://host", "resume", None, True, progress, holder="\x1b")
    names = (
        "host",
        "pid",
        "backend",
        "block",
        "steps",
        "joined",
        "refuses",
        "beat_ttl",
        "numerics",
        "generation",
    )
    config = {
        "max_steps": float("nan"),
        "generations": [],
        "target_reward": {},
        "max_seconds": 1e999,
    }
    inside = RunDetails(
        {"w\x1b": dict.fromkeys(names, "\x1b[2J\n")},
        10**9,
        0,
        {"\x1b": 1},
        beat_seconds_left={"w\x1b": 1.0},
        config=config,
    )
    out = io.StringIO()
    for page in (make_runs_page([odd]), page_of(odd, inside)):
        print_page(page, SafeStream(out), as_json=as_json)
    assert not re.search(r"[^\S\n ]|[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", out.getvalue())


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


# --- servers


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port on which nobody listens: bound, so that nobody else takes it."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def test_a_server_that_is_away_is_one_sentence_without_the_password(
    closed_port: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for url in (
        f"redis://me:secret@127.0.0.1:{closed_port}/0",
        f"redis://127.0.0.1:{closed_port}/0?password=secret",
    ):
        monkeypatch.setenv("RQ_REDIS_URL", url)
        told = refused(capsys, 3)
        assert "secret" not in told and f"127.0.0.1:{closed_port}" in told


class Fixed(RedisReader):
    """A server with given runs, or with trouble."""

    def __init__(self, runs: list[RunSummary] | None) -> None:
        self.name, self.folder, self._query_runs = "fixed", None, runs

    def list_runs(self) -> list[RunSummary]:
        if self._query_runs is None:
            raise RedisError("away")
        return self._query_runs

    def find_run(self, run: str) -> RunSummary | None:
        return next((one for one in self.list_runs() if one.run == run), None)


def test_one_of_several_servers_that_is_away_hides_no_other() -> None:
    assert [one.run for one in RunSources([Fixed(None), Fixed([seen("a")])], []).list_runs()] == [
        "a"
    ]
    with pytest.raises(RedisError):
        RunSources([Fixed(None), Fixed(None)], []).list_runs()


def test_an_unknown_run_is_answered_with_the_known_ones() -> None:
    with pytest.raises(NoRunError, match="no run b in fixed; existing runs: a"):
        RunSources([Fixed([seen("a")])], []).find_run("b")
    assert RunSources([Fixed(None), Fixed([seen("a")])], []).find_run("a").summary.run == "a"
