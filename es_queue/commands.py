"""How a person must write one of our commands here: with its folder where the search path does not lead to it."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path


def shown_command(name: str) -> str:
    """``es-play``, or ``.venv/bin/es-play`` when a shell would not find the one that belongs to this program."""
    folder = Path(sys.executable).parent
    own = folder / name
    found = shutil.which(name)
    if not own.exists() or (found is not None and Path(found).absolute() == own.absolute()):
        return name
    try:
        near = os.path.relpath(own)
    except ValueError:  # another drive
        return str(own)
    return str(own) if near.startswith("..") else near
