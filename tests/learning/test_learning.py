"""Does it learn? Whole runs to a result that chance does not give."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from es_queue import RunConfig, train
from es_queue.strategies import STRATEGIES
from master.loop.listeners import Outcome
from tests.ring import Sink, quick_config, run_ring
from tests.thermostat import THERMOSTAT

SOLVED = 475.0
DRAWN = random.SystemRandom().randrange(2, 2**31)


def trained(**values: Any) -> tuple[Outcome, Sink]:
    return run_ring(quick_config(**values), 2)


def solves(outcome: Outcome) -> bool:
    """Whether the run passed its target twice, and 100 other episodes agree: the mean of a third
    sample may lie below by what separates samples of one policy.
    """
    evaluation = outcome.evaluation
    assert evaluation is not None and evaluation.count == 100
    most = evaluation.mean + 3 * evaluation.standard_error
    return outcome.state.reason == "target" and most >= SOLVED and evaluation.mean >= 0.9 * SOLVED


def first_evaluation(sink: Sink) -> float:
    return float(
        next(record["eval_mean"] for record in sink.records if record["eval_mean"] is not None)
    )


@pytest.mark.parametrize("seed", [pytest.param(DRAWN, id="drawn")])
def test_cartpole_is_solved_with_the_defaults_whatever_the_seed(seed: int) -> None:
    print(f"seed {seed}")
    outcome, sink = trained(seed=seed, max_steps=1_000_000)
    assert first_evaluation(sink) < 100, f"seed {seed} starts solved"
    assert solves(outcome), f"seed {seed} ends at {outcome.evaluation}"


@pytest.mark.parametrize(
    "strategy",
    [name for name in STRATEGIES if name not in ("ga", "map_elites", "novelty", "random_search")],
)
def test_cartpole_is_solved_by_every_strategy(strategy: str) -> None:
    outcome, sink = trained(
        seed=0,
        strategy=strategy,
        max_steps=500_000,
        eval_every=5,
        eval_episodes=10,
        final_episodes=20,
    )
    assert first_evaluation(sink) < 100
    assert outcome.evaluation is not None and outcome.evaluation.mean >= SOLVED


def summary_of(folder: Path, *words: str) -> dict[str, Any]:
    """The summary of a run of es-master's own with two workers."""
    command = [
        sys.executable,
        "-m",
        "master.cli.main",
        *words,
        "--max-steps",
        "2e6",
        "--workers",
        "2",
        "--run-dir",
        str(folder),
        "--json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=7000, check=False)
    assert done.returncode == 0, done.stderr
    summary: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert summary["event"] == "summary" and summary["env_steps"] < 2.1e6
    return summary


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_the_recipe_walks_within_two_million_steps(tmp_path: Path) -> None:
    """Seed 3 of docs/results.md: over 300 there, within two million steps."""
    summary = summary_of(
        tmp_path / "run", "--env", "BipedalWalker-v3", "--seed", "3", "--final-episodes", "20"
    )
    assert summary["eval_episodes"] == 20 and summary["eval_mean"] > 200


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_task_that_needs_a_constant_action_is_learnt_with_the_defaults(
    seed: int, tmp_path: Path
) -> None:
    config = RunConfig(seed=seed, max_steps=600_000, final_episodes=20)
    summary = train(config, env=THERMOSTAT, workers=1, runs_dir=tmp_path)
    assert summary.env_steps < 610_000 and summary.eval_episodes == 20
    assert summary.eval_mean > -60
