"""Locked files. The kernel releases a lock when its process ends, even if it is killed."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from es_queue.errors import RunFolderError

#: A process that checks a lock holds it for an instant; ``take_lock`` waits longer.
RETRY_SECONDS = 0.5
POLL_SECONDS = 0.01
REMEDY = "give a --run-dir that you may write to"


def try_lock(path: Path, remedy: str = REMEDY) -> int | None:
    """A descriptor that holds the lock of ``path``, or None if another holds it.

    Raises RunFolderError with the ``remedy`` if the file cannot be opened, or is a link.
    """
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise RunFolderError(f"{path} cannot be opened: {error.strerror}; {remedy}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def take_lock(path: Path, seconds: float = RETRY_SECONDS, remedy: str = REMEDY) -> int | None:
    """Like ``try_lock``, retried for ``seconds``."""
    deadline = time.monotonic() + seconds
    while (descriptor := try_lock(path, remedy)) is None and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    return descriptor


def write_pid(descriptor: int, pid: int) -> None:
    os.pwrite(descriptor, b"%-20d" % pid, 0)
