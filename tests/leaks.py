"""No password of a test may be found in anything that the tests leave: every one of them carries
one mark.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

#: In every password that a test makes; nothing else may hold it.
MARK = "xyzzyPa55"
#: What is meant to hold a password, as long as its owner alone may read it.
KEPT_PRIVATE = 0o077
PIECE = 2**20


def password(name: str) -> str:
    """A password for a test, with signs that a URL, a shell and a config file would each take for
    their own.
    """
    return f"{MARK}-{name}-a/b?c#d@e:f%25 g'h\"i"


def simple_password(name: str) -> str:
    """One that stands in a URL and on a line of redis.conf as it is."""
    return f"{MARK}-{name}"


def digest(secret: str) -> str:
    """The form in which a server's file of users may hold a password."""
    return hashlib.sha256(secret.encode()).hexdigest()


def leaks_in(folder: Path) -> list[str]:
    """Files under a folder that hold the mark, or the start of it in a torn word; private files
    that are meant to are left out.
    """
    needle = MARK.encode()
    return sorted(
        str(path)
        for path in files_in(folder)
        if needle in str(path).encode() or (holds(path, needle) and not meant_to(path))
    )


def files_in(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder, followlinks=False):
        folders[:] = [name for name in folders if not (Path(place) / name).is_symlink()]
        for name in names:
            path = Path(place) / name
            try:
                if stat.S_ISREG(path.lstat().st_mode):
                    yield path
            except OSError:
                continue


def holds(path: Path, needle: bytes) -> bool:
    """Whether a file holds some bytes, read piece by piece."""
    try:
        with path.open("rb") as file:
            tail = b""
            while piece := file.read(PIECE):
                if needle in tail + piece:
                    return True
                tail = piece[-len(needle) :]
    except OSError:
        return False
    return False


def meant_to(path: Path) -> bool:
    """Whether a file is one of those that hold a password for their owner: by name, and
    by rights.
    """
    return path.name in PRIVATE_NAMES and not path.stat().st_mode & KEPT_PRIVATE


#: Files that hold a password by their purpose.
PRIVATE_NAMES = {
    "password",
    "url",
    "redis.conf",
    "master.password",
    "worker.password",
    "viewer.password",
    "es-queue-url",
}
