"""``es-master --seeds``: one es-master per seed, over one server and one group of workers.

A study's folder has ``seeds.json`` (settings, outcome of each run, figures over all) and a run's
folder per seed. Each run is a child of this process: its events are lines of JSON, and it is
resumed from its own folder.
"""

from __future__ import annotations

import json
import logging
import os
import shlex
import shutil
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from redis import Redis
from rq.worker_registration import WORKERS_BY_QUEUE_KEY

from es_queue.command_line import format_command
from es_queue.config.algorithms.choice import with_chosen_strategy
from es_queue.config.resolution import format_recipe, resolve
from es_queue.config.run_config import NONE, RunConfig
from es_queue.credentials import environment_without_redis
from es_queue.errors import (
    EXIT_DONE,
    EXIT_INTERRUPTED,
    RedisError,
    RunBusyError,
    UsageError,
)
from es_queue.host import default_workers
from es_queue.private_files import take_lock
from es_queue.protocol import keys
from es_queue.protocol.connection import (
    ANY_ERROR,
    client_from_url,
    redacted_url,
    validate_server,
)
from es_queue.text import sanitize
from es_queue.user_code import allowing, loose_modules, named_modules, require_trust
from master.display.log_view import SafeStream
from master.display.notes import NoteHandler
from master.processes import Child, ProcessGroup, module_command, signal_name
from master.run.launch import Launch
from master.run.manifest import repro_command
from master.run.run_paths import RunPaths, derive_run_id, existing_paths, new_paths
from master.run.setup import prepare_run
from master.services.local_workers import LocalServices
from master.services.private_server import PrivateServer
from master.services.redis_url import (
    format_warning,
    is_same_terminal,
    network_warnings,
)
from master.services.start_lines import redis_flags, start_lines
from master.services.stop_signals import StopSignals
from master.services.tcp_access import resolve_listen_address
from master.storage.checkpoint import Checkpoints
from master.sweep.record import (
    FAILED,
    FINISHED,
    RESTARTING,
    RUNNING,
    STOPPED,
    STOPPING,
    WAITING,
    Seed,
    Study,
    load_study,
)
from master.sweep.view import StudyView, make_view

LOGGER = logging.getLogger("es_queue.sweep")
MAIN = "master.cli.main"
LONGEST_RUN_ID = 40
LOOK_SECONDS, CHECK_SECONDS = 0.1, 1.0
#: What a failing study grants its runs to leave their checkpoints.
LEAVE_SECONDS = 20.0
#: Waits before an es-master that was killed is started again; the longest outlasts the lease of its
#: predecessor.
BACKOFF_SECONDS = (1.0, 4.0, 12.0)


def run_sweep(values: dict[str, Any], launch: Launch) -> int:
    """Run ``launch.seeds`` under the settings ``values``; returns the exit code.

    0 if all have finished, 130 if a person stopped them, else the code of the first that failed.
    Raises UsageError, EnvironmentFailure, RedisError or RunFolderError before the first run is
    started.
    """
    stop, begun = StopSignals(), [False]
    stop.install(lambda: begun[0], str)
    config = resolve(values, launch.inherited, launch.recipe != NONE)
    launch = replace(launch, notes=format_recipe(values, launch.inherited, launch.recipe))
    run = base_run_id(config.task, launch)
    paths = new_paths(run, launch)
    if paths.config_file.exists() or paths.named_run.is_study:
        raise UsageError(
            f"run-dir {paths.run_dir} holds a run already; continue it with "
            f"--resume {paths.named_run.word}, or give another --run"
        )
    start = None if launch.warm_start is None else str(launch.warm_start.absolute())
    seeds = [Seed(seed, f"{run}-s{seed}") for seed in launch.seeds]
    config, target = try_settings(config, launch)
    is_new = not paths.run_dir.exists()
    try:
        return lead(Study(run, config, seeds, start, target=target), paths, launch, stop, begun)
    except BaseException:
        if is_new and not begun[0]:
            shutil.rmtree(paths.run_dir, ignore_errors=True)
            with suppress(OSError):  # it holds other runs
                paths.run_dir.parent.rmdir()
        raise


def resume_sweep(launch: Launch, changes: dict[str, Any]) -> int:
    """Continue the study ``launch.resume`` under ``changes``; codes and errors as for
    ``run_sweep``.

    Finished seeds are kept, unless ``changes`` extends their budget.
    """
    stop, begun = StopSignals(), [False]
    stop.install(lambda: begun[0], str)
    paths = existing_paths(launch.resume or "", launch)
    study = load_study(paths.run_dir)
    if study.run != paths.run:
        raise UsageError(
            f"{paths.run_dir} holds the study {study.run}, not {paths.run}: continue it with "
            f"--resume {study.run}, or give the --run-dir of {paths.run}"
        )
    study.changes |= changes
    study.config = replace(study.config, **study.changes)
    require_trust(str(paths.run_dir), named_modules(study.config), launch.trust, launch.own_modules)
    for seed in study.seeds:
        if changes or seed.state != FINISHED:
            seed.state, seed.code, seed.why = WAITING, None, ""
    study.target = try_settings(study.config, launch)[1]
    return lead(study, paths, launch, stop, begun)


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


def try_settings(config: RunConfig, launch: Launch) -> tuple[RunConfig, float | None]:
    """The settings with their strategy chosen, and their target. Raises EsQueueError if no run can
    begin with them.
    """
    with allowing(named_modules(config)):
        setup = prepare_run(replace(config, seed=0), launch.noise_dir)
    return with_chosen_strategy(config, setup.policy.size), setup.learner.target


# --- the loop


def lead(
    study: Study, paths: RunPaths, launch: Launch, stop: StopSignals, begun: list[bool]
) -> int:
    """Run what has not finished. ``begun[0]`` becomes true when an end must be an orderly one."""
    named = launch.redis_url
    flags = "" if named is None else redis_flags(named, launch.redis_password_file)
    way_back = f"{format_command('es-master')} --resume {paths.named_run.word}{flags}"
    stop.install(lambda: begun[0], lambda: way_back)
    paths.prepare()
    lock = take_lock(paths.run_dir / "study.lock")
    if lock is None:
        raise RunBusyError(
            f"study {study.run} is led by another es-master: stop that one, or wait until it ends"
        )
    os.pwrite(lock, b"%-20d" % os.getpid(), 0)
    view = make_view(SafeStream(sys.stdout), study, launch)
    services = LocalServices(None if named is not None else private_server(paths, launch))
    failure = EXIT_DONE
    try:
        with NoteHandler(view.note), allowing(named_modules(study.config)):
            if any(seed.state == WAITING for seed in study.seeds):
                url = start_services(services, paths, launch)
                study.save(paths.run_dir)
                about = start_lines(
                    url,
                    launch.queue,
                    paths.named_run,
                    services.server,
                    loose_modules(study.config),
                    launch.redis_password_file,
                )
                view.started({"redis": redacted_url(url), "folder": str(paths.run_dir), **about})
                for text in launch.notes:
                    view.note(text)
                begun[0] = True
                with ProcessGroup(LEAVE_SECONDS) as runs:
                    failure = watch_runs(study, paths, launch, services, url, runs, stop, view)
            states = {seed.state for seed in study.seeds}
            failed = FAILED in states and not stop.requested
            study.state = FINISHED if states == {FINISHED} else FAILED if failed else STOPPED
            study.save(paths.run_dir)
            view.ended()
            if study.state != FINISHED:
                view.note(f"continue with: {way_back}")
    finally:
        services.stop()
        view.close()
        os.close(lock)
    if failed:
        return failure
    return EXIT_DONE if {seed.code for seed in study.seeds} <= {EXIT_DONE} else EXIT_INTERRUPTED


def private_server(paths: RunPaths, launch: Launch) -> PrivateServer:
    folder, listen = paths.run_dir / "redis", launch.listen
    address = None if listen is None else resolve_listen_address(listen, folder)
    return PrivateServer(folder, listen=address, queue=launch.queue)


def start_services(services: LocalServices, paths: RunPaths, launch: Launch) -> str:
    """Start the private server, if any, and the workers; returns the server's URL. Raises
    RedisError or RunFolderError.
    """
    services.start_server()
    server = services.server
    url = server.url if server is not None else launch.redis_url or ""
    with client_from_url(url) as client:
        validate_server(client, redacted_url(url))
        if server is None and not launch.insecure:
            for text in network_warnings(client, redacted_url(url)):
                print(format_warning(text), file=sys.stderr, flush=True)
                if not is_same_terminal():
                    LOGGER.warning(text)
    is_shared = server is None or launch.listen is not None
    default = 0 if server is None else default_workers()
    count = default if launch.workers is None else launch.workers
    if count:
        logs = paths.run_dir / "logs"
        services.start_workers(count, launch.queue, url, logs, is_shared, launch.noise_dir)
    return url


def watch_runs(
    study: Study,
    paths: RunPaths,
    launch: Launch,
    services: LocalServices,
    url: str,
    runs: ProcessGroup,
    stop: StopSignals,
    view: StudyView,
) -> int:
    """Until all have ended; returns the exit code of the first that failed, else 0.

    There are no more runs at a time than workers: one without would only wait, and its
    --max-seconds would run out.
    """
    failure, next_check, places, told = EXIT_DONE, 0.0, 1, False
    with client_from_url(url) as client:
        for seed in study.seeds:
            seed.child = make_child(seed, study, paths, launch, url, client, stop)
            seed.show(seed.summary or {})
        while True:
            if stop.requested and not told:
                told = True
                for seed in study.seeds:
                    stop_seed(seed)
            if time.monotonic() >= next_check:
                services.restart_ended()
                places = max(1, services.count, count_workers(client, launch.queue))
                next_check = time.monotonic() + CHECK_SECONDS
            active = sum(not child.is_over for child in runs.children)
            waiting = [seed for seed in study.seeds if seed.state == WAITING]
            for seed in () if stop.requested else waiting[: max(0, places - active)]:
                (paths.run_dir / "logs" / f"s{seed.seed}.err").unlink(missing_ok=True)
                runs.start(seed.child)
                seed.begun, seed.state = True, RUNNING
                study.save(paths.run_dir)
            runs.watch()
            for seed in study.seeds:
                show_events(seed, view, stop)
                if seed.state in (RUNNING, STOPPING) and seed.child.process is None:
                    if note := judge_end(seed, stop):
                        view.note(note, seed.seed)
                    failure = failure or (seed.state == FAILED and (seed.code or 1)) or EXIT_DONE
                    study.save(paths.run_dir)
                elif seed.state == RESTARTING and seed.child.process is not None:
                    seed.state = RUNNING
            view.draw()
            if all(child.is_over for child in runs.children) and (stop.requested or not waiting):
                return failure
            time.sleep(LOOK_SECONDS)


def make_child(
    seed: Seed,
    study: Study,
    paths: RunPaths,
    launch: Launch,
    url: str,
    client: Redis,
    stop: StopSignals,
) -> Child:
    run = RunPaths(seed.run, paths.run_dir / f"s{seed.seed}", launch.shared)
    words = ["--json", "--workers", "0", "--queue", launch.queue, "--run-dir", str(run.run_dir)]
    # The study has warned about a server that others can reach.
    words += ["--insecure"] * (launch.redis_url is not None) + ["--shared"] * launch.shared
    words += ["--track", ",".join(launch.track)] if launch.track else []
    words += [] if launch.noise_dir is None else ["--noise-dir", str(launch.noise_dir)]

    def command() -> list[str]:
        seed.joined = False
        if seed.begun and has_checkpoint(run, client):
            changes = study.changes.items()
            settings = [f"--{name.replace('_', '-')}={value}" for name, value in changes]
            return module_command(MAIN, *words, "--resume", seed.run, *settings)
        if seed.begun:
            run.config_file.unlink(missing_ok=True)  # of a beginning without a checkpoint
        start = None if study.warm_start is None else Path(study.warm_start)
        config = replace(study.config, seed=seed.seed)
        flags = shlex.split(repro_command(config, start, with_recipe=False))[1:]
        return module_command(MAIN, *words, "--run", seed.run, *flags)

    def comes_back(code: int) -> bool:
        """It was killed, or a killed one still holds the lease, or Redis was away at the start."""
        is_busy = code == RunBusyError.exit_code and child.failures > 0
        is_away = code == RedisError.exit_code and not seed.joined
        return not stop.requested and (
            (code > 128 and code != EXIT_INTERRUPTED) or is_busy or is_away
        )

    child = Child(
        "its es-master",
        command,
        paths.run_dir / "logs" / f"s{seed.seed}.err",
        {**environment_without_redis(os.environ), "RQ_REDIS_URL": url},
        pipes=True,
        backoff=BACKOFF_SECONDS,
        comes_back=comes_back,
    )
    return child


def has_checkpoint(run: RunPaths, client: Redis) -> bool:
    """If Redis is away, an es-master that resumes waits for it, and one that begins would not."""
    if Checkpoints(run.run_dir).read_newest() is not None:
        return True
    try:
        return bool(client.exists(keys.RunKeys(run.run).checkpoint))
    except ANY_ERROR:
        return True


def count_workers(client: Redis, queue: str) -> int:
    try:
        count: Any = client.scard(WORKERS_BY_QUEUE_KEY % queue)
    except ANY_ERROR:
        return 0
    return int(count)


def stop_seed(seed: Seed) -> None:
    seed.child.due = None
    if seed.child.process is not None:
        seed.child.process.terminate()
        seed.state = STOPPING
    elif seed.state == RESTARTING:
        seed.state = STOPPED


def show_events(seed: Seed, view: StudyView, stop: StopSignals) -> None:
    for line in seed.child.lines():
        try:
            event = json.loads(line)
            kind = event["event"]
        except (ValueError, TypeError, KeyError, RecursionError):  # an environment's own words
            continue
        if kind == "started":
            seed.joined = True
        elif kind == "generation":
            seed.show(event)
        elif kind == "summary":
            seed.summary = {name: value for name, value in event.items() if name != "event"}
        if kind != "note":
            view.event(seed, event)
        # How to resume a stopped run is the study's to say.
        elif not (stop.requested and str(event.get("text")).startswith("stopped at generation")):
            view.note(str(event.get("text")), seed.seed)


def judge_end(seed: Seed, stop: StopSignals) -> str:
    """The state of a run whose es-master has ended; returns a note or nothing."""
    child = seed.child
    seed.code, state = child.code or 0, (seed.summary or {}).get("state")
    was_killed = seed.code > 128
    if seed.code == EXIT_DONE and state in (FINISHED, STOPPED):
        seed.state = state
    elif seed.code == EXIT_INTERRUPTED or (was_killed and stop.requested):
        seed.state = STOPPED
    elif child.due is not None:
        seed.state = RESTARTING
        pause = BACKOFF_SECONDS[child.failures - 1]
        return f"its es-master ended with code {seed.code} and restarts in {pause:.0f} s"
    else:
        killed = f"its es-master was killed by {signal_name(seed.code - 128)}" if was_killed else ""
        last = (child.last_lines() or [killed])[-1]
        seed.state, seed.why = FAILED, sanitize(last.removeprefix("es-master: "))
        return f"failed with exit code {seed.code}{': ' + seed.why if seed.why else ''}"
    return ""
