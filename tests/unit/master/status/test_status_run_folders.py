"""Runs whose private server has ended, as their folders tell them."""

from __future__ import annotations

import json
import os
import platform
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from master.services.leader import Leader
from master.status.command import main
from tests.cases import each_case

RECORD = {
    "generation": 7,
    "env_steps": 1000,
    "episodes": 10,
    "return_mean": 3.5,
    "eval_mean": None,
    "eval_best": 9.0,
    "seconds": 5.0,
    "late": 2,
    "eta": None,
    "strange": {"a": 1},
}


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def folder(
    run: str = "walker-1",
    *,
    saved: int | None = 8,
    summary: Any = None,
    records: Any = (RECORD,),
    base: str = "runs",
) -> Path:
    made = Path(base) / run
    (made / "redis").mkdir(parents=True)
    (made / "checkpoints").mkdir()
    (made / "config.json").write_text(
        json.dumps({"env": "CartPole-v1", "strategy": "pgpe", "generations": 10})
    )
    lines = [
        json.dumps({**RECORD, "generation": 0, "eval_mean": 1.0}),
        json.dumps({**RECORD, "generation": 5, "eval_mean": 4.0}),
    ]
    (made / "metrics.jsonl").write_text("\n".join([*lines, *map(json.dumps, records)]) + "\n")
    if saved is not None:
        checkpoint = made / "checkpoints" / f"generation-{saved:08d}.npz"
        checkpoint.touch()
        os.utime(checkpoint, (1, 1))  # at the publication, so before its generation's record
    if summary is not None:
        (made / "summary.json").write_text(json.dumps(summary))
    return made


def told(capsys: pytest.CaptureFixture[str], code: int, *argv: str) -> Any:
    assert main([*argv, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_a_run_that_failed_is_failed_with_its_reason_and_its_reports(
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = folder()
    (made / "failure.json").write_text(json.dumps({"why": "eval slot 0 failed 3 times"}))
    (made / "errors.jsonl").write_text('{"reason": "not finite"}\n' * 2)
    run = told(capsys, 13, "walker-1")
    assert (run["state"], run["health"], run["health_why"], run["errors"]) == (
        "failed",
        "failed",
        "eval slot 0 failed 3 times",
        2,
    )
    assert main(["walker-1"]) == 13
    page = capsys.readouterr().out
    assert "run walker-1: failed" in page
    assert "eval slot 0 failed 3 times" in page
    assert "es-status walker-1 --errors" in page


@pytest.mark.parametrize("saved", [7, None])
def test_a_run_whose_master_was_killed_is_orphaned(
    saved: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    folder(saved=saved)
    assert told(capsys, 12, "walker-1")["state"] == "orphaned"
    assert main(["walker-1"]) == 12
    text = capsys.readouterr().out
    assert (
        "--resume walker-1" in text
        and "--purge walker-1" in text
        and "its server has ended" in text
    )


def test_a_finished_run_is_told_by_its_summary(capsys: pytest.CaptureFixture[str]) -> None:
    folder(
        saved=7,
        summary={
            "state": "finished",
            "run": "walker-1",
            "generation": 8,
            "eval_mean": 500.0,
            "digest": "ab",
        },
    )
    run = told(capsys, 10, "walker-1")
    assert (run["state"], run["health"], run["generation"], run["eval_mean"], run["digest"]) == (
        "finished",
        "done",
        8,
        500,
        "ab",
    )


HOSTILE = {
    "env": "\x1b[2J",
    "generation": "nan",
    "env_steps": 1e999,
    "run": "../etc",
    "state": "finished",
    "eval_mean": [1],
    "why": "\x9b" * 10**5,
    "digest": True,
}


@each_case("name", ["config.json", "summary.json", "metrics.jsonl"])
@each_case(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[" * 10**5,
        b"x" * (2**20 + 5),
        json.dumps(HOSTILE).encode(),
    ],
)
def test_no_content_crashes_it_or_reaches_the_terminal(
    name: str,
    content: bytes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    made = folder()
    (made / name).write_bytes(content)
    for argv in ([], ["walker-1"], ["walker-1", "--json"]):
        assert main(argv) in (0, 2, 3, 10, 12, 13)
        shown = capsys.readouterr()
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", shown.out + shown.err)


def test_a_stopped_run_has_the_generation_that_its_server_had(
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = folder(saved=8)
    ended = Leader("walker-1", "", platform.node(), 1, 1.0, ended=True)
    (made / "master.json").write_text(json.dumps(asdict(ended)))
    run = told(capsys, 10, "walker-1")
    assert (run["state"], run["generation"]) == ("stopped", 8)
