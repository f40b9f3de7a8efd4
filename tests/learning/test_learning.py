"""Does it learn? Whole runs to a result that chance does not give, and the same runs without the
update that fail.
"""

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
from master.loop.listeners import Outcome
from tests.ring import Sink, quick_config, run_ring
from tests.tiny import QUAD

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


@pytest.mark.parametrize("seed", [0, 1, pytest.param(DRAWN, id="drawn")])
def test_cartpole_is_solved_with_the_defaults_whatever_the_seed(seed: int) -> None:
    print(f"seed {seed}")
    outcome, sink = trained(seed=seed, max_steps=1_000_000)
    assert first_evaluation(sink) < 100, f"seed {seed} starts solved"
    assert solves(outcome), f"seed {seed} ends at {outcome.evaluation}"


@pytest.mark.parametrize(
    "strategy", ["openai_es", "ars", "snes", "csa_es", "sep_cma_es", "cma_es", "lm_ma_es"]
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


def test_cartpole_is_not_solved_when_nothing_is_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same search without its update, over more steps than a learning run takes."""

    def unlearnt(self: PGPE, state: State, batch: Batch) -> tuple[State, Info]:
        return self.stay(state)

    monkeypatch.setattr(PGPE, "learn", unlearnt)
    outcome, sink = trained(seed=0, max_steps=100_000)
    assert outcome.state.counters.env_steps >= 100_000 and outcome.state.reason == "max_steps"
    assert {record["digest"] for record in sink.records} == {outcome.digest}
    assert outcome.evaluation is not None and outcome.evaluation.mean < 100


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
    outcome, sink = trained(
        env=QUAD,
        strategy=strategy,
        population=16,
        obs_norm=False,
        generations=40,
        target_reward="none",
        eval_every=20,
        eval_episodes=5,
        final_episodes=20,
        **values,
    )
    assert first_evaluation(sink) == -6.25
    assert outcome.evaluation is not None and outcome.evaluation.mean > -0.1


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
def test_the_recipe_lands_the_lunar_lander_within_two_million_steps(tmp_path: Path) -> None:
    summary = summary_of(tmp_path / "run", "--env", "LunarLanderContinuous-v3", "--seed", "0")
    assert summary["eval_episodes"] == 100 and summary["eval_mean"] > 200


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_the_recipe_walks_within_two_million_steps(tmp_path: Path) -> None:
    """Seed 3 of docs/results.md: over 300 there, within two million steps."""
    summary = summary_of(
        tmp_path / "run", "--env", "BipedalWalker-v3", "--seed", "3", "--final-episodes", "20"
    )
    assert summary["eval_episodes"] == 20 and summary["eval_mean"] > 200
