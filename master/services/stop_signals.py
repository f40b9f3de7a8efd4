"""How es-master ends by Ctrl-C: the first asks, the second ends at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from es_queue.errors import EXIT_INTERRUPTED


def leave_at_once(resume_command: str) -> NoReturn:
    """End the process without cleaning up: show the cursor again, and print how to continue the
    run.
    """
    hint = f"; continue with: {resume_command}" if resume_command else ""
    for number, text in ((1, "\x1b[?25h\n" if os.isatty(1) else ""), (2, f"ended at once{hint}\n")):
        with suppress(OSError):
            os.write(number, text.encode())
    os._exit(EXIT_INTERRUPTED)


class StopSignals:
    """SIGINT, SIGTERM and a closed terminal. The first signal asks a run to stop, or is a
    KeyboardInterrupt before it begins; the second ends everything.
    """

    def __init__(self) -> None:
        self.requested = False

    def install(
        self,
        has_begun: Callable[[], bool],
        resume_command: Callable[[], str],
        kill: Callable[[], None] = lambda: None,
    ) -> None:
        """kill: ends at once what does not end with this process; resume_command: what continues
        the run after it
        """

        def handle(number: int, frame: object) -> None:
            if self.requested:
                kill()
                leave_at_once(resume_command())
            self.requested = True
            if not has_begun():
                raise KeyboardInterrupt

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, handle)
