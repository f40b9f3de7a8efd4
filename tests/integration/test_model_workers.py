"""A model's workers as processes: whatever happens to them, Redis and the master, the weights in
each snapshot are those of an undisturbed run.
"""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis

pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors")

from es_queue import load_model  # noqa: E402
from tests.integration.household import ROOT  # noqa: E402
from tests.integration.processes import (  # noqa: E402
    Processes,
    Seen,
    flags,
    quiet_digest,
    wait_for,
)

VALUES: dict[str, Any] = {
    "model": "tests.networks:Network",
    "seed": 3,
    "population": 8,
    "block": 1,
    "generations": 100,
    "eval_every": 20,
    "eval_episodes": 2,
    "final_episodes": 2,
    "target_reward": "none",
    "noise_size": 2**18,
}


def digests(folder: Path) -> dict[str, str]:
    found = {}
    for path in folder.glob("*.safetensors"):
        with safetensors.safe_open(path, "pt") as reader:
            found[path.name] = reader.metadata()["digest"]
    return found


@pytest.mark.parametrize(
    "perturbation",
    ["full", *(pytest.param(rank, marks=pytest.mark.slow) for rank in ("rank:1", "rank:4"))],
)
def test_killed_and_late_workers_a_lost_redis_and_a_killed_master_change_no_weight(
    perturbation: str,
    tmp_path: Path,
    valkey_url: str,
    redis_client: redis.Redis,
    processes: Processes,
) -> None:
    values = {**VALUES, "perturbation": perturbation}
    places = tmp_path / "quiet", tmp_path / "troubled"
    quiet = quiet_digest({**values, "snapshots": str(places[0])})
    places[1].mkdir()
    seen = Seen(redis_client, "model")
    begin = ("--run", "model", *flags({**values, "snapshots": str(places[1])}))
    own = {"url": valkey_url, "PYTHONPATH": str(ROOT)}
    worker, lead = partial(processes.worker, **own), partial(processes.master, "--json", **own)
    master = lead(*begin)
    first = worker()
    horse = seen.freeze_holding(seen.joined(first))
    second = worker()
    seat = seen.joined(second)
    kill(first.pid, horse)

    wait_for(seen.has_reached(5), "generation 5")
    horse = seen.freeze_holding(seat)
    redis_client.flushall()
    os.kill(horse, signal.SIGCONT)
    wait_for(seen.has_reached(10), "generation 10")
    horse = seen.freeze_holding(seat)
    kill(master.pid)
    os.kill(horse, signal.SIGCONT)
    master = lead("--resume", "model")

    wait_for(seen.has_reached(30), "generation 30")
    horse = seen.freeze_holding(seat)
    late = seen.joined(worker())
    wait_for(lambda: seen.claims(late), "the late worker has a block")
    kill(second.pid, horse)
    assert master.wait(120) == 0, master.said()[-2000:]
    assert master.events("summary")[-1]["digest"] == quiet
    assert digests(places[1] / "model") == digests(places[0])
    assert load_model(tmp_path / "runs" / "model", which="last", trust=True)
    replay = processes.master("--replay", "model", PYTHONPATH=str(ROOT))
    assert replay.wait() == 0 and quiet in replay.said()


def kill(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
