"""A run's folder says what ran where, and its command repeats it."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from es_queue.config.recipes import resolve
from es_queue.config.run_config import RunConfig
from es_queue.run_folder import NamedRun
from master.run.manifest import (
    MANIFEST,
    README,
    write_manifest,
)

SETTINGS = {"env": "CartPole-v1", "seed": 7}


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    if shutil.which("git") is None:
        pytest.skip("git is not here")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    (tmp_path / "own.py").write_text("1\n")
    for words in (
        ["init", "-q"],
        ["add", "own.py"],
        ["-c", "user.name=n", "-c", "user.email=e", "commit", "-qm", "one"],
    ):
        subprocess.run(["git", *words], cwd=tmp_path, check=True, timeout=60)
    (tmp_path / "run").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_manifest_names_the_revision_of_the_users_folder(repository: Path) -> None:
    write_manifest(NamedRun("r", repository / "run"), RunConfig(env="CartPole-v1"))
    code = json.loads((repository / "run" / "run.json").read_text())["sittings"][0]["code"]
    assert len(code["revision"]) == 40


def test_nothing_that_a_folders_git_settings_name_is_run(repository: Path) -> None:
    """An archive brings its own settings of git: a file monitor, filters, hooks, differs."""
    trap = repository / "trap"
    trap.write_text(f"#!/bin/sh\ntouch {repository}/sprung\n")
    trap.chmod(0o755)
    names = ("core.fsmonitor", "filter.f.clean", "filter.f.smudge", "filter.f.process")
    names += ("diff.external", "core.pager", "core.sshCommand", "core.hooksPath", "alias.rev-parse")
    for name in names:
        value = f"!{trap}" if name.startswith("alias") else str(trap)
        subprocess.run(["git", "config", name, value], cwd=repository, check=True, timeout=60)
    (repository / ".gitattributes").write_text("* filter=f\n")
    (repository / "own.py").write_text("2\n")  # as long: status must read it
    write_manifest(NamedRun("r", repository / "run"), RunConfig(env="CartPole-v1"))
    assert not (repository / "sprung").exists()
    assert json.loads((repository / "run" / "run.json").read_text())["sittings"][0]["code"]


def test_a_card_tells_versions_and_machine_and_keeps_the_first_command_when_a_run_goes_on(
    tmp_path: Path,
) -> None:
    config = resolve(SETTINGS)
    write_manifest(NamedRun("r", tmp_path), config)
    card = json.loads((tmp_path / MANIFEST).read_text())
    (one,) = card["sittings"]
    assert {"es-queue", "python", "numpy", "gymnasium"} <= set(one["versions"])
    assert one["machine"]["cores"] >= 1 and one["machine"]["cpu"] and card["config"]["seed"] == 7
    write_manifest(NamedRun("r", tmp_path), resolve({**SETTINGS, "generations": 5}))
    again = json.loads((tmp_path / MANIFEST).read_text())
    assert (
        again["command"] == card["command"]
        and len(again["sittings"]) == 2
        and again["config"]["generations"] == 5
    )
    assert (
        "Run r: CartPole-v1" in (tmp_path / README).read_text()
        and card["command"] in (tmp_path / README).read_text()
    )
