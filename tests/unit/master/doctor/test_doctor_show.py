"""What the doctor shows: its exit codes, its lines, and all of it where no Redis answers."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from master.doctor import examine as door
from master.doctor.examine import exit_code_of
from master.doctor.finding import FAILED, OK, WARNING, Finding, wrap_finding
from master.doctor.host import ProbeResult


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
