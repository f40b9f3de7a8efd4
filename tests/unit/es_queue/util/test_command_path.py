"""Commands that people are told to type must work where they are typed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from es_queue.util.command_path import format_command


@pytest.fixture
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / ".venv" / "bin"
    folder.mkdir(parents=True)
    for name in ("python", "es-play"):
        (folder / name).touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    return folder


def test_a_command_off_the_path_is_shown_with_its_folder(scripts: Path) -> None:
    assert format_command("es-play") == ".venv/bin/es-play"


def test_a_command_on_the_path_is_shown_by_its_name(
    scripts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(scripts))
    assert format_command("es-play") == "es-play"


def test_another_installations_command_on_the_path_is_not_taken_for_ours(
    scripts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "es-play").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(other))
    assert format_command("es-play") == ".venv/bin/es-play"


def test_from_far_away_the_whole_path_is_shown(
    scripts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    assert format_command("es-play") in (
        str(scripts / "es-play"),
        str(scripts / "es-play").lstrip("/"),
    )


def test_a_command_that_is_not_installed_is_shown_by_its_name(scripts: Path) -> None:
    assert format_command("rq") == "rq"
