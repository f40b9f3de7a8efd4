"""Does it learn? Whole runs to a result that chance does not give."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from es_queue import RunConfig, train
from es_queue.strategies import STRATEGIES
from tests.memory import quick_config, run_ring
from tests.thermostat import THERMOSTAT

SOLVED = 475.0
DRAWN = random.SystemRandom().randrange(2, 2**31)


@pytest.mark.parametrize("schedule", ["sync", "async"])
@pytest.mark.parametrize("seed", [pytest.param(DRAWN, id="drawn")])
def test_cartpole_is_solved_with_the_defaults_whatever_the_seed(seed: int, schedule: str) -> None:
    """The run passes its target twice, and 100 other episodes agree: the mean of a third sample may
    be lower by what separates samples of one policy.
    """
    outcome, sink = run_ring(quick_config(schedule=schedule, seed=seed, max_steps=1_000_000), 2)
    first = next(record["eval_mean"] for record in sink.records if record["eval_mean"] is not None)
    assert first < 100, f"seed {seed} starts solved"
    final, about = outcome.evaluation, f"seed {seed} ends at {outcome.evaluation}"
    assert final is not None and final.count == 100 and outcome.state.reason == "target", about
    assert final.mean + 3 * final.standard_error >= SOLVED and final.mean >= 0.9 * SOLVED, about
    if schedule == "async":
        late = max(record["lag_max"] for record in sink.records if "lag_max" in record)
        assert late >= 1, "no result was late"


@pytest.mark.parametrize(
    "strategy",
    [
        name
        for name, kind in STRATEGIES.items()
        if not kind.wants_behaviour and name not in ("ga", "random_search")
    ],
)
def test_cartpole_is_solved_by_every_strategy(strategy: str) -> None:
    values = {"max_steps": 500_000, "eval_every": 5, "eval_episodes": 10, "final_episodes": 20}
    outcome, sink = run_ring(quick_config(seed=0, strategy=strategy, **values), 2)
    first = next(record["eval_mean"] for record in sink.records if record["eval_mean"] is not None)
    assert first < 100
    assert outcome.evaluation is not None and outcome.evaluation.mean >= SOLVED


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_the_recipe_walks_within_two_million_steps(tmp_path: Path) -> None:
    """Seed 3 of docs/results.md: over 300 there, within two million steps."""
    words = "--env BipedalWalker-v3 --seed 3 --final-episodes 20 --max-steps 2e6 --workers 2 --json"
    command = [sys.executable, "-m", "master.cli.main", *words.split(), "--run-dir", "run"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=7000, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["event"] == "summary" and summary["env_steps"] < 2.1e6
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
