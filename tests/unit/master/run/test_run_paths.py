"""Where a run lives, and what is said of one that is nowhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from master.cli.main import main
from tests.cases import each_case


@each_case(("flag", "code"), [("--resume", 6), ("--stop", 2), ("--pause", 2)])
def test_an_unknown_run_is_answered_with_the_runs_whose_names_are_near(
    flag: str,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("walker", "walk-2", "lander"):
        (tmp_path / "runs" / name).mkdir(parents=True, exist_ok=True)
    monkeypatch.setenv("RQ_REDIS_URL", "")
    assert main([flag, "walkr"]) == code
    said = capsys.readouterr().err
    assert "there is no run walkr, because runs/walkr does not exist; did you mean walker" in said
    assert "lander" not in said and "has ended" not in said
