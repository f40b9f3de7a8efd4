"""What the doctor shows: its exit codes, its lines, and all of it where no Redis answers."""

from __future__ import annotations

import argparse
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from es_queue.errors import RedisError, UsageError
from master.display.log_view import SafeStream
from master.doctor import examine as door
from master.doctor.examine import exit_code_of, run_doctor
from master.doctor.finding import FAILED, OK, WARNING, Finding, format_finding, wrap_finding
from master.doctor.host import ProbeResult
from master.status.redis_reader import make_named_reader
from tests.cases import each_case


def test_exit_codes_say_what_failed_first_of_all_redis() -> None:
    bad = {
        name: Finding(name, FAILED, "x", "y")
        for name in ("redis", "version", "environment", "packages", "listening", "unknown run")
    }
    assert exit_code_of([Finding("redis", OK, ""), Finding("memory", WARNING, "", "")]) == 0
    assert (
        exit_code_of(list(bad.values())) == 3
        and exit_code_of([bad["version"], bad["packages"]]) == 3
    )
    assert exit_code_of([bad["packages"], bad["environment"]]) == 5
    assert exit_code_of([bad["packages"], bad["unknown run"]]) == 6
    assert exit_code_of([bad["packages"]]) == exit_code_of([bad["listening"]]) == 2


def test_a_line_in_a_pipe_is_one_line_and_has_no_sign() -> None:
    line = format_finding(Finding("version", FAILED, "too \x1b old", "get it by\npip install x"))
    assert line == "failed   version        too \\x1b old; fix: get it by pip install x"


def test_on_a_terminal_text_is_wrapped_and_commands_stand_whole() -> None:
    command = "rq worker --url redis://" + "h" * 80
    lines = wrap_finding(
        Finding("listening", FAILED, "word " * 40, f"start one {'soon ' * 20}by\n{command}"), 79
    )
    assert lines[-1] == f"    {command}" and all(len(line) <= 79 for line in lines[:-1])
    assert sum("fix:" in line for line in lines) == 1
    path = "/long" * 30
    assert any(
        path in line
        for line in wrap_finding(Finding("packages", FAILED, f"it is {path} there", ""), 79)
    )


class Terminal(io.StringIO):
    encoding = "ascii"  # type: ignore[assignment]

    def isatty(self) -> bool:
        return True


def test_a_terminal_that_lacks_the_signs_gets_plain_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    from master.doctor.finding import print_findings

    out = Terminal()
    print_findings(
        [
            Finding("redis", OK, "it answers"),
            Finding("memory", WARNING, "little is left", "add some"),
            Finding("rq", FAILED, "suspended", "resume it with\nrq resume"),
        ],
        SafeStream(out),
    )
    plain = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())
    assert (
        plain.startswith("+ ok      redis          it answers\n! warning memory")
        and "x failed  rq" in plain
        and "\n    rq resume\n" in plain
    )
    assert "\x1b[" in out.getvalue()


def given(run: str | None = None) -> argparse.Namespace:
    return argparse.Namespace(run=run, redis_url=None, run_dir=None, runs_dir=None, run_folder=None)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(
        door,
        "probe_environments",
        lambda configs: [ProbeResult(one.task, "well") for one in configs],
    )
    monkeypatch.setenv("ES_QUEUE_NOISE_DIR", str(tmp_path / "noise"))
    monkeypatch.delenv("RQ_REDIS_URL", raising=False)
    monkeypatch.delenv("REDIS_URL", raising=False)


@pytest.mark.usefixtures("quick")
def test_without_a_server_a_host_that_has_begun_no_run_or_ended_them_is_healthy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    redis = [one for one in door.examine(given(), list, None) if one.name == "redis"]
    assert [(one.state, one.fix) for one in redis] == [(OK, "")]
    monkeypatch.setattr("shutil.which", lambda _: None)
    monkeypatch.setattr("os.access", lambda *_: False)
    redis = [one for one in door.examine(given(), list, None) if one.name == "redis"]
    assert redis[0].state == FAILED and "no Redis server here" in redis[0].text
    assert "there is no run walker-1" in [
        one.text for one in door.examine(given("walker-1"), list, None) if one.name == "unknown run"
    ]


@pytest.mark.usefixtures("quick")
@each_case(
    "trouble", [RedisError("Redis refused the password"), UsageError("run-dir x is not a folder")]
)
def test_a_server_that_cannot_be_used_is_one_failed_line_and_the_host_is_looked_at(
    trouble: Exception,
) -> None:
    def choose() -> list[Any]:
        raise trouble

    out = io.StringIO()
    assert run_doctor(given("walker-1"), choose, SafeStream(out), as_json=True) == 3
    told = json.loads(out.getvalue())
    states = {one["name"]: one["state"] for one in told["checks"]}
    assert states["redis"] == FAILED and {
        "packages",
        "versions",
        "box2d",
        "environment",
        "disk",
    } <= set(states)
    assert told["failed"] == 2 and told["warnings"] == sum(
        state == WARNING for state in states.values()
    )
    assert str(trouble) in told["checks"][0]["text"] and told["checks"][0]["fix"] == ""


@pytest.mark.usefixtures("quick")
def test_a_server_that_is_away_has_its_fix_once() -> None:
    out = io.StringIO()
    reader = make_named_reader("redis://127.0.0.1:1", given_by_flag=True)
    assert run_doctor(given(), lambda: [reader], SafeStream(out), as_json=False) == 3
    line = next(line for line in out.getvalue().splitlines() if "redis" in line)
    assert line.count("start it") == 1
    assert line.endswith("; fix: start it, or correct RQ_REDIS_URL or --redis-url")


@pytest.mark.usefixtures("quick")
def test_an_environment_that_failed_shows_in_the_exit_code_when_redis_is_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        door,
        "probe_environments",
        lambda configs: [ProbeResult(one.task, error="it crashes") for one in configs],
    )
    found = [one for one in door.examine(given(), list, None) if one.name != "redis"]
    assert exit_code_of(found) == 5
