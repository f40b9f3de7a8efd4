"""Strategies that evaluate again, objectives and a strategy of the user's own, through real
workers.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis

from es_queue import load_policy
from tests.integration.processes import (
    WALKER,
    Master,
    Processes,
    Seen,
    flags,
    quiet_digest,
)

#: Settings of each strategy of which a worker, or the master, is killed.
SEARCHES: dict[str, dict[str, Any]] = {
    name: {**WALKER, "strategy": name, "generations": 5, **settings}
    for name, settings in {
        "random_search": {"candidates": 3, "elite_episodes": 3},
        "cma_es": {},
        "novelty": {"novelty": "nsra", "members": 3, "neighbours": 3, "behaviour_episodes": 2},
        "map_elites": {
            "emitter": "gaussian",
            "archive": "cvt",
            "cells": (20,),
            "behaviour": "feet-contact",
        },
    }.items()
}
each_search = pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)
VALLEY: dict[str, Any] = {
    "objective": "tests.objectives:rosenbrock",
    "parameters": 2,
    "strategy": "snes",
    "seed": 5,
    "population": 40,
    "eval_every": 10,
    "eval_episodes": 5,
    "target_reward": "-0.05",
    "final_episodes": 5,
    "noise_size": 2**18,
    "generations": 400,
}
HOUSE = Path(__file__).parents[2]
EXAMPLE = re.findall(
    r"```python\n(.*?)```", (HOUSE / "docs" / "own_strategy.md").read_text(), re.DOTALL
)[0]


@each_search
def test_a_search_resumes_where_its_master_was_killed_and_its_log_can_be_replayed(
    search: dict[str, Any], valkey_url: str, redis_client: redis.Redis, processes: Processes
) -> None:
    seen = Seen(redis_client, "again")
    worker = processes.worker(valkey_url)
    folder = processes.folder / "again"
    first = processes.master(
        *flags(search), "--run", "again", "--run-dir", folder, "--json", url=valkey_url
    )
    horse = seen.freeze_holding(seen.joined(worker))
    first.signal(signal.SIGKILL)
    first.wait()
    os.kill(horse, signal.SIGCONT)
    second = processes.master("--resume", "again", "--run-dir", folder, "--json", url=valkey_url)
    assert second.wait() == 0, second.said()
    assert second.events("summary")[0]["digest"] == quiet_digest(search)
    replayed = processes.master("--replay", "again", "--run-dir", folder)
    assert replayed.wait() == 0, replayed.said()


def test_an_objective_is_optimised_by_real_workers(
    valkey_url: str, start_master: Callable[..., Master], processes: Processes, tmp_path: Path
) -> None:
    for _ in range(2):
        processes.worker(valkey_url, PYTHONPATH=str(HOUSE))
    summary = start_master("valley", VALLEY).summary()
    assert summary["reason"] == "target" and summary["eval_mean"] > -0.06  # it begins at -4
    np.testing.assert_allclose(load_policy(summary["best_checkpoint"]).parameters, [1, 1], atol=0.5)
    assert summary["digest"] == quiet_digest(VALLEY)


def test_a_strategy_of_ones_own_trains_through_the_local_workers_of_an_es_master(
    processes: Processes,
) -> None:
    (processes.folder / "cross_entropy.py").write_text(EXAMPLE)
    values = {
        "env": "CartPole-v1",
        "strategy": "cross_entropy:CrossEntropy",
        "seed": 1,
        "population": 8,
        "generations": 3,
        "eval_every": 0,
        "final_episodes": 2,
        "noise_size": 2**18,
    }
    run = processes.master(
        *flags(values),
        "--run",
        "own",
        "--run-dir",
        processes.folder / "own",
        "--workers",
        1,
        "--json",
    )
    assert run.process.wait(60) == 0, run.said()
    assert (
        json.loads((processes.folder / "own" / "summary.json").read_text())["state"] == "finished"
    )
