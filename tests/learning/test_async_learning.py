"""The asynchronous schedule learns what the synchronous one learns, to the same bounds."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.learning.test_learning import first_evaluation, solves
from tests.ring import quick_config, run_ring

DRAWN = random.SystemRandom().randrange(2, 2**31)
WORKERS = 2


@pytest.mark.parametrize("seed", [pytest.param(DRAWN, id="drawn")])
def test_cartpole_is_solved_with_the_defaults_whatever_the_seed(seed: int) -> None:
    print(f"seed {seed}")
    outcome, sink = run_ring(
        quick_config(schedule="async", seed=seed, max_steps=1_000_000), WORKERS
    )
    assert first_evaluation(sink) < 100, f"seed {seed} starts solved"
    assert solves(outcome), f"seed {seed} ends at {outcome.evaluation}"
    assert max(record["lag_max"] for record in sink.records if "lag_max" in record) >= 1, (
        "no answer was late"
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0])
def test_acrobot_is_swung_up_with_the_defaults_whatever_the_seed(tmp_path: Path, seed: int) -> None:
    """Its registered threshold is -100; a policy that does nothing has -500."""
    print(f"seed {seed}")
    command = [
        sys.executable,
        "-m",
        "master.cli.main",
        "--env",
        "Acrobot-v1",
        "--schedule",
        "async",
        "--seed",
        str(seed),
        "--max-steps",
        "1e6",
        "--workers",
        "2",
        "--run-dir",
        str(tmp_path / "run"),
        "--json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert next(one["eval_mean"] for one in records if one.get("eval_mean") is not None) < -200, (
        f"seed {seed} starts solved"
    )
    assert records[-1]["event"] == "summary" and records[-1]["eval_mean"] >= -110, (
        f"seed {seed} ends at {records[-1]['eval_mean']}"
    )
