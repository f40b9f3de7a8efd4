"""Search settings with Optuna: ``pip install es-queue optuna``, then ``python optuna_search.py
--trials 30``.

Each trial is a short run of es-queue with a seed of its own; hopeless ones end early. With
``--storage`` the study is kept and goes on where it was, also from several terminals at once; with
``--redis-url`` all of them share the workers there.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import optuna

from es_queue import train
from es_queue.config.resolution import resolve


def settings_of(trial: optuna.Trial, given: argparse.Namespace) -> dict[str, Any]:
    """What is tried: by the names of es-master's flags."""
    return {
        "env": given.env,
        "seed": trial.number,
        "strategy": "openai_es",
        "population": trial.suggest_categorical("population", [16, 32, 64]),
        "sigma": trial.suggest_float("sigma", 0.01, 0.5, log=True),
        "learning_rate": trial.suggest_float("learning_rate", 0.005, 0.5, log=True),
        "max_steps": given.max_steps,
        "eval_every": 5,
        "final_episodes": given.final_episodes,
    }


def objective(trial: optuna.Trial, given: argparse.Namespace) -> float:
    """The final evaluation of one run, or TrialPruned."""
    pruned = False

    def hear(record: dict[str, Any]) -> bool:
        """Called with each generation; False ends the run."""
        nonlocal pruned
        if record["eval_mean"] is not None:
            trial.report(record["eval_mean"], record["generation"])
            pruned = trial.should_prune()
        return not pruned

    folder = Path(given.folder) / f"trial-{trial.number}"
    summary = train(
        resolve(settings_of(trial, given)),
        hear,
        redis_url=given.redis_url,
        workers=given.workers,
        run_dir=folder,
    )
    trial.set_user_attr("folder", str(folder))
    if pruned:
        raise optuna.TrialPruned
    return float(summary["eval_mean"])


def main(argv: list[str] | None = None) -> optuna.Study:
    parser = argparse.ArgumentParser(description="Search settings of es-queue with Optuna.")
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--max-steps", type=int, default=100_000, help="training steps of a trial")
    parser.add_argument(
        "--final-episodes", type=int, default=50, help="episodes by which a trial is judged"
    )
    parser.add_argument("--folder", default="runs/optuna", help="where the runs' folders go")
    parser.add_argument("--storage", help="such as sqlite:///optuna.db: keeps the study")
    parser.add_argument(
        "--redis-url", help="a Redis with workers; without it each trial starts local ones"
    )
    parser.add_argument("--workers", type=int, help="local workers of a trial")
    given = parser.parse_args(argv)
    study = optuna.create_study(
        study_name="es-queue",
        direction="maximize",
        storage=given.storage,
        load_if_exists=True,
        sampler=optuna.samplers.TPESampler(seed=0),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=10),
    )
    study.optimize(lambda trial: objective(trial, given), n_trials=given.trials)
    # The best of many short trials looks better than it is: train its settings again, with seeds
    # that were not searched.
    print(
        f"best: {study.best_value:.1f} in {study.best_trial.user_attrs['folder']} with "
        f"{study.best_params}"
    )
    print(
        "train it again: es-master --env",
        given.env,
        "--strategy openai_es",
        *(f"--{name.replace('_', '-')} {value}" for name, value in study.best_params.items()),
        "--seeds 1001-1005",
    )
    return study


if __name__ == "__main__":
    main()
