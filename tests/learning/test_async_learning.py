"""The asynchronous schedule learns what the synchronous one learns, to the same bounds."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from es_queue.strategies.base import Batch, Info, State
from es_queue.strategies.pgpe import PGPE
from tests.learning.test_learning import first_evaluation, solves
from tests.ring import quick_config, run_ring
from tests.tiny import QUAD

DRAWN = random.SystemRandom().randrange(2, 2**31)
WORKERS = 2


@pytest.mark.parametrize("seed", [0, 1, pytest.param(DRAWN, id="drawn")])
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


def test_cartpole_is_not_solved_when_nothing_is_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    def unlearnt(self: PGPE, state: State, batch: Batch) -> tuple[State, Info]:
        return self.stay(state)

    monkeypatch.setattr(PGPE, "learn", unlearnt)
    outcome, _ = run_ring(quick_config(schedule="async", seed=0, max_steps=50_000), WORKERS)
    assert (
        outcome.state.reason == "max_steps"
        and outcome.evaluation is not None
        and outcome.evaluation.mean < 100
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, pytest.param(DRAWN, id="drawn")])
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


@pytest.mark.parametrize(
    ("strategy", "values"),
    [
        ("ars", {"learning_rate": 0.1, "sigma": 0.2}),
        ("openai_es", {"learning_rate": 0.1, "sigma": 0.2}),
        ("pgpe", {"learning_rate": 0.05}),
        ("snes", {"sigma": 0.5}),
    ],
)
def test_a_quadratic_bowl_is_descended_to_its_bottom(strategy: str, values: dict[str, Any]) -> None:
    outcome, sink = run_ring(
        quick_config(
            schedule="async",
            env=QUAD,
            strategy=strategy,
            population=16,
            obs_norm=False,
            generations=80,
            target_reward="none",
            eval_every=20,
            eval_episodes=5,
            final_episodes=20,
            **values,
        ),
        WORKERS,
    )
    assert first_evaluation(sink) == -6.25
    assert outcome.evaluation is not None and outcome.evaluation.mean > -0.2
