"""How es-master ends after a second Ctrl-C."""

from __future__ import annotations

import os
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
