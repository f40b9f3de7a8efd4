"""es-master: parse, connect or start the private server, take the lease, train, exit code.

Most imports are inside functions, so that ``main`` can handle Ctrl-C before modules load.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from es_queue.config.run_config import RunConfig
    from es_queue.run_folder import NamedRun
    from master.display.reporter import Reporter
    from master.processes import StopSignals
    from master.run.launch import ControlArgs, Launch

#: Letters of an error that are shown.
LONGEST_ERROR = 4000


def main(argv: list[str] | None = None) -> int:
    exit_on_sigint()
    return act(argv, run_sweep_or_single)


def act(argv: list[str] | None, train: Callable[[dict[str, Any], Launch], int]) -> int:
    """Do what a command line says, and train if it says so; returns the exit code."""
    # start-up: Ctrl-C first
    from es_queue.errors import EXIT_INTERRUPTED, EsQueueError
    from es_queue.numerics.fingerprint import fix_numeric_environment

    try:
        fix_numeric_environment()
        # start-up: Ctrl-C first
        from es_queue.config.run_config import naming_settings
        from master.cli.options import parse_command_line
        from master.services.redis_url import format_warning

        values, launch = parse_command_line(argv)
        for text in launch.warnings:
            print(format_warning(text), file=sys.stderr, flush=True)
        if launch.control_args is None:
            validate_workers_package()
            # A generation's results are no garbage: searching them takes a seventh of the work.
            gc.set_threshold(50_000, 20, 100)
        with naming_settings(as_flags=True):
            return train(values, launch)
    except EsQueueError as error:
        # start-up: only an error needs it
        from es_queue.text import sanitize

        print(f"es-master: {sanitize(error, LONGEST_ERROR)}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def exit_on_sigint() -> None:
    """While modules load there is nothing to clean up, and some modules would turn a
    KeyboardInterrupt into an ImportError.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(
            signal.SIGINT, lambda number, frame: os._exit(130)
        )  # as errors.EXIT_INTERRUPTED, not loaded yet


def validate_workers_package() -> None:
    """Another package called ``workers`` would make every seat fail."""
    # start-up: Ctrl-C first
    import importlib.util

    from es_queue.errors import UsageError

    spec = importlib.util.find_spec("workers")
    folders = [] if spec is None else [*(spec.submodule_search_locations or ())]
    actual = Path(folders[0]).resolve() if folders else None
    if actual != Path(__file__).resolve().parents[2] / "workers":
        raise UsageError(
            f"the package 'workers' that Python finds is {actual}, not es-queue's: run from "
            "another folder, or remove that package from PYTHONPATH"
        )


def run_control(args: ControlArgs, launch: Launch) -> int:
    # start-up: of this request
    from master.run.launch import REPLAY, existing_run

    signal.signal(signal.SIGINT, signal.default_int_handler)
    if args.verb != REPLAY:
        # start-up: of this request
        from master.run.control_commands import run_control_command

        return run_control_command(args, launch)
    # start-up: of this request
    from es_queue.run_folder import no_run_error
    from master.storage.replay import replay_run

    run = existing_run(args.run, launch)
    if not run.folder.is_dir():
        raise no_run_error(run)
    return replay_run(run.run, run.folder, launch.noise_dir, print, launch.trust)


def run_sweep_or_single(values: dict[str, Any], launch: Launch) -> int:
    if launch.control_args is not None:
        return run_control(launch.control_args, launch)
    # start-up: Ctrl-C first
    from es_queue.private_files import close_new_files
    from master.run.launch import existing_run

    close_new_files(launch.shared)
    is_study = launch.resume is not None and existing_run(launch.resume, launch).is_study
    if not launch.seeds and not is_study:
        return run(values, launch)
    # start-up: of a study
    from master.run.session import resumable_settings
    from master.sweep import resume_sweep, run_sweep

    if is_study:
        return resume_sweep(launch, resumable_settings(values))
    return run_sweep(values, launch)


def run(values: dict[str, Any], launch: Launch, stop: StopSignals | None = None) -> int:
    """Train with a view for this terminal. The first Ctrl-C stops between two reads of the results,
    a second one at once. Before the run has begun, Ctrl-C leaves nothing behind.

    stop: shows callers whether this process was asked to stop
    """
    # start-up: numpy
    from es_queue.config.recipes import resolve
    from es_queue.config.settings import NONE
    from es_queue.errors import EXIT_DONE, EXIT_INTERRUPTED
    from es_queue.numerics.fingerprint import limit_blas_threads
    from es_queue.protocol.keys import clocks_from_environment
    from es_queue.user_code import allowing
    from master.display.notes import TERMINAL, NoteHandler
    from master.processes import StopSignals
    from master.run.session import Session, resumable_settings
    from master.storage.trackers import load_hooks

    limit_blas_threads()
    config = None
    if launch.resume is None:
        config = resolve(values, launch.inherited, launch.recipe != NONE)
    with allowing([reference.rpartition(":")[0] for reference in launch.hook]):
        hooks = load_hooks(launch.hook)
    stop, out = stop or StopSignals(), sys.stdout

    def make_reporter(run: NamedRun, config: RunConfig) -> Reporter:
        # start-up: the display, once the run has begun
        from master.display.log_view import SafeStream
        from master.display.reporter import Reporter, make_view
        from master.storage.trackers import HookSink, open_trackers

        stream, about = SafeStream(out), (run.run, run.folder, config)
        view = make_view(stream, run.run, config, quiet=launch.quiet, json_lines=launch.json)
        sinks = [HookSink(hook, *about) for hook in hooks]
        return Reporter(run.folder, view, trackers=[*open_trackers(launch.track, *about), *sinks])

    session = Session(launch, clocks_from_environment(), make_reporter, lambda: stop.requested)
    stop.install(lambda: session.is_looping, lambda: session.resume_command)
    try:
        with (
            NoteHandler(lambda text: print(text, file=sys.stderr, flush=True), TERMINAL),
            # --json has only JSON: what an environment prints is no part of it
            redirect_stdout(sys.stderr if launch.json else out),
        ):
            summary = session.run(config, resumable_settings(values))
    except Exception:
        if stop.requested and not session.is_looping:
            raise KeyboardInterrupt from None  # a library made something else of it
        raise
    return EXIT_INTERRUPTED if summary["interrupted"] else EXIT_DONE


if __name__ == "__main__":
    # start-up: Ctrl-C first
    from es_queue.user_code import leave_current_folder

    leave_current_folder()
    sys.exit(main())
