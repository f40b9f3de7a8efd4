"""What a verb of control is asked of: one run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from es_queue.errors import UsageError
from master.control.commands import run_control_command
from master.control.control_arguments import VERBS, ControlArgs
from master.run.launch import Launch
from tests.cases import each_case


@each_case("verb", VERBS)
def test_a_study_is_refused_with_the_names_of_its_runs(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    study = Path("runs/study")
    for folder, file, name in (
        (study, "seeds.json", "study"),
        (study / "s1", "run.json", "study-s1"),
        (study / "s2", "run.json", "study-s2"),
    ):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(json.dumps({"run": name}))
    with pytest.raises(UsageError, match=r"several runs: name one of study-s1, study-s2$"):
        run_control_command(ControlArgs(verb, "study", yes=True), Launch())
