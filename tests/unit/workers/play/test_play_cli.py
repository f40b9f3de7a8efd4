"""es-play: the final evaluation again, other episodes, and what is wrong in one sentence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import es_queue
from es_queue.config.run_config import RunConfig
from es_queue.numerics.fingerprint import bytes_digest
from es_queue.numerics.noise_table import NoiseTable
from es_queue.protocol.messages import FINAL, Task
from es_queue.strategies import make_strategy
from master.loop.checkpoint import policy_meta
from tests.cases import each_case
from tests.parts import play_slots, policy_size
from workers.es_play import main
from workers.heartbeat import EpisodeControl
from workers.player import Player, join

ROOT = Path(es_queue.__file__).resolve().parent.parent
PUBLICATION = "3.1-00000000"
CARTPOLE = RunConfig(
    env="CartPole-v1",
    seed=3,
    policy="mlp",
    hidden=(8,),
    final_episodes=6,
    backend="stock",
    noise_size=2**14,
)
WALKER = RunConfig(
    env="BipedalWalker-v3",
    seed=3,
    policy="linear",
    final_episodes=2,
    backend="lean",
    noise_size=2**14,
    eval_step_limit=60,
)


def joined_worker(config: RunConfig) -> Player:
    return join(config, EpisodeControl(), table=NoiseTable.in_memory(config.noise_size))


def policy_vectors(worker: Player) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Parameters and observation statistics that make every bit of the arithmetic count."""
    generator = np.random.default_rng(1)
    spec = worker.spec
    size = policy_size(worker)
    draw = generator.standard_normal
    mean, std = 0.1 * draw(spec.observation_size), np.exp(0.3 * draw(spec.observation_size))
    return (0.3 * draw(size)).astype(np.float32), mean.astype(np.float32), std.astype(np.float32)


def evaluated_by_a_worker(
    config: RunConfig, worker: Player, vectors: tuple[np.ndarray, np.ndarray, np.ndarray]
) -> list[float]:
    """The returns of the final evaluation in slot order, by the code that answers blocks."""
    parameters, mean, std = vectors
    strategy = make_strategy(config, len(parameters))
    first = strategy.start(np.zeros(strategy.size, np.float32))
    published = np.zeros(len(strategy.published(first)), np.float32)
    published[: len(parameters)] = parameters
    task = Task(
        PUBLICATION,
        0.1,
        10,
        len(published),
        bytes_digest(published.tobytes()),
        mean.tobytes(),
        std.tobytes(),
        worker.noise.digest,
        0.1,
    )
    found = play_slots(worker, task, published, FINAL, 0, config.final_episodes)
    assert not found.failures
    return [one.returns[0] for one in found.results]


def checkpoint(path: Path, config: RunConfig, /, **changes: Any) -> float:
    """Write a run's best policy with its final evaluation by a worker; returns the mean of that."""
    worker = joined_worker(config)
    vectors = policy_vectors(worker)
    returns = evaluated_by_a_worker(config, worker, vectors)
    mean = sum(returns) / len(returns)
    spec = worker.spec
    meta = {
        **policy_meta(config, spec, "some-run"),
        "generation": 3,
        "evaluation": {"eval_mean": mean, "eval_std": 0.0, "eval_episodes": len(returns)},
        **changes,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(
        path,
        parameters=vectors[0],
        obs_mean=vectors[1],
        obs_std=vectors[2],
        meta=np.array(json.dumps(meta)),
    )
    return mean


def played(capsys: pytest.CaptureFixture[str], *argv: object) -> dict[str, Any]:
    assert main([*map(str, argv), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def refused(capsys: pytest.CaptureFixture[str], code: int, *argv: object) -> str:
    assert main([*map(str, argv)]) == code
    told = capsys.readouterr()
    assert told.out == "" and told.err.startswith("es-play: ") and told.err.count("\n") == 1
    return told.err


@each_case(
    "config",
    [
        CARTPOLE,
        WALKER,
        replace(CARTPOLE, obs_norm=False),
        replace(WALKER, backend="any", final_episodes=14, eval_step_limit=30),
    ],
)
def test_without_flags_the_workers_final_evaluation_is_repeated_to_the_last_digit(
    config: RunConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded = checkpoint(tmp_path / "best.npz", config)
    found = played(capsys, tmp_path / "best.npz")
    assert found["eval_mean"] == found["recorded"] == recorded and found["equal"] is True
    assert found["episodes"] == config.final_episodes


@each_case("place", ["best.npz", "checkpoints/best.npz"])
def test_a_runs_folder_stands_for_its_best_policy(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint(tmp_path / place, CARTPOLE)
    assert main([str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert (
        "equal to the recorded evaluation to the last digit" in told
        and "6 episodes of the final evaluation" in told
    )


def test_a_mean_that_differs_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mean = checkpoint(tmp_path / "best.npz", CARTPOLE)
    other = np.nextafter(mean, 0)
    checkpoint(tmp_path / "best.npz", CARTPOLE, evaluation={"eval_mean": other, "eval_episodes": 6})
    assert main([str(tmp_path)]) == 0
    assert (
        f"not equal to the recorded evaluation: {mean!r} against {float(other)!r}"
        in capsys.readouterr().out
    )


def test_fewer_episodes_are_the_first_of_the_final_ones_and_compare_with_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint(tmp_path / "best.npz", CARTPOLE)
    worker = joined_worker(CARTPOLE)
    returns = evaluated_by_a_worker(CARTPOLE, worker, policy_vectors(worker))
    found = played(capsys, tmp_path, "--episodes", 2)
    assert found["episodes"] == 2 and found["recorded"] is None and found["equal"] is None
    assert found["eval_mean"] == sum(returns[:2]) / 2 != sum(returns) / len(returns)
    assert main([str(tmp_path), "--episodes", "2"]) == 0
    told = capsys.readouterr().out
    assert "recorded evaluation" not in told
    assert "to compare with" not in told


def test_a_seed_asks_for_other_episodes_one_after_the_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint(tmp_path / "best.npz", CARTPOLE)
    found = played(capsys, tmp_path, "--seed", 40)
    single = [
        played(capsys, tmp_path, "--seed", seed, "--episodes", 1)["eval_mean"]
        for seed in range(40, 46)
    ]
    assert found["equal"] is None and found["eval_mean"] == sum(single) / 6
    assert len(set(single)) > 1


def test_an_argument_of_the_environment_takes_the_place_of_the_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint(tmp_path / "best.npz", CARTPOLE)
    found = played(capsys, tmp_path, "--env-arg", "sutton_barto_reward=true")
    assert found["eval_mean"] == -1 and found["equal"] is None
    told = refused(capsys, 2, tmp_path, "--env-arg", "sutton_barto_reward")
    assert "--env-arg is 'sutton_barto_reward' in the command line: use key=value" in told


def test_stochastic_play_has_the_action_noise_of_training_and_repeats_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ES_QUEUE_NOISE_DIR", str(tmp_path / "noise"))
    checkpoint(tmp_path / "best.npz", replace(WALKER, action_noise=0.1))
    plain = played(capsys, tmp_path, "--seed", 4)
    noisy = played(capsys, tmp_path, "--seed", 4, "--stochastic")
    assert noisy["stochastic"] and noisy["eval_mean"] != plain["eval_mean"]
    assert played(capsys, tmp_path, "--seed", 4, "--stochastic") == noisy
    assert main([str(tmp_path), "--stochastic"]) == 0
    told = capsys.readouterr().out
    assert "final evaluation, with action noise:" in told and "recorded" not in told


def test_stochastic_play_is_refused_where_nothing_is_random(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint(tmp_path / "best.npz", CARTPOLE)
    assert "was trained without any" in refused(capsys, 2, tmp_path, "--stochastic")
    told = refused(capsys, 2, tmp_path, "--stochastic", "--generation", 3)
    assert "leave --generation out" in told


@each_case(
    "argv",
    [
        ["--episodes", "0"],
        ["--episodes", "x"],
        ["--seed", "-1"],
        ["--seed", str(2**31)],
        ["--render", "gif"],
        ["--nope"],
    ],
)
def test_a_bad_flag_is_refused_in_one_sentence(
    argv: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(capsys, 2, tmp_path, *argv)


def test_a_file_that_is_no_checkpoint_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.npz").write_text("hello")
    refused(capsys, 6, tmp_path / "text.npz")
    assert "No such file" in refused(capsys, 6, tmp_path / "missing.npz")
    (tmp_path / "policy.onnx").write_bytes(b"graph")
    assert "an export for other programs: play the run" in refused(
        capsys, 6, tmp_path / "policy.onnx"
    )


def test_a_folder_without_a_best_policy_names_what_it_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint(tmp_path / "checkpoints/generation-00000004.npz", CARTPOLE)
    assert "generation-00000004.npz" in refused(capsys, 6, tmp_path)


def test_an_environment_with_other_spaces_than_the_policys_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint(tmp_path / "best.npz", CARTPOLE, config={**CARTPOLE.to_dict(), "env": "Acrobot-v1"})
    assert "does not fit the installed" in refused(capsys, 6, tmp_path)


def test_the_numeric_environment_is_fixed_before_numpy_is_imported(tmp_path: Path) -> None:
    checkpoint(tmp_path / "best.npz", CARTPOLE)
    code = (
        "import sys, os\n"
        "import workers.es_play as play, es_queue.numerics.fingerprint as numerics\n"
        "assert 'numpy' not in sys.modules\n"
        "wanted = numerics.numeric_environment()\n"
        "assert play.main([sys.argv[1]]) == 0\n"
        "assert {name: os.environ[name] for name in wanted} == wanted"
    )
    names = (
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "MKL_NUM_THREADS",
        "OPENBLAS_CORETYPE",
        "NPY_DISABLE_CPU_FEATURES",
    )
    environment = {name: value for name, value in os.environ.items() if name not in names} | {
        "PYTHONIOENCODING": "ascii"
    }
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "equal to the recorded evaluation" in done.stdout
