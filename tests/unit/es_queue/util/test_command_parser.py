"""What all es- commands do with their command lines."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.cases import each_case

HELP = "from {module} import main; main(['{flag}'])"


@each_case(
    ("module", "flag", "unbuffered"),
    [
        ("master.cli.main", "--help", ""),
        ("master.cli.main", "--help", "1"),
        ("master.cli.main", "--help-all", ""),
        ("master.status.command", "--help", ""),
        ("workers.play.cli", "--version", ""),
    ],
)
def test_help_that_nobody_reads_ends_quietly(module: str, flag: str, unbuffered: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as closed:
        ended = subprocess.run(
            [sys.executable, "-c", HELP.format(module=module, flag=flag)],
            stdout=closed,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            check=False,
        )
    assert (ended.returncode, ended.stderr) == (0, b"")
