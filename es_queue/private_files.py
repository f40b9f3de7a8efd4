"""Folders, files and locks that other accounts can neither read nor redirect by a link."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from es_queue.errors import RunFolderError

#: Rights of a run's folder: only its user, or also its group, to which its files then belong.
PRIVATE, SHARED = 0o700, 0o2770
#: This process's original umask; None while it is unchanged.
_first_umask: int | None = None


def host_private_directory() -> Path | None:
    """This account's folder for es-queue, mode 700; None if it cannot be created safely."""
    folder = Path(tempfile.gettempdir()) / f"es-queue-{os.getuid()}"
    return folder if is_private(folder) else None


def cache_folder() -> Path:
    """es-queue's folder in this user's cache. Raises RuntimeError without a home."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    home = Path(cache) if Path(cache).is_absolute() else Path.home() / ".cache"
    return home / "es-queue"


def is_private(folder: Path) -> bool:
    """Whether ``folder``, made if missing, is a real one of this user, closed to all others."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        about = folder.lstat()
    except OSError:
        return False
    return is_closed(about)


def is_closed(about: os.stat_result) -> bool:
    """Whether an ``lstat`` result is such a folder."""
    return (
        stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid() and not about.st_mode & 0o077
    )


# --- a run's folder


def close_new_files(shared: bool) -> None:
    """Close this process's new files to others, and to the group unless shared; children too."""
    global _first_umask
    former = os.umask(0o007 if shared else 0o077)
    _first_umask = former if _first_umask is None else _first_umask


def make_run_folder(folder: Path, shared: bool) -> None:
    """Create ``folder`` with a run's rights, and its parents with the user's usual ones.

    An existing folder gets these rights only if it is empty or contains a run. Raises OSError, and
    RunFolderError for a folder that another account can write.
    """
    if folder.exists():
        refuse_writable(folder, shared)
    else:
        now = os.umask(0o077)
        os.umask((now if _first_umask is None else _first_umask) | stat.S_IWOTH)
        try:
            with suppress(FileExistsError):  # if this is a file, the next line raises
                folder.parent.mkdir(parents=True, exist_ok=True)
        finally:
            os.umask(now)
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
    names = {path.name for path in folder.iterdir()}
    if folder.stat().st_uid == os.geteuid() and (
        not names or {"config.json", "seeds.json"} & names
    ):
        folder.chmod(SHARED if shared else PRIVATE)


def refuse_writable(folder: Path, shared: bool) -> None:
    """Raises RunFolderError for a run's folder to which another account can add files."""
    about = folder.stat()
    is_own = about.st_uid == os.geteuid()
    if not is_own and about.st_uid != 0 and not shared:
        raise RunFolderError(
            f"run-dir {folder} belongs to another user (uid {about.st_uid}): give a folder of "
            "your own, or --shared if you trust them"
        )
    if is_own and not any(folder.iterdir()):
        return
    if about.st_mode & stat.S_IWOTH:
        raise RunFolderError(
            f"run-dir {folder} can be written by every user of this host: check what is in it and "
            f"chmod {'o-w' if shared else 'go-w'} {folder}, or give another --run-dir"
        )
    if about.st_mode & stat.S_IWGRP and not shared:
        raise RunFolderError(
            f"run-dir {folder} can be written by its group: give --shared if you trust the group, "
            f"or check what is in it and chmod g-w {folder}"
        )


def refuse_open_parents(folder: Path) -> str:
    """Raises RunFolderError if another account can rename or link one of the folders above; returns
    a warning for root's own folders, because containers' volumes are often open to all.
    """
    warning = ""
    for parent in dict.fromkeys((*folder.absolute().parents, *folder.resolve().parents)):
        try:
            about = parent.lstat()
        except FileNotFoundError:  # it is going to be this account's
            continue
        is_trusted = about.st_uid in (0, os.geteuid())
        if stat.S_ISLNK(about.st_mode):
            reason = "" if is_trusted else f"{parent} is a link of another user"
        elif about.st_mode & stat.S_IWOTH and not (is_trusted and about.st_mode & stat.S_ISVTX):
            reason = f"{parent} can be written by all (chmod o-w {parent})"
        else:
            reason = ""
        if reason:
            text = f"other users of this host can replace run-dir {folder}, because {reason}"
            if about.st_uid != 0:
                raise RunFolderError(f"{text}: give another --run-dir")
            warning = text
    return warning


# --- files


def create_new(path: Path, mode: int = 0o666) -> int:
    """A descriptor of a new file. Raises OSError, also if a file or a link exists."""
    return os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, mode)


def random_name(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}")


@contextmanager
def replacing(
    path: Path, *, durable: bool = False, mode: int = 0o666, fresh: Path | None = None
) -> Iterator[BinaryIO]:
    """A new file, which replaces ``path`` on success, and is removed otherwise. Raises OSError.

    durable: with fsync of the file, and of its folder
    mode: the file's rights from its first byte, which the umask restricts
    fresh: the new file's name, free under a lock or in a private folder; a random one by default
    """
    if fresh is None:
        fresh = random_name(path)
    else:
        fresh.unlink(missing_ok=True)
    try:
        descriptor = create_new(fresh, mode)
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(descriptor)
        fresh.replace(path)
    except BaseException:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise
    if durable:
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def no_link(path: str, flags: int) -> int:
    """An opener for files written in place: it follows no link and waits for no pipe's reader."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


# --- locks, which the kernel releases when their process ends

REMEDY = "give a --run-dir that you may write to"


def try_lock(path: Path, remedy: str = REMEDY, mode: int = 0o600) -> int | None:
    """A descriptor that holds the lock of ``path``, or None if another holds it. A file system
    without locks locks nothing. Raises RunFolderError with the ``remedy`` if it cannot be opened.
    """
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, mode)
    except OSError as error:
        raise RunFolderError(f"{path} cannot be opened: {error.strerror}; {remedy}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            return descriptor
        os.close(descriptor)
        return None
    return descriptor


def take_lock(path: Path, seconds: float = 0.5, remedy: str = REMEDY) -> int | None:
    """Like ``try_lock``, retried for ``seconds``: a process that checks a lock holds it briefly."""
    deadline = time.monotonic() + seconds
    while (descriptor := try_lock(path, remedy)) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    return descriptor
