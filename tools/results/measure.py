"""Trains runs of a row, and measures what runs of a folder have reached."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import gymnasium

from es_queue import load_policy
from es_queue.config.parsing import config_from_json
from es_queue.environments.registry import register_bundled_ids
from es_queue.numerics.slot_plan import FINAL, evaluation_seeds
from tools.results.stored import StoredRow, StoredRun

EPISODES = 100
CPU_FILE = "cpu_seconds"  # in a run's folder


def train(row: StoredRow, seeds: list[int], folder: Path) -> None:
    """Train each seed by the row's command with one worker, into ``folder``/sSEED. Raises
    RuntimeError if es-master fails.
    """
    for seed in seeds:
        run = folder / f"s{seed}"
        command = [sys.executable, "-m", "master.cli.main", *row.words]
        command += ["--seed", str(seed), "--workers", "1", "--run-dir", str(run)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise RuntimeError(f"es-master ended with {process.returncode}")
        (run / CPU_FILE).write_text(f"{usage.ru_utime + usage.ru_stime:.2f}\n")


def measure(row: StoredRow, folder: Path) -> list[StoredRun]:
    """The runs in ``folder``/sSEED, by seed."""
    summaries = sorted(folder.glob("s*/summary.json"), key=lambda path: int(path.parent.name[1:]))
    with ProcessPoolExecutor(1) as pool:  # environments print and warn; they do it elsewhere
        return list(pool.map(measure_run, [row] * len(summaries), summaries))


def measure_run(row: StoredRow, summary: Path) -> StoredRun:
    values: dict[str, Any] = json.loads(summary.read_text())
    mean, std, least = values["eval_mean"], values["eval_std"], values["eval_min"]
    if row.stock:
        returns = stock_returns(summary.parent)
        mean, std, least = statistics.fmean(returns), statistics.pstdev(returns), min(returns)
    cpu = summary.with_name(CPU_FILE)
    return StoredRun(
        values["seed"],
        round(mean, 2),
        round(std, 2),
        round(least, 2),
        values["env_steps"],
        threshold_steps(row.threshold, mean, summary.with_name("metrics.jsonl")),
        float(cpu.read_text()) if cpu.exists() else None,
        values["digest"],
    )


def threshold_steps(threshold: float | None, mean: float, metrics: Path) -> int | None:
    """See :class:`StoredRun`; ``mean`` is the run's own."""
    if threshold is None or mean < threshold:
        return None
    records = map(json.loads, metrics.read_text().splitlines())
    return next(
        (
            int(record["env_steps"])
            for record in records
            if record["eval_mean"] is not None and record["eval_mean"] >= threshold
        ),
        None,
    )


def stock_returns(folder: Path) -> list[float]:
    """The returns of a run's best policy, in Gymnasium's environment as ``gymnasium.make`` gives
    it, by nothing but ``load_policy``; rewards are summed in float64.
    """
    config = config_from_json((folder / "config.json").read_text())
    warnings.simplefilter("ignore")
    register_bundled_ids()
    policy, env = load_policy(folder / "checkpoints" / "best.npz"), gymnasium.make(config.env)
    returns = []
    for seed in evaluation_seeds(config, FINAL, 0, EPISODES):
        observation, _ = env.reset(seed=int(seed))
        total, over = 0.0, False
        while not over:
            observation, reward, terminated, truncated, _ = env.step(policy.act(observation))
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    env.close()
    return returns
