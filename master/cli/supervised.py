"""Begin a run, or resume it if it exists: python -m master.cli.supervised --run RUN [options]

Docker, Kubernetes, systemd and Slurm repeat the same command after a crash, a lost host or a
reboot. The options are those of es-master.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from master.cli import main as cli

if TYPE_CHECKING:
    from master.run.launch import Launch


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns es-master's exit codes, but 0 if a person stopped the run, so that a
    supervisor does not restart it.
    """
    cli.exit_on_sigint()
    signal.signal(
        signal.SIGTERM, signal.getsignal(signal.SIGINT)
    )  # the first process of a container has no default of its own
    words = list(sys.argv[1:] if argv is None else argv)
    if {"-h", "--help", "--help-all"} & set(words):
        print(__doc__)  # above the help of es-master
    return cli.act(words, resume_or_begin)


def validate_launch(launch: Launch) -> None:
    """Raises UsageError for what cannot be repeated."""
    # start-up: Ctrl-C first
    from es_queue.errors import UsageError

    if launch.run is None:
        raise UsageError("the run needs a name, so that it can be found again: give --run RUN")
    if launch.control_args is not None or launch.seeds:
        raise UsageError(
            "python -m master.cli.supervised trains one run: leave out --seeds and the flags "
            "that control a run"
        )


def resume_or_begin(values: dict[str, Any], launch: Launch) -> int:
    """Continue the run with its changed settings, or begin it if neither its folder nor Redis has a
    checkpoint.
    """
    validate_launch(launch)
    # start-up: Ctrl-C first
    from es_queue.errors import EXIT_DONE, EXIT_INTERRUPTED, NoRunError
    from master.processes import StopSignals
    from master.run.launch import named_run

    stop = StopSignals()
    try:
        code = cli.run({}, replace(launch, run=None, warm_start=None, resume=launch.run), stop)
    except NoRunError:
        folder = named_run(launch.run or "", launch).folder
        if not any((folder / "checkpoints").glob("*")):  # its master was killed before the first
            (folder / "config.json").unlink(missing_ok=True)
        code = cli.run(values, launch, stop)
    return EXIT_DONE if code == EXIT_INTERRUPTED and not stop.requested else code


if __name__ == "__main__":
    # start-up: Ctrl-C first
    from es_queue.user_code import leave_current_folder

    leave_current_folder()
    sys.exit(main())
