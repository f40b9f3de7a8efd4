"""One environment of each family through real workers: short runs that end, with digests equal at
one worker and at two.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.integration.processes import Master, Processes, flags

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
TINY = {
    **SHORT,
    "population": 8,
    "step_limit": "10",
    "eval_every": 0,
    "eval_episodes": None,
    "eval_step_limit": 10,
    "obs_sample": None,
    "generations": 1,
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


@pytest.mark.slow
@pytest.mark.parametrize("body", ["Ant", "Pusher"])  # of the others tests of ids are enough
def test_every_version_of_a_mujoco_body_runs_as_the_current_one(
    body: str, valkey_url: str, start_master: Callable[..., Master], processes: Processes
) -> None:
    needs("mujoco")
    processes.worker(valkey_url)
    digests = set()
    for version in range(1, 6):
        run = start_master(f"v{version}", {**TINY, "env": f"{body}-v{version}"})
        summary = run.summary()
        said = [
            one for one in run.heard.notes if f"this run uses the current one, {body}-v5" in one
        ]
        assert summary["state"] == "finished" and len(said) == (version < 5)
        digests.add(summary["digest"])
    assert len(digests) == 1
    assert list(processes.folder.rglob("MUJOCO_LOG.TXT")) == []
