"""NoiseTable: one memory-mapped file of float32 standard normals per host. A noise index is a
position in it.

Every CPU and numpy release makes the same bytes (``normals.py``), and a smaller table of a seed is
a prefix of a larger one. Another program of the same user can overwrite the file, so each process
compares random parts with the generator, when it opens the table and every few publications.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from es_queue.errors import RunFolderError
from es_queue.numerics.arrays import Floats, Integers
from es_queue.numerics.normals import RECIPE as RECIPE
from es_queue.numerics.normals import RUN, generate_table, runs
from es_queue.private_files import cache_folder, replacing, take_lock

DEFAULT_SEED = 123
SMALLEST_DEFAULT = 2**22
LARGEST_DEFAULT = 250_000_000
#: Size of a default table in multiples of the parameters.
SLICES = 64
#: How long to wait for another process to make the table: a gigabyte takes up to a minute.
LOCK_SECONDS = 600.0
FOLDER_VARIABLE = "ES_QUEUE_NOISE_DIR"
#: Random runs of RUN floats to compare with the generator, and publications between later checks,
#: which take 0.2 ms. A half wrong table passes 16 runs once in 65,536 times.
CHECKED_WHEN_OPENED, CHECKED_LATER, RECHECK_EVERY = 16, 4, 8


class NoiseTable:
    """Read-only standard normals, float32[size]; equal (seed, size) means equal bytes everywhere.

    digest: of the content, 32 hexadecimal digits; path: None in memory
    """

    def __init__(self, values: Floats, seed: int, digest: str, path: Path | None = None) -> None:
        self._values = values
        self.size = len(values)
        self.seed = seed
        self.digest = digest
        self.path = path
        self._publications = 0

    @classmethod
    def open(cls, size: int, directory: Path | None = None, seed: int = DEFAULT_SEED) -> NoiseTable:
        """Map the host's table of ``size`` floats. The first process makes it; the others wait. One
        that fails the check is made again, with a RuntimeWarning; in memory if its file cannot be
        replaced.

        directory: by default $ES_QUEUE_NOISE_DIR, else the user's cache, else a temporary folder

        Raises RunFolderError for a problem with the disk.
        """
        with os_errors_explained(directory):
            folder = (
                ensure_private_folder(directory, writable=False) if directory else default_folder()
            )
        path = table_path(folder, seed, size)
        for _ in range(2):
            with os_errors_explained(folder):
                digest = stored_digest(path, seed, size) or create_if_missing(path, seed, size)
                values = map_table(path, size)
            if is_sound(values, seed, CHECKED_WHEN_OPENED):
                return cls(values, seed, digest, path)
            text = f"{path} does not contain the numbers of its seed: another program changed it"
            text += "; it is made again"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
            with suppress(OSError):
                path.with_suffix(".json").unlink(missing_ok=True)
        return cls.in_memory(size, seed)

    @classmethod
    def in_memory(cls, size: int, seed: int = DEFAULT_SEED) -> NoiseTable:
        """Without a file."""
        values = np.empty(size, dtype="<f4")

        def put(start: int, piece: Floats) -> None:
            values[start : start + len(piece)] = piece

        digest = generate_table(seed, size, put)
        values.flags.writeable = False
        return cls(values, seed, digest)

    def row(self, index: int, size: int) -> Floats:
        """The perturbation at ``index``: a read-only view float32[size]. Raises ValueError."""
        return self.views(np.array([index]), 0, size)[0]

    def rows(self, indices: Integers, start: int, stop: int) -> Floats:
        """Columns start to stop of each perturbation: a copy, indices int64[S] to float32[S, stop -
        start]. Raises ValueError if an index is not an integer or is outside the table.
        """
        starts = self._starts(indices, start, stop)
        shape = (self.size - (stop - start) + 1, stop - start)
        windows: Floats = np.ndarray(shape, self._values.dtype, self._values, strides=(4, 4))
        return windows[starts]

    def views(self, indices: Integers, start: int, stop: int) -> list[Floats]:
        """Read-only rows without a copy; raises the same errors."""
        width = stop - start
        return [
            self._values[first : first + width]
            for first in self._starts(indices, start, stop).tolist()
        ]

    def _starts(self, indices: Integers, start: int, stop: int) -> Integers:
        # numpy would use other noise for a negative index, and broadcast a short row.
        starts = np.asarray(indices)
        if starts.ndim != 1 or starts.dtype.kind not in "iu":
            raise ValueError(
                f"noise indices are integers[S], not {starts.dtype}{list(starts.shape)}"
            )
        if not 0 <= start <= stop <= self.size:
            raise ValueError(
                f"columns {start} to {stop} do not fit a noise table of {self.size} floats"
            )
        low, high = (int(starts.min()), int(starts.max())) if starts.size else (0, 0)
        if low < 0 or high > self.size - stop:
            raise ValueError(
                f"noise index {low if low < 0 else high} is not in 0 .. {self.size - stop}"
            )
        return starts.astype(np.int64) + start

    def recheck(self) -> str:
        """Every RECHECK_EVERY-th call compares random parts with the generator. If they differ,
        this process continues with a new table in memory, and a sentence about it is returned, else
        "".
        """
        self._publications += 1
        if self.path is None or self._publications % RECHECK_EVERY:
            return ""
        if is_sound(self._values, self.seed, CHECKED_LATER):
            return ""
        path, table = self.path, NoiseTable.in_memory(self.size, self.seed)
        self._values, self.path = table._values, None
        return (
            f"the noise table {path} was changed while this process used it, so results since the "
            "last check may be wrong; the process now uses its own table: remove the file, and "
            f"set {FOLDER_VARIABLE} to a folder that no other program writes to"
        )


def default_size(parameters: int) -> int:
    """Floats of the table for that many parameters: 16 MB to 1 GB, unless the policy needs more."""
    scaled = 1 << max(0, SLICES * parameters - 1).bit_length()
    return max(min(max(SMALLEST_DEFAULT, scaled), LARGEST_DEFAULT), 2 * parameters)


def is_sound(values: Floats, seed: int, count: int) -> bool:
    """Whether ``count`` random runs of the table match the seed."""
    drawn = np.frombuffer(os.urandom(8 * count), dtype=np.uint64)
    starts = (drawn % np.uint64(-(-len(values) // RUN))).astype(np.int64) * RUN
    for start, expected in zip(starts.tolist(), runs(seed, starts), strict=True):
        run = values[start : start + RUN]
        if not np.array_equal(run, expected[: len(run)]):
            return False
    return True


# --- the file


def default_folder() -> Path:
    """This user's folder of tables, made if missing. Raises OSError, RunFolderError."""
    chosen = os.environ.get(FOLDER_VARIABLE)
    if chosen:
        return ensure_private_folder(Path(chosen), writable=False)
    with suppress(OSError, RunFolderError, RuntimeError):
        return ensure_private_folder(cache_folder() / "noise")
    return ensure_private_folder(Path(tempfile.gettempdir()) / f"es-queue-noise-{os.geteuid()}")


def ensure_private_folder(folder: Path, *, writable: bool = True) -> Path:
    """``folder``, made with mode 0700 if missing. Raises RunFolderError if others may write there,
    OSError if it cannot be made, or written to although ``writable``.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK | os.X_OK if writable else os.X_OK):
        raise PermissionError(errno.EACCES, "it is not writable", str(folder))
    validate_ownership(folder)
    return folder


def validate_ownership(path: Path) -> None:
    """Raise RunFolderError unless ``path``, and a link's target, is this user's and writable only
    by them.
    """
    for about in (path.lstat(), path.stat()):
        if about.st_uid != os.geteuid():
            raise RunFolderError(
                f"{path} belongs to another user (uid {about.st_uid}); remove it or set "
                f"{FOLDER_VARIABLE}"
            )
    if stat.S_IMODE(about.st_mode) & 0o022:
        raise RunFolderError(
            f"{path} can be written by other users; chmod go-w it or set {FOLDER_VARIABLE}"
        )


def table_path(folder: Path, seed: int, size: int) -> Path:
    return folder / f"normals-{RECIPE}-{seed}-{size}.f32"


def map_table(path: Path, size: int) -> Floats:
    return np.memmap(path, dtype="<f4", mode="r", shape=(size,)).view(np.ndarray)


def stored_digest(path: Path, seed: int, size: int) -> str | None:
    """The digest beside a complete table; None if it must be made. Raises RunFolderError."""
    sidecar = path.with_suffix(".json")
    try:
        for file in (path, sidecar):
            validate_ownership(file)
        about = json.loads(sidecar.read_text())
        whole = path.stat().st_size == 4 * size
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    digest = about.get("digest") if isinstance(about, dict) else None
    agrees = whole and isinstance(digest, str) and about == sidecar_contents(seed, size, digest)
    return digest if agrees else None


def create_if_missing(path: Path, seed: int, size: int) -> str:
    """Make the table and its description unless another process does; returns its digest. Both have
    other names until they are complete, whose leftovers the next process removes.
    """
    with exclusive_lock(path.with_suffix(".lock")):
        if digest := stored_digest(path, seed, size):
            return digest
        free, needed = shutil.disk_usage(path.parent).free, 4 * size
        if free < needed + 2**20:
            raise RunFolderError(
                f"the noise table takes {needed / 1e6:.0f} MB and {path.parent} has "
                f"{free / 1e6:.0f} MB free; "
                f"set {FOLDER_VARIABLE} to a larger local disk, or lower --noise-size"
            )
        with replacing_partial(path) as file:
            # at once, because threads that extend a file wait for each other
            os.ftruncate(file.fileno(), needed)

            def put(start: int, piece: Floats) -> None:
                rest, offset = piece.data.cast("B"), 4 * start
                while rest:
                    written = os.pwrite(file.fileno(), rest, offset)
                    rest, offset = rest[written:], offset + written

            digest = generate_table(seed, size, put)
        with replacing_partial(path.with_suffix(".json")) as file:
            file.write(json.dumps(sidecar_contents(seed, size, digest), indent=2).encode())
        return digest


def sidecar_contents(seed: int, size: int, digest: str) -> dict[str, Any]:
    return {"recipe": RECIPE, "seed": seed, "size": size, "digest": digest}


def replacing_partial(path: Path) -> AbstractContextManager[BinaryIO]:
    return replacing(path, durable=True, mode=0o400, fresh=path.with_name(f"{path.name}.partial"))


@contextmanager
def exclusive_lock(path: Path, seconds: float = LOCK_SECONDS) -> Iterator[None]:
    remedy = f"set {FOLDER_VARIABLE} to a local disk"
    descriptor = take_lock(path, seconds, remedy)
    if descriptor is None:
        raise RunFolderError(
            f"another process has held {path} for {seconds:.0f} s; end it or {remedy}"
        )
    try:
        yield
    finally:
        os.close(descriptor)


@contextmanager
def os_errors_explained(folder: Path | None) -> Iterator[None]:
    """One sentence with the fix."""
    try:
        yield
    except OSError as error:
        place = folder or error.filename or "its folder"
        reason = error.strerror or error
        raise RunFolderError(
            f"the noise table cannot be kept in {place}: {reason}; set {FOLDER_VARIABLE} to "
            "a local disk"
        ) from error
