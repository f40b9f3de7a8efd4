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
from es_queue.config.run_config import RunConfig
from es_queue.environments.registry import register_bundled_ids
from es_queue.slot_plan import FINAL_SEEDS, evaluation_seeds
from tools.results.stored import StoredRow, StoredRun

EPISODES = 100
DECIMALS = 4  # more than the pages print
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
    """The runs in ``folder``/sSEED, by seed. Raises ValueError if there is none, or if one has
    another environment.
    """
    summaries = sorted(folder.glob("s[0-9]*/summary.json"), key=seed_of)
    if not summaries:
        raise ValueError(f"{folder} has no run that has ended: give the folder of s1, s2, …")
    for summary in summaries:
        environment = read_config(summary.parent).env
        if environment not in row.words:
            raise ValueError(
                f"{summary.parent} is a run of {environment}, which the command of the row "
                f"{row.environment} does not name: give a folder of its runs"
            )
    with ProcessPoolExecutor(1) as pool:  # environments print and warn; they do it elsewhere
        return list(pool.map(measure_run, [row] * len(summaries), summaries))


def seed_of(summary: Path) -> int:
    return int(json.loads(summary.read_text())["seed"])


def read_config(run: Path) -> RunConfig:
    return RunConfig.from_json((run / "config.json").read_text())


def measure_run(row: StoredRow, summary: Path) -> StoredRun:
    values: dict[str, Any] = json.loads(summary.read_text())
    mean, std, least = values["eval_mean"], values["eval_std"], values["eval_min"]
    if row.stock:
        returns = stock_returns(summary.parent)
        mean, std, least = statistics.fmean(returns), statistics.pstdev(returns), min(returns)
    cpu = summary.with_name(CPU_FILE)
    return StoredRun(
        values["seed"],
        round(mean, DECIMALS),
        round(std, DECIMALS),
        round(least, DECIMALS),
        values["env_steps"],
        None
        if row.threshold is None or mean < row.threshold
        else threshold_steps(row.threshold, summary.with_name("metrics.jsonl")),
        float(cpu.read_text()) if cpu.exists() else None,
        values["digest"],
    )


def threshold_steps(threshold: float, metrics: Path) -> int:
    """Training steps before the first evaluation with ``threshold``, or of the whole run if only
    its chosen policy has it.

    A generation's evaluation is of the parameters before its update, and its ``env_steps`` count
    its own episodes: those of the generation before are the steps that led to these parameters.
    """
    steps = 0
    for record in map(json.loads, metrics.read_text().splitlines()):
        if record["eval_mean"] is not None and record["eval_mean"] >= threshold:
            break
        steps = record["env_steps"]
    return steps


def stock_returns(folder: Path) -> list[float]:
    """The returns of a run's best policy, in Gymnasium's environment as ``gymnasium.make`` gives
    it, by nothing but ``load_policy``; rewards are summed in float64.
    """
    config = read_config(folder)
    warnings.simplefilter("ignore")
    register_bundled_ids()
    policy, env = load_policy(folder / "checkpoints" / "best.npz"), gymnasium.make(config.env)
    returns = []
    for seed in evaluation_seeds(config, FINAL_SEEDS, 0, EPISODES):
        observation, _ = env.reset(seed=int(seed))
        total, over = 0.0, False
        while not over:
            observation, reward, terminated, truncated, _ = env.step(policy.act(observation))
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    env.close()
    return returns
