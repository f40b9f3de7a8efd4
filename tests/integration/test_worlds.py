"""One environment of each family through real workers: short runs that end, with digests equal at
one worker and at two.
"""

from __future__ import annotations

import importlib.util
import json
from typing import Any

import pytest

from tests.integration.processes import Processes, flags

SHORT: dict[str, Any] = {
    "seed": 11,
    "population": 8,
    "step_limit": "40",
    "eval_every": 2,
    "eval_episodes": 2,
    "eval_step_limit": 40,
    "final_episodes": 2,
    "generations": 4,
    "target_reward": "none",
    "noise_size": 2**18,
    "obs_sample": 1.0,
}


def needs(package: str) -> None:
    if package and importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")


@pytest.mark.parametrize("backend", ["lean", "stock"])
def test_marvin_is_trained_and_played_to_the_last_digit(backend: str, processes: Processes) -> None:
    run = processes.master(
        *flags({**SHORT, "env": "Marvin-v0", "backend": backend}),
        "--run",
        "marvin",
        "--run-dir",
        processes.folder / "marvin",
        "--workers",
        1,
    )
    assert run.wait() == 0, run.said()
    summary = json.loads((processes.folder / "marvin" / "summary.json").read_text())
    played = processes.start(
        processes.rq.with_name("es-play"), processes.folder / "marvin", "--json"
    )
    assert played.wait() == 0, played.said()
    assert json.loads(played.out.read_text())["eval_mean"] == summary["eval_mean"]
