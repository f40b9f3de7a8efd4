"""es-status without a server: what it makes of what was read, of its flags, and of servers that do not answer."""

from __future__ import annotations

import io
import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from es_queue.errors import RedisError
from master import status
from master.console import SafeStream
from master.observe import ORPHANED, Inside, SeenRun, Server, named_server, private_server, private_servers
from master.status import all_runs, kept_columns, main, number, show_run, show_runs

PROGRESS = {
    "state": "running", "env": "BipedalWalker-v3", "strategy": "pgpe", "generation": "12", "answered": "64/130", "env_steps": "1234567",
    "episodes": "1536", "steps_per_second": "43210.2", "return_mean": "-92.31", "return_std": "10.1", "return_max": "3.2",
    "cut_fraction": "0.35", "eval_mean": "-80.2", "eval_best": "-70", "workers": "2", "eta": "4000", "updated": "1000",
}  # fmt: skip
HOSTILE = {
    "state": "run\x1b[31mning[bold]", "env": "\u202eevil\n" * 50, "generation": "nan", "env_steps": "1e999", "workers": "[red]",
    "updated": "later", "started": "-", "eval_mean": "inf", "eta": "-5", "answered": "\x07", "why": "\x9b2J", "cut_fraction": "x",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _nothing_in_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("RQ_REDIS_URL", raising=False)
    monkeypatch.delenv("REDIS_URL", raising=False)
    monkeypatch.chdir(tmp_path)


def seen(run: str = "walker-1", *, leased: bool = True, **progress: str) -> SeenRun:
    return SeenRun(run, "redis://host", f"es-master --resume {run}", 900.0, leased, {**PROGRESS, **progress})


def shown(call: Any, *arguments: Any, as_json: bool = False) -> str:
    out = io.StringIO()
    call(*arguments, SafeStream(out), as_json=as_json)
    return out.getvalue()


def refused(capsys: pytest.CaptureFixture[str], code: int, *argv: str) -> str:
    assert main(list(argv)) == code
    told = capsys.readouterr()
    assert told.out == "" and told.err.startswith("es-status: ") and told.err.count("\n") == 1
    return told.err


# --- state


@pytest.mark.parametrize("state", ["running", "paused", "stopping"])
def test_a_run_that_wants_a_master_and_has_none_is_orphaned(state: str) -> None:
    assert seen(leased=False, state=state).state == ORPHANED
    assert seen(leased=True, state=state).state == state


@pytest.mark.parametrize("state", ["stopped", "finished", "failed"])
def test_a_run_that_ended_is_no_orphan(state: str) -> None:
    assert seen(leased=False, state=state).state == state


def test_an_orphan_is_shown_with_the_command_that_goes_on_with_it() -> None:
    orphan = seen(leased=False)
    assert orphan.resume in shown(show_runs, [orphan]) and orphan.resume in shown(show_run, orphan, Inside({}, 0, 0))
    assert orphan.resume not in shown(show_runs, [seen()]) + shown(show_run, seen(), Inside({}, 0, 0))


# --- tables and JSON


def test_a_table_in_a_pipe_is_whole_and_without_codes() -> None:
    text = shown(show_runs, [seen("a" * 40), seen("b")])
    assert "a" * 40 in text and "\x1b" not in text
    row = text.splitlines()[1].split()
    assert row[:9] == ["a" * 40, "running", "BipedalWalker-v3", "12", "1.23", "M", "-80.2", "-70.0", "2"] and row[-1] == "ago"


def test_a_run_is_shown_with_its_workers_its_refusals_and_its_errors() -> None:
    workers = {
        "h-1-abcdef": {"host": "h", "pid": "1", "rq_name": "rq-1", "generation": "generation 12", "block": "train 0 4", "steps": "1000", "late": "3", "numerics": "0123456789"},
        "g-2-abcdef": {"host": "g", "refuses": "noise digest: \x1b[2J differs"},
    }  # fmt: skip
    text = shown(show_run, seen(), Inside(workers, 3, 2, {"stale": 4, "digest": 0}))
    assert "2 living of 3" in text and "stale 4" in text and "digest 0" not in text and "2 reports" in text and "35 % of episodes cut short" in text
    assert re.search(r"rq-1 +h +1 +12 +train 0 4 +1,000 .* 3 +01234567 ", text)
    assert "g cannot join: noise digest: \\x1b[2J differs" in text


def test_json_has_numbers_for_numbers_and_null_for_what_is_none() -> None:
    (run,) = json.loads(shown(show_runs, [seen(eval_mean="nan", workers="many")], as_json=True))["runs"]
    assert (run["generation"], run["steps_per_second"], run["eval_mean"], run["workers"]) == (12, 43210.2, None, None)
    assert isinstance(run["generation"], int) and run["state"] == "running" and run["leased"] is True


def test_json_of_a_run_has_its_workers() -> None:
    found = json.loads(shown(show_run, seen(leased=False), Inside({"h-1-abcdef": {"pid": "1", "host": "h"}}, 1, 0, {"stale": 4}), as_json=True))
    assert found["living"] == [{"worker": "h-1-abcdef", "pid": 1, "host": "h"}] and found["refused"] == {"stale": 4}
    assert found["state"] == ORPHANED and found["stored_state"] == "running"


@pytest.mark.parametrize("progress", [HOSTILE, {}])
@pytest.mark.parametrize("as_json", [False, True])
def test_odd_values_neither_crash_nor_reach_the_terminal(progress: dict[str, str], as_json: bool) -> None:
    odd = SeenRun("odd", "redis://host", "resume", None, False, progress)
    inside = Inside({"w\x1b": dict.fromkeys(("host", "pid", "rq_name", "block", "steps", "joined", "refuses"), "\x1b[2J\n")}, 10**9, 0, {"\x1b": 1})
    text = shown(show_runs, [odd], as_json=as_json) + shown(show_run, odd, inside, as_json=as_json)
    assert not re.search(r"[^\S\n ]|[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)


def test_a_digit_of_another_script_is_no_whole_number() -> None:
    assert number("12") == 12 and number("1.5") == 1.5 and number("²") is None and number("9" * 30) == pytest.approx(1e30)


def test_what_does_not_fit_a_narrow_terminal_goes_in_the_given_order() -> None:
    columns, rows = ("run", "env", "best"), [["r" * 10, "e" * 10, "b" * 10]]
    assert kept_columns(columns, rows, 34, ("best", "env")) == [0, 1, 2]
    assert kept_columns(columns, rows, 33, ("best", "env")) == [0, 1]
    assert kept_columns(columns, rows, 5, ("best", "env")) == [0]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
def test_a_table_on_a_terminal_keeps_whole_run_ids(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    show_runs([seen("bipedalwalker-v3-0812-3fa2")], SafeStream(out), as_json=False)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue()).splitlines()
    assert all(len(line) <= columns for line in lines) and "bipedalwalker-v3-0812-3fa2  r" in lines[1]


# --- servers


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port on which nobody listens: bound, so that nobody else takes it."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@pytest.mark.parametrize("argv", [["BAD RUN"], ["--nope"], ["--redis-url", "redis://h", "--run-dir", "x"], ["--run-dir", "/nonexistent"]])
def test_bad_usage_is_refused_in_one_sentence(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    refused(capsys, 2, *argv)


@pytest.mark.parametrize("url", ["http://h", "redis://[::1", "redis://h:port", "nonsense"])
def test_a_url_that_cannot_be_is_refused(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    refused(capsys, 3, "--redis-url", url)


def test_a_server_that_is_away_is_one_sentence_without_the_password(closed_port: int, capsys: pytest.CaptureFixture[str]) -> None:
    for url in (f"redis://me:secret@127.0.0.1:{closed_port}/0", f"redis://127.0.0.1:{closed_port}/0?password=secret"):
        told = refused(capsys, 3, "--redis-url", url)
        assert "secret" not in told and f"127.0.0.1:{closed_port}" in told


def test_the_environment_names_the_server(closed_port: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1/9")
    monkeypatch.setenv("RQ_REDIS_URL", f"redis://127.0.0.1:{closed_port}/7")
    assert f"{closed_port}/7" in refused(capsys, 3)


def test_without_any_server_the_ways_to_name_one_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--redis-url" in refused(capsys, 3)


def test_a_folder_whose_server_has_ended_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run" / "redis").mkdir(parents=True)
    assert "no private server runs" in refused(capsys, 3, "--run-dir", "run")


def test_private_servers_are_those_with_a_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")  # no relative path may help
    for run in ("alive", "dead"):
        (tmp_path / "runs" / run / "redis").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "runs" / "alive" / "redis")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("redis.sock")
        assert [found.name for found in private_servers(tmp_path / "runs")] == [f"unix://{tmp_path}/runs/alive/redis/redis.sock"]
        assert private_server(tmp_path / "runs" / "alive").name.endswith("alive/redis/redis.sock")


@pytest.mark.parametrize(
    ("url", "by_flag", "way"),
    [
        ("redis://host:1/2", True, " --redis-url redis://host:1/2"),
        ("redis://host:1/2", False, ""),
        ("redis://me:secret@host:1/2", True, ""),
        ("redis://host?password=secret", True, ""),
    ],
)
def test_the_way_back_names_the_server_but_never_a_secret(url: str, by_flag: bool, way: str) -> None:
    assert named_server(url, by_flag)._way == way


class Fixed(Server):
    """A server with given runs, or with trouble."""

    def __init__(self, runs: list[SeenRun] | None) -> None:
        self.name, self._runs = "fixed", runs

    def runs(self) -> list[SeenRun]:
        if self._runs is None:
            raise RedisError("away")
        return self._runs

    def find(self, run: str) -> SeenRun | None:
        return next((one for one in self.runs() if one.run == run), None)


def test_one_of_several_servers_that_is_away_hides_no_other() -> None:
    assert [one.run for one in all_runs([Fixed(None), Fixed([seen("a")])])] == ["a"]
    with pytest.raises(RedisError):
        all_runs([Fixed(None), Fixed(None)])


def test_an_unknown_run_is_answered_with_the_known_ones() -> None:
    with pytest.raises(status.UsageError, match="there are a"):
        status.found_run([Fixed([seen("a")])], "b")
    assert status.found_run([Fixed(None), Fixed([seen("a")])], "a")[1].run == "a"
