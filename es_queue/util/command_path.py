"""How to write an es-queue command on this host: with its folder if the search path does not
contain it.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path


def format_command(name: str) -> str:
    """``es-play``, or ``.venv/bin/es-play`` when a shell would not find the one that belongs to
    this program.
    """
    folder = Path(sys.executable).parent
    executable = folder / name
    on_path = shutil.which(name)
    if not executable.exists() or (
        on_path is not None and Path(on_path).absolute() == executable.absolute()
    ):
        return name
    try:
        relative = os.path.relpath(executable)
    except ValueError:  # another drive
        return str(executable)
    return str(executable) if relative.startswith("..") else relative
