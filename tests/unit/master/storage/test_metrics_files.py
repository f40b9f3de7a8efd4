"""metrics.jsonl and metrics.csv: their contents, and that trouble with them ends no run."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from es_queue.config.recipes import resolve
from master.storage.metrics_files import METRICS_TABLE, TABLE_COLUMNS, metrics_files
from master.storage.trackers import TAGS
from tests.memory import run_ring
from tests.notes import fail_on_notes

RECORD: dict[str, Any] = {
    "generation": 3,
    "env_steps": 1200,
    "return_mean": 1.5,
    "return_std": float("nan"),
    "eval_mean": None,
    "eval_best": 7.25,
    "sigma": 1 / 3,
    "digest": 'a,"b',
    "workers": 2,
}


def rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def test_a_table_has_its_columns_once_and_a_row_a_generation_also_when_a_run_goes_on(
    tmp_path: Path,
) -> None:
    for generation in (3, 4):
        table = metrics_files(tmp_path)[1]
        fail_on_notes()
        table.generation({**RECORD, "generation": generation})
        table.close()
    first, second = rows(tmp_path / METRICS_TABLE)
    assert (
        tuple(first) == TABLE_COLUMNS
        and (tmp_path / METRICS_TABLE).read_text().count("generation") == 1
    )
    assert (
        first["generation"],
        second["generation"],
        first["return_mean"],
        first["return_std"],
        first["eval_mean"],
    ) == ("3", "4", "1.5", "", "")
    assert first["sigma"] == "0.3333333333" and first["env_steps"] == "1200"


def test_every_column_and_tag_is_a_figure_of_real_generations() -> None:
    _, sink = run_ring(
        resolve(
            {
                "env": "CartPole-v1",
                "seed": 1,
                "population": 4,
                "step_limit": "30",
                "eval_every": 1,
                "eval_episodes": 1,
                "final_episodes": 1,
                "generations": 2,
                "noise_size": 2**18,
            }
        )
    )
    known = {name for one in sink.records for name in one}
    assert set(TABLE_COLUMNS) - known == set() and set(TAGS.values()) - known == set()
