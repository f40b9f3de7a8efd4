"""Search for settings with Optuna: ``pip install es-queue optuna``, then ``python optuna_search.py
--trials 30``.

Each trial is a run with its own seed. Trials whose evaluations are below the median of the others
end early. The study is kept in a file, so the same command continues it, and several processes on
one host share it.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import MaxTrialsCallback

from es_queue import train
from es_queue.config.recipes import resolve

STRATEGY = "openai_es"
#: Trials are compared after each of so many parts of their budget.
PARTS = 20


def settings_of(trial: optuna.Trial, given: argparse.Namespace) -> dict[str, Any]:
    """The settings of a trial, by their names in ``RunConfig``."""
    return {
        "env": given.env,
        "seed": trial.number,
        "strategy": STRATEGY,
        "population": trial.suggest_categorical("population", [16, 32, 64]),
        "sigma": trial.suggest_float("sigma", 0.01, 0.5, log=True),
        "learning_rate": trial.suggest_float("learning_rate", 0.005, 0.5, log=True),
        "max_steps": given.max_steps,
        "eval_every": 5,
        "final_episodes": given.final_episodes,
    }


def objective(trial: optuna.Trial, given: argparse.Namespace) -> float:
    """The final evaluation of one run. Raises TrialPruned."""
    pruned, reported = False, set[int]()

    def on_generation(record: dict[str, Any]) -> bool:
        """Report an evaluation; False ends the run."""
        nonlocal pruned
        if record["eval_mean"] is not None:
            part = PARTS * record["env_steps"] // given.max_steps
            if part not in reported:
                reported.add(part)
                trial.report(record["eval_mean"], part)
                pruned = trial.should_prune()
        return not pruned

    folder = Path(given.folder) / f"trial-{trial.number}"
    summary = train(
        resolve(settings_of(trial, given)),
        on_generation,
        redis_url=given.redis_url,
        workers=given.workers,
        run_dir=folder,
    )
    trial.set_user_attr("folder", str(folder))
    if pruned:
        raise optuna.TrialPruned
    return float(summary["eval_mean"])


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Search for settings of es-queue with Optuna.")
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--trials", type=int, default=20, help="finished trials of the study")
    parser.add_argument("--max-steps", type=int, default=100_000, help="training steps of a trial")
    parser.add_argument(
        "--final-episodes", type=int, default=50, help="episodes that decide a trial's value"
    )
    parser.add_argument("--folder", default="runs/optuna", help="folder of the study and its runs")
    parser.add_argument(
        "--redis-url", help="a Redis with workers; without it each trial starts local ones"
    )
    parser.add_argument("--workers", type=int, help="local workers of a trial")
    given = parser.parse_args(argv)
    Path(given.folder).mkdir(parents=True, exist_ok=True)
    study = optuna.create_study(
        study_name="es-queue",
        direction="maximize",
        storage=JournalStorage(JournalFileBackend(str(Path(given.folder) / "study.log"))),
        load_if_exists=True,
        # With constant_liar, processes do not try what another one is trying.
        sampler=optuna.samplers.TPESampler(constant_liar=True),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=PARTS // 5),
    )
    finished = (optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED)
    study.optimize(
        lambda trial: objective(trial, given),
        callbacks=[MaxTrialsCallback(given.trials, states=finished)],
    )
    best = study.best_trial
    print(f"best: {best.value:.1f} in {best.user_attrs.get('folder')} with {best.params}")
    # The best of many short trials is partly luck, so train it with seeds that were not searched.
    print(
        "train it again: es-master --env",
        given.env,
        "--strategy",
        STRATEGY,
        *(f"--{name.replace('_', '-')} {value}" for name, value in best.params.items()),
        "--seeds 1001-1005",
    )


if __name__ == "__main__":
    main()
