"""Begins a study: one run per seed, each led by its own es-master, over one set of workers."""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import replace
from typing import Any

from es_queue.config.algorithms.choice import with_chosen_strategy
from es_queue.config.resolution import format_recipe, resolve
from es_queue.config.run_config import NONE, RunConfig
from es_queue.errors import UsageError
from es_queue.security.user_code import allowing, named_modules, require_trust
from master.run.launch import Launch
from master.run.run_paths import RunPaths, derive_run_id, existing_paths, new_paths
from master.run.setup import Setup, prepare_run
from master.sweep.loop import Sweep, SweepStopSignals
from master.sweep.record import FINISHED, WAITING, SeedRun, SweepRecord, load_record

LONGEST_RUN_ID = 40


def run_sweep(values: dict[str, Any], launch: Launch) -> int:
    """Run ``launch.seeds`` under the settings ``values``; returns the exit code.

    0 if all have finished, 130 if a person stopped them, else the code of the first that failed.
    Raises UsageError, EnvironmentFailure, RedisError or RunFolderError before the first run is
    started.
    """
    stop = SweepStopSignals()
    config = resolve(values, launch.inherited, launch.recipe != NONE)
    launch = replace(launch, notes=format_recipe(values, launch.inherited, launch.recipe))
    run = base_run_id(config.task, launch)
    paths = new_paths(run, launch)
    if paths.config_file.exists() or paths.named_run.is_study:
        raise UsageError(
            f"run-dir {paths.run_dir} holds a run already; continue it with "
            f"--resume {paths.named_run.word}, or give another --run"
        )
    entries = [SeedRun(seed, f"{run}-s{seed}") for seed in launch.seeds]
    warm_start = None if launch.warm_start is None else str(launch.warm_start.absolute())
    setup = try_settings(config, launch)
    config = with_chosen_strategy(config, setup.policy.size)
    record = SweepRecord(run, config, entries, warm_start, target=setup.learner.target)
    is_new_folder = not paths.run_dir.exists()
    try:
        return lead_sweep(record, paths, launch, stop)
    except BaseException:
        if is_new_folder and not stop.has_begun:
            shutil.rmtree(paths.run_dir, ignore_errors=True)
            with suppress(OSError):  # it holds other runs
                paths.run_dir.parent.rmdir()
        raise


def resume_sweep(launch: Launch, changes: dict[str, Any]) -> int:
    """Continue the study ``launch.resume`` under ``changes``; codes and errors as for
    ``run_sweep``.

    Finished seeds are kept, unless ``changes`` extends their budget.
    """
    stop = SweepStopSignals()
    paths = existing_paths(launch.resume or "", launch)
    record = load_record(paths.run_dir)
    if record.run != paths.run:
        raise UsageError(
            f"{paths.run_dir} holds the study {record.run}, not {paths.run}: continue it with "
            f"--resume {record.run}, or give the --run-dir of {paths.run}"
        )
    config = replace(record.config, **record.changes | changes)
    require_trust(str(paths.run_dir), named_modules(config), launch.trust, launch.own_modules)
    entries = [
        # A run that has finished can continue under other budgets.
        replace(entry, state=WAITING, code=None, why="")
        if changes or entry.state != FINISHED
        else entry
        for entry in record.entries
    ]
    record = replace(
        record,
        config=config,
        entries=entries,
        changes=record.changes | changes,
        target=try_settings(config, launch).learner.target,
    )
    return lead_sweep(record, paths, launch, stop)


def base_run_id(env: str, launch: Launch) -> str:
    """Short enough for ``-s<seed>``. Raises UsageError for a --run that is too long."""
    room = LONGEST_RUN_ID - max(len(f"-s{seed}") for seed in launch.seeds)
    if launch.run is None:
        name, *tail = derive_run_id(env).rsplit("-", 3)
        return "-".join([name[: room - len("-".join(("", *tail)))].strip("-"), *tail])
    if len(launch.run) > room:
        raise UsageError(
            f"run is {launch.run!r} in the command line, but -s{max(launch.seeds)} is added "
            f"to it and an id has at most {LONGEST_RUN_ID}: use at most {room} letters"
        )
    return launch.run


def lead_sweep(record: SweepRecord, paths: RunPaths, launch: Launch, stop: SweepStopSignals) -> int:
    with allowing(named_modules(record.config)):
        return Sweep(record, paths, launch, stop).run()


def try_settings(config: RunConfig, launch: Launch) -> Setup:
    """What a seed's run begins with. Raises EsQueueError if it cannot begin with these settings."""
    with allowing(named_modules(config)):
        return prepare_run(replace(config, seed=0), launch.noise_dir)
