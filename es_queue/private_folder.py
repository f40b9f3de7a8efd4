"""A folder of this user alone on a local disk, for what the workers of one host share."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def private_folder() -> Path | None:
    """The host's shared folder, mode 700 and ours; None where it cannot be had safely."""
    folder = Path(tempfile.gettempdir()) / f"es-queue-{os.getuid()}"
    return folder if is_private(folder) else None


def is_private(folder: Path) -> bool:
    """Make ``folder`` when it is missing; whether it is a real folder, ours, and closed to everyone else."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        about = folder.lstat()
    except OSError:
        return False
    return folder.is_dir() and not folder.is_symlink() and about.st_uid == os.getuid() and not about.st_mode & 0o077
