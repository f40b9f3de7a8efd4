"""A seal on a private server's folder: whether this account made the folder here, or it is a copy.

The seal authenticates numbers that the file system assigns and that an archive or a copy does not
keep: the device and inode of the folder, and the inode of the seal itself. The key never leaves the
account.
"""

from __future__ import annotations

import errno
import hmac
import os
import secrets
from contextlib import suppress
from pathlib import Path

from es_queue.security.private_directory import (
    cache_folder,
    create_new,
    host_private_directory,
    is_private,
    random_name,
    regular_no_link,
)

NAME = "seal"
KEY_NAME, KEY_BYTES = "run-folders.key", 32
SEAL_BYTES = 32


def seal(folder: Path) -> None:
    """Seal ``folder``, in place of a former seal. Raises OSError, also if no key can be stored."""
    path = folder / NAME
    path.unlink(missing_ok=True)
    descriptor = create_new(path, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(_expected(folder, os.fstat(descriptor)))


def foreign(folder: Path) -> str:
    """Why ``folder`` does not count as made here by this account; empty if it does."""
    try:
        stored_seal, about = _read(folder / NAME, SEAL_BYTES)
    except FileNotFoundError:
        return (
            f"{folder} has no seal (it was copied without one, unpacked, made by an earlier "
            "version, or no key could be stored)"
        )
    except OSError as error:
        return f"the seal of {folder} cannot be read ({error.strerror})"
    try:
        if hmac.compare_digest(stored_seal, _expected(folder, about)):
            return ""
    except OSError as error:
        return f"the seal of {folder} cannot be checked without a key ({error.strerror})"
    return (
        f"the seal of {folder} does not fit (it was copied, unpacked, or made by another account "
        "or host)"
    )


def _expected(folder: Path, about: os.stat_result) -> bytes:
    """The seal (32 bytes) of ``folder`` in a file with these properties. Raises OSError."""
    place = folder.stat()
    numbers = f"{place.st_dev} {place.st_ino} {about.st_ino}"
    return hmac.digest(_key(), numbers.encode(), "sha256")


def _key() -> bytes:
    """This account's key, made when first needed. Raises OSError if it cannot be stored."""
    folders = [host_private_directory()]
    with suppress(RuntimeError):  # no home
        folders.insert(0, cache_folder() / "keys")
    for folder in folders:
        with suppress(OSError):
            if folder is not None and is_private(folder):
                return _key_in(folder / KEY_NAME)
    raise PermissionError(
        errno.EACCES, f"{KEY_NAME} can be stored neither in the cache nor in TMPDIR"
    )


def _key_in(path: Path) -> bytes:
    """The key in ``path``, made if it is missing; one process of several makes it. Raises
    OSError.
    """
    if not os.path.lexists(path):
        fresh = random_name(path)
        try:
            with os.fdopen(create_new(fresh, 0o600), "wb") as file:
                file.write(secrets.token_bytes(KEY_BYTES))
            with suppress(FileExistsError):
                os.link(fresh, path)
        finally:
            fresh.unlink(missing_ok=True)
    key, about = _read(path, KEY_BYTES)
    if len(key) != KEY_BYTES or about.st_uid != os.geteuid() or about.st_mode & 0o077:
        raise PermissionError(errno.EACCES, "is not private, or damaged", str(path))
    return key


def _read(path: Path, size: int) -> tuple[bytes, os.stat_result]:
    """At most ``size + 1`` bytes of a regular file (not a link), and its properties. Raises
    OSError.
    """
    with open(path, "rb", opener=regular_no_link) as file:
        return file.read(size + 1), os.fstat(file.fileno())
