"""Formats an es-queue command for this host: with its folder unless the search path contains it."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path


def format_command(name: str) -> str:
    """``es-play``, or ``.venv/bin/es-play`` if a shell would not find this program's own."""
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
