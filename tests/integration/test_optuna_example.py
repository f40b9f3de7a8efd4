"""The example of docs/examples runs as it stands there."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.integration.processes import Processes

pytest.importorskip("optuna", reason="optuna is not installed (pip install optuna)")

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "optuna_search.py"


@pytest.mark.slow
def test_optuna_searches_settings_and_each_trial_leaves_its_folder(processes: Processes) -> None:
    words = (
        "--trials",
        "3",
        "--max-steps",
        "3000",
        "--final-episodes",
        "2",
        "--workers",
        "1",
        "--storage",
        "sqlite:///study.db",
    )
    done = processes.start(sys.executable, EXAMPLE, *words)
    assert done.wait(240) == 0, done.said()
    assert "best: " in done.out.read_text() and "--seeds 1001-1005" in done.out.read_text()
    cards = sorted(processes.folder.glob("runs/optuna/trial-*/run.json"))
    assert [json.loads(card.read_text())["config"]["seed"] for card in cards] == [0, 1, 2]
