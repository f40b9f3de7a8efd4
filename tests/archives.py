"""Run folders with an archive of MAP-Elites."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from es_queue.config.run_config import RunConfig
from es_queue.strategies.map_elites_archive import centroids_of, make_cells


def archived(folder: Path, behaviour: Any, fitness: list[float], **values: Any) -> Path:
    """A run whose newest checkpoint has elites with these behaviours."""
    config = RunConfig(**{"env": "CartPole-v1", "strategy": "map_elites", **values})
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config.to_dict()))
    (folder / "metrics.jsonl").write_text(json.dumps({"generation": 0}) + "\n")
    behaviour, count = np.array(behaviour, np.float32), len(fitness)
    cvt = config.archive == "cvt"
    arrays = {
        "archive_centroids": centroids_of(config.cells[0], 2) if cvt else np.empty((0, 0)),
        "elite_cell": make_cells(config, behaviour.shape[1]).locate(behaviour),
        "elite_fitness": np.array(fitness, np.float64),
        "elite_behaviour": behaviour,
        "elite_parameters": np.zeros((count, 3), np.float32),
    }
    np.savez(
        folder / "checkpoints/generation-00000003.npz",
        meta=np.array(json.dumps({"format": 1, "config": config.to_dict()})),
        **dict.fromkeys(("parameters", "obs_mean", "obs_std"), np.zeros(3, np.float32)),
        **{f"strategy.{name}": array for name, array in arrays.items()},
    )
    return folder
