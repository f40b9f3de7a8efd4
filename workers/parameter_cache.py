"""Published parameters, fetched once per host if they are large."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from es_queue.errors import RunFolderError
from es_queue.numerics.fingerprint import bytes_digest
from es_queue.private_files import host_private_directory, replacing, take_lock
from es_queue.protocol.messages import PUBLICATION

Data = bytes | memoryview
MIN_SHARED_BYTES = 2**18  # bytes; below, asking Redis is cheaper than a lock and a file
NEW = ".new"
LOCK_SECONDS = 5.0


class ParameterCache:
    """One file per publication in a private folder of this user. All the host's workers map it, so
    there is one copy in memory.

    Each reader checks the digest itself. A file is replaced and never changed, so a mapping stays
    valid.

    It raises no errors: if the folder cannot be used, every worker fetches for itself.
    """

    def __init__(
        self, run: str, folder: Path | None = None, lock_seconds: float = LOCK_SECONDS
    ) -> None:
        """``lock_seconds``: seconds to wait for another worker that fetches."""
        self._run, self._lock_seconds = run, lock_seconds
        self._folder = folder or host_private_directory()

    def get(
        self, publication: str, size: int, digest: str, fetch: Callable[[], bytes | None]
    ) -> Data | None:
        """``size`` read-only bytes whose BLAKE2b-128 is ``digest``, from the host's file or by
        ``fetch``; None if it has none.
        """
        if size < MIN_SHARED_BYTES or self._folder is None:
            return data_if_valid(fetch(), size, digest)
        path = self._folder / f"{self._run}-{publication}"
        with ExitStack() as stack:  # one worker of the host fetches, and the others find its file
            # The folder was swept away, its disk is full, or the fetching worker is frozen: fetch
            # without the others.
            with suppress(RunFolderError):
                lock = take_lock(self._folder / f"{self._run}.lock", self._lock_seconds)
                if lock is not None:
                    stack.callback(os.close, lock)
            shared = data_if_valid(map_file(path), size, digest)
            if shared is not None:
                return shared
            data = data_if_valid(fetch(), size, digest)
            if data is not None:
                self._store(path, data)
                return data_if_valid(map_file(path), size, digest) or data
        return None

    def remove_run(self) -> None:
        if self._folder is None:
            return
        with suppress(OSError):
            self._remove_publications(self._folder)
            (self._folder / f"{self._run}.lock").unlink(missing_ok=True)

    def _remove_publications(self, folder: Path) -> None:
        for old in folder.glob(f"{self._run}-*"):
            if PUBLICATION.fullmatch(old.name.removeprefix(f"{self._run}-").removesuffix(NEW)):
                old.unlink(missing_ok=True)

    def _store(self, path: Path, data: Data) -> None:
        """Replace the host's files of this run's former publications."""
        with suppress(OSError):
            self._remove_publications(path.parent)
        with suppress(OSError), replacing(path, fresh=path.with_name(path.name + NEW)) as file:
            file.write(data)


def data_if_valid(data: Data | None, size: int, digest: str) -> Data | None:
    """``data`` if it is the published vector, None otherwise."""
    return data if data is not None and len(data) == size and bytes_digest(data) == digest else None


def map_file(path: Path) -> memoryview | None:
    """The file's bytes without a copy; None if it is missing or empty."""
    try:
        with path.open("rb") as file:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError):
        return None
