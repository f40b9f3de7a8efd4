"""es-master: parse, connect or start the private server, take the lease, train, exit code.

Nearly all is imported inside of functions, so that ``main`` can look after Ctrl-C before modules load.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from es_queue.config import RunConfig
    from master.options import Launch
    from master.place import Place
    from master.report import Report
    from master.session import Session


def main(argv: list[str] | None = None) -> int:
    """The command; see ``es-master --help``. Returns the exit code."""
    end_at_once_on_ctrl_c()
    from es_queue.errors import EXIT_INTERRUPTED, EsQueueError
    from es_queue.numerics import fix_numeric_environment

    try:
        fix_numeric_environment()
        extend_path()
        from master.named_redis import warning_line
        from master.options import parse

        values, launch = parse(argv)
        for text in launch.warnings:
            print(warning_line(text), file=sys.stderr, flush=True)
        for text in () if launch.quiet else launch.told:
            print(text, file=sys.stderr, flush=True)
        if launch.ask is not None:
            from master.control import control

            signal.signal(signal.SIGINT, signal.default_int_handler)
            return control(launch.ask, launch)
        refuse_shadowed()
        collect_garbage_seldom()
        return study_or_run(values, launch)
    except EsQueueError as error:
        from es_queue.wording import printable

        # What a file or a server says may be in it; the lines are ours.
        for line in f"es-master: {error}".split("\n"):
            print(printable(line, 4000), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def end_at_once_on_ctrl_c() -> None:
    """While modules load there is nothing to clean up, and some of them would turn a KeyboardInterrupt into an ImportError."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, lambda number, frame: os._exit(130))  # as errors.EXIT_INTERRUPTED, not loaded yet


def collect_garbage_seldom() -> None:
    """A generation's answers are no garbage: looking through them for some again and again costs a seventh of the work on them."""
    import gc

    gc.set_threshold(50_000, 20, 100)


def extend_path() -> None:
    """A user's own module:Id stands in the current folder, as for rq worker. Our packages' folder comes before it: they
    would be found after it where they are installed as a link (pip install -e)."""
    from pathlib import Path

    home = str(Path(__file__).resolve().parent.parent)
    if "" not in sys.path and "." not in sys.path:
        sys.path += [folder for folder in (home, ".") if folder not in sys.path]


def refuse_shadowed() -> None:
    """Another package called ``workers`` before ours would make every seat fail: say so now."""
    import importlib.util
    from pathlib import Path

    from es_queue.errors import UsageError

    found = importlib.util.find_spec("workers")
    ours = Path(__file__).resolve().parent.parent / "workers"
    where = None if found is None or not found.submodule_search_locations else Path(next(iter(found.submodule_search_locations))).resolve()
    if where != ours:
        raise UsageError(f"the package 'workers' that Python finds is {where}, not es-queue's: run from another folder, or take that one off PYTHONPATH")


def study_or_run(values: dict[str, Any], launch: Launch) -> int:
    """One run, or one for each of several seeds."""
    from pathlib import Path

    from es_queue.private_folder import close_new_files
    from master.study.seeds import study, study_resume

    close_new_files(launch.shared)
    if launch.seeds:
        return study(values, launch)
    if launch.resume is not None and ((launch.run_dir or Path("runs") / launch.resume) / "seeds.json").exists():
        from master.session import resumable_changes

        return study_resume(launch, resumable_changes(values))
    return run(values, launch)


def run(values: dict[str, Any], launch: Launch, stop: StopSignals | None = None) -> int:
    """Train with a view for this terminal; Ctrl-C once stops between two looks at the results, twice at once.

    Before the run has begun it ends the command, which leaves nothing behind. stop: for whoever wants to know whether
    this process was told to stop.
    """
    from es_queue.errors import EXIT_DONE, EXIT_INTERRUPTED
    from es_queue.numerics import single_threaded_blas
    from es_queue.protocol.clocks import clocks_from_environment
    from master.options import resolve
    from master.session import Session, resumable_changes

    single_threaded_blas()
    config = resolve(values) if launch.resume is None else None
    reports: list[Report] = []

    def view(place: Place, config: RunConfig, redis_name: str) -> Report:
        from master.report import Report

        reports.append(Report(place.run, place.run_dir, config, quiet=launch.quiet, json_lines=launch.json, redis_name=redis_name, tensorboard=launch.tensorboard))
        return reports[-1]

    stop = StopSignals() if stop is None else stop
    session = Session(launch, clocks_from_environment(), view, lambda: stop.asked, lambda text: print(text, file=sys.stderr, flush=True))
    stop.install(session)
    try:
        summary = session.drive(config, resumable_changes(values))
    except Exception:
        if stop.asked and not session.looping:  # a library made something else of the KeyboardInterrupt
            raise KeyboardInterrupt from None
        raise
    finally:
        for report in reports:
            report.close()
    return EXIT_INTERRUPTED if summary["state"] == "stopped" else EXIT_DONE


class StopSignals:
    """SIGINT, SIGTERM and a closed terminal: the first asks once the run has begun, and is a KeyboardInterrupt before; the second ends everything at once."""

    def __init__(self) -> None:
        self.asked = False

    def install(self, session: Session) -> None:
        from es_queue.errors import EXIT_INTERRUPTED

        def handle(number: int, frame: object) -> None:
            if self.asked:
                session.kill()
                os._exit(EXIT_INTERRUPTED)
            self.asked = True
            if not session.looping:
                raise KeyboardInterrupt

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, handle)


if __name__ == "__main__":
    sys.exit(main())
