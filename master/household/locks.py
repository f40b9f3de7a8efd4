"""Locked files: the kernel lets go of them when a process ends, however it ends; a stored pid would lie."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from es_queue.errors import RunFolderError
from es_queue.private_folder import regular

#: Whoever only asks whether a lock is free holds it for an instant; who wants it tries a little longer.
INSTANT = 0.5
POLL_SECONDS = 0.01


def try_lock(path: Path) -> int | None:
    """A descriptor that holds the lock of ``path``, or None when another holds it. Raises RunFolderError (disk)."""
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise RunFolderError(f"{path} cannot be opened: {error.strerror}; give a --run-dir that you may write to") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def is_locked(path: Path) -> bool:
    """Whether somebody holds the lock of ``path`` now."""
    descriptor = try_lock(path)
    if descriptor is not None:
        os.close(descriptor)
    return descriptor is None


def take_lock(path: Path, seconds: float = INSTANT) -> int | None:
    """As ``try_lock``, tried for ``seconds``."""
    deadline = time.monotonic() + seconds
    while (descriptor := try_lock(path)) is None and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    return descriptor


def write_pid(descriptor: int, pid: int) -> None:
    """Say in a locked file who holds it."""
    os.pwrite(descriptor, b"%-20d" % pid, 0)


def pid_in(path: Path) -> int | None:
    """The pid that a locked file tells, None where it tells none."""
    try:
        with open(path, "rb", opener=regular) as file:
            return int(file.read(20))
    except (OSError, ValueError):
        return None
