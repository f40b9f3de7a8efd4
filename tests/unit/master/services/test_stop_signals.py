"""A second Ctrl-C ends es-master at once, and leaves the terminal in order."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import master

TWICE = """
import os, signal
from master.processes import StopSignals

class Begun:
    is_looping, resume_command = True, "es-master --resume walker"

stop = StopSignals()
begun = Begun()
stop.install(lambda: begun.is_looping, lambda: begun.resume_command)
os.kill(os.getpid(), signal.SIGINT)
assert stop.requested
os.kill(os.getpid(), signal.SIGINT)
"""


def test_a_second_ctrl_c_shows_the_cursor_and_how_to_resume() -> None:
    outer, inner = pty.openpty()
    process = subprocess.run(
        [sys.executable, "-c", TWICE],
        stdout=inner,
        stderr=subprocess.PIPE,
        cwd=Path(master.__file__).parents[1],
        timeout=120,
    )
    assert process.returncode == 130
    assert process.stderr == b"ended at once; continue with: es-master --resume walker\n"
    assert os.read(outer, 100) == b"\x1b[?25h\r\n"
    os.close(outer)
    os.close(inner)
