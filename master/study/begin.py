"""A study: one run for each of several seeds, each driven by an es-master of its own, over one set of workers."""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from es_queue.config import RunConfig
from es_queue.errors import UsageError
from master.options import Launch, resolve
from master.place import Place, derived_run_id
from master.setup import prepare
from master.study.loop import Stop, Study
from master.study.record import FILE, FINISHED, WAITING, Entry, StudyRecord, load

LONGEST_RUN_ID = 40


def begin(values: dict[str, Any], launch: Launch) -> int:
    """A new study of ``launch.seeds``; see ``seeds.study``."""
    stop = Stop()
    config = resolve(values)
    run = base_id(config.task, launch)
    place = Place(run, launch.run_dir or Path("runs") / run, launch.shared)
    if place.config_file.exists() or (place.run_dir / FILE).exists():
        raise UsageError(f"run-dir {place.run_dir} holds a run already; go on with it by --resume {run}, or give another --run")
    entries = [Entry(seed, f"{run}-s{seed}") for seed in launch.seeds]
    warm = None if launch.warm_start is None else str(launch.warm_start.absolute())
    record = StudyRecord(run, config, entries, warm, target=target_of(config, launch))
    fresh = not place.run_dir.exists()
    study = Study(record, place, launch, stop)
    try:
        return study.drive()
    except BaseException:
        if fresh and not study.began:
            shutil.rmtree(place.run_dir, ignore_errors=True)
            with suppress(OSError):  # it holds other runs
                place.run_dir.parent.rmdir()
        raise


def resume(launch: Launch, changes: dict[str, Any]) -> int:
    """Go on with a study; see ``seeds.study_resume``."""
    stop = Stop()
    run = launch.resume or ""
    place = Place(run, launch.run_dir or Path("runs") / run, launch.shared)
    record = load(place.run_dir)
    if record.run != run:
        raise UsageError(f"{place.run_dir} holds the study {record.run}, not {run}: go on with it by --resume {record.run}, or give the --run-dir of {run}")
    record.changes |= changes
    record.config = replace(record.config, **record.changes)
    record.target = target_of(record.config, launch)
    for entry in record.entries:
        if changes or entry.state != FINISHED:  # one that has finished may go on under other budgets
            entry.state, entry.code, entry.why = WAITING, None, ""
    return Study(record, place, launch, stop).drive()


def base_id(env: str, launch: Launch) -> str:
    """The study's id, short enough for ``-s<seed>`` behind it. Raises UsageError for a --run that is too long."""
    room = LONGEST_RUN_ID - max(len(f"-s{seed}") for seed in launch.seeds)
    if launch.run is None:
        name, *tail = derived_run_id(env).rsplit("-", 3)
        return "-".join([name[: room - len("-".join(("", *tail)))].strip("-"), *tail])
    if len(launch.run) > room:
        raise UsageError(f"run is {launch.run!r} in the command line, but -s{max(launch.seeds)} is added to it and an id has at most {LONGEST_RUN_ID}: use at most {room} letters")
    return launch.run


def target_of(config: RunConfig, launch: Launch) -> float | None:
    """The return that counts as solved; what no run of the study could begin with is refused here, once."""
    return prepare(replace(config, seed=0), launch.noise_dir).learner.target
