"""The example of docs/choosing.md, as it is."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.integration.processes import Processes

optuna = pytest.importorskip("optuna", reason="optuna is not installed (pip install optuna)")

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "optuna_search.py"
WORDS = ("--max-steps", "3000", "--final-episodes", "2", "--workers", "1")
STUDY = "runs/optuna/study.log"


def storage(path: Path) -> optuna.storages.JournalStorage:
    path.parent.mkdir(parents=True, exist_ok=True)
    backend = optuna.storages.journal.JournalFileBackend(str(path))
    return optuna.storages.JournalStorage(backend)


@pytest.mark.slow
def test_two_processes_share_a_study_and_each_trial_leaves_its_own_folder(
    processes: Processes,
) -> None:
    searches = [processes.start(sys.executable, EXAMPLE, *WORDS, "--trials", "4") for _ in range(2)]
    for search in searches:
        assert search.wait(240) == 0, search.said()
        assert "best: " in search.out.read_text() and "--seeds 1001-1005" in search.out.read_text()
    cards = sorted(processes.folder.glob("runs/optuna/trial-*/run.json"))
    seeds = [json.loads(card.read_text())["config"]["seed"] for card in cards]
    assert seeds == list(range(len(cards))) and 4 <= len(cards) <= 5
    study = optuna.load_study(study_name="es-queue", storage=storage(processes.folder / STUDY))
    assert len({tuple(trial.params.values()) for trial in study.trials}) == len(study.trials)
