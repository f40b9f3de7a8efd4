"""A run by one word: what a word names, and what it does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from es_queue.util.run_folder import find_run


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


def store(folder: Path, file: str, name: str) -> None:
    folder.mkdir(parents=True)
    (folder / file).write_text(json.dumps({"run": name}))


def test_a_run_of_a_study_is_named_by_the_study_and_its_seed(runs: Path) -> None:
    store(runs / "study", "seeds.json", "study")
    store(runs / "study" / "s2", "run.json", "study-s2")
    assert find_run("study-s2").folder == Path("runs/study/s2")
    assert [run.run for run in find_run("study").members] == ["study-s2"]


def test_a_word_never_names_a_run_of_another_name(runs: Path) -> None:
    store(runs / "swalk", "run.json", "swalk")
    assert find_run("walk").folder == Path("runs/walk")
    store(runs / "other" / "s3", "run.json", "elsewhere-s3")
    assert find_run("other-s3").folder == Path("runs/other-s3")


def test_a_folder_that_is_no_seeds_is_no_run_of_a_study(runs: Path) -> None:
    store(runs / "study", "seeds.json", "study")
    (runs / "study" / "s\u00b2").mkdir()
    assert find_run("study").members == []
