"""Tasks on which random search stays below the threshold with the same budget: learnt by real
workers of an es-master.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from es_queue.strategies.map_elites import load_archive
from tests.deceptive import MAZE
from tests.integration.processes import flags
from tests.ring import quick_config, run_ring

#: Together they take minutes.
pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[2]
NOISE = 2**18

#: A point in a trap that the reward pulls it into: all policies have the same budget and
#: perturbations.
TRAP: dict[str, Any] = {
    "env": MAZE,
    "policy": "mlp",
    "hidden": (8,),
    "population": 40,
    "sigma": 0.2,
    "obs_norm": False,
    "generations": 80,
    "eval_every": 1,
    "eval_episodes": 3,
    "final_episodes": 20,
    "target_reward": "-0.4",
    "noise_size": NOISE,
}
SEEKING: dict[str, Any] = {
    **TRAP,
    "strategy": "novelty",
    "novelty": "nsr",
    "members": 2,
    "behaviour_episodes": 1,
    "learning_rate": 0.2,
    "seed": 1,
}
#: The return at the dead end is -1; the goal counts as reached from -0.3 on.
DEAD_END = -0.9
REWARD: dict[str, dict[str, Any]] = {
    "openai_es": {"strategy": "openai_es", "learning_rate": 0.2},
    "random_search": {"strategy": "random_search", "candidates": 3, "elite_episodes": 3},
}

#: A valley a thousand times steeper across than along.
VALLEY: dict[str, Any] = {
    "objective": "tests.objectives:ellipsoid",
    "parameters": 30,
    "population": 40,
    "generations": 100,
    "eval_every": 0,
    "final_episodes": 1,
    "target_reward": "none",
    "noise_size": NOISE,
}
START, LOWER, NEAR = -3.0, -2.0, 0.0

#: Strategies that learn how steep the valley is in each direction, and how many generations that
#: takes.
SHAPED = {"snes": 100, "sep_cma_es": 100, "cma_es": 250, "lm_ma_es": 400}


def by_real_workers(folder: Path, **values: Any) -> dict[str, Any]:
    """The summary of an es-master that has its own server and RQ workers."""
    plain = {
        name: ",".join(map(str, value)) if name == "hidden" else value
        for name, value in values.items()
    }
    words = [
        "--no-obs-norm" if word == "--obs-norm" else word
        for word in flags(plain)
        if word != "False"
    ]
    command = [
        sys.executable,
        "-m",
        "master.cli.main",
        *words,
        "--run-dir",
        str(folder / "run"),
        "--workers",
        "2",
        "--json",
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=600, check=False, cwd=REPOSITORY
    )
    assert done.returncode == 0, done.stderr
    summary: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert summary["event"] == "summary"
    return summary


def reached(**values: Any) -> float:
    """The final evaluation; over the in-memory channel, which gives the bits of real workers."""
    plain = {"env": ""} if "objective" in values else {}
    evaluation = run_ring(quick_config(**plain, **values), 2)[0].evaluation
    assert evaluation is not None
    return evaluation.mean


# --- novelty search out of a trap


@pytest.mark.timeout(600)
def test_novelty_and_reward_together_find_the_way_around_the_trap(tmp_path: Path) -> None:
    summary = by_real_workers(tmp_path, **SEEKING)
    assert summary["reason"] == "target" and summary["eval_mean"] > -0.4


@pytest.mark.timeout(600)
@pytest.mark.parametrize("strategy", REWARD)
def test_the_reward_alone_ends_in_the_trap(strategy: str) -> None:
    assert reached(**{**TRAP, **REWARD[strategy], "seed": 0}) < DEAD_END


# --- down a valley


@pytest.mark.parametrize("strategy", SHAPED)
def test_a_strategy_with_a_shape_learns_that_of_a_valley(tmp_path: Path, strategy: str) -> None:
    values = {**VALLEY, "strategy": strategy, "generations": SHAPED[strategy], "seed": 0}
    assert by_real_workers(tmp_path, **values)["eval_mean"] > NEAR


def test_random_search_does_not_come_down_the_valley() -> None:
    assert (
        reached(
            **VALLEY, strategy="random_search", sigma=1.0, candidates=3, elite_episodes=1, seed=0
        )
        < START
    )


# --- an archive of arms that end everywhere

ARM: dict[str, Any] = {
    "objective": "tests.objectives:arm",
    "parameters": 12,
    "population": 64,
    "generations": 60,
    "eval_every": 0,
    "final_episodes": 1,
    "target_reward": "none",
    "noise_size": NOISE,
    "strategy": "map_elites",
    "cells": (20, 20),
    "behaviour_bounds": "-1:1",
    "sigma": 0.1,
    "qd_offset": -1.0,
    "seed": 0,
}
#: QD scores, of at most 400.
FILLED, RANDOM = 260.0, 245.0


def test_map_elites_fills_its_archive_with_good_arms(tmp_path: Path) -> None:
    by_real_workers(tmp_path, **{**ARM, "cells": "20,20"})
    archive, config = load_archive(tmp_path / "run")
    assert archive.qd_score(config.qd_offset) > FILLED
    assert archive.coverage > 0.7
