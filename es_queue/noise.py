"""NoiseTable: one memory-mapped file of float32 standard normals a host; an index into it is a perturbation.

The numbers come from Philox words by nothing but integer operations, + - * / and sqrt, each of which IEEE 754
rounds in one way only, one numpy call an operation. So every CPU and numpy release makes the same bytes:
``np.log`` and ``Generator.standard_normal`` promise less (float64 ``np.log`` differs with AVX-512 switched off).
A smaller table of a seed is a prefix of a larger one.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import math
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from es_queue.errors import EsQueueError, RunFolderError, UsageError
from es_queue.numerics import DIGEST_BYTES

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Words = npt.NDArray[np.uint64]

#: Raised by any change to the numbers below; part of the file's name, so two releases never share a file.
RECIPE = 1
DEFAULT_SEED = 123
#: Floats that one Philox stream yields; small enough that the arithmetic stays in a core's cache.
CHUNK = 2**15
#: Chunks in flight at once (8 MiB); bounds the maker's memory.
BATCH = 64
MAX_SIZE = 2**32 - 1
SMALLEST_DEFAULT = 2**22
LARGEST_DEFAULT = 250_000_000
#: Parameters' worth of noise that a table has by default: slices overlap, but rarely two of one generation.
SLICES = 64
#: How long to wait for another process to finish the table; the largest takes about a minute on one slow core.
LOCK_SECONDS = 600.0
FOLDER_VARIABLE = "ES_QUEUE_NOISE_DIR"
#: Second half of the Philox key: keeps these streams apart from the run's plan, which is keyed by its seed too.
DOMAIN = int.from_bytes(b"es-noise", "little")


class NoiseTable:
    """Read-only standard normals, float32[size]; equal (seed, size) means equal bytes on every host.

    Attributes: ``size`` (floats), ``seed``, ``digest`` (BLAKE2b-128 of the little-endian bytes, as the maker
    computed it) and ``path`` (None in memory).
    """

    def __init__(self, values: Floats, seed: int, digest: str, path: Path | None = None) -> None:
        self._values = values
        self.size = len(values)
        self.seed = seed
        self.digest = digest
        self.path = path

    @classmethod
    def open(cls, size: int, directory: Path | None = None, seed: int = DEFAULT_SEED) -> NoiseTable:
        """Map the host's table of ``size`` floats; the first process makes it while the others wait.

        ``directory`` defaults to $ES_QUEUE_NOISE_DIR, else the user's cache, else a private temporary folder.
        Raises UsageError for a size or seed that cannot be, RunFolderError for trouble with the disk.
        """
        check_recipe(size, seed)
        with explained(directory):
            folder = private_folder(directory) if directory else default_folder()
        with explained(folder):
            path = folder / f"normals-{RECIPE}-{seed}-{size}.f32"
            digest = stored_digest(path, seed, size) or made_once(path, seed, size)
            values = np.memmap(path, dtype="<f4", mode="r", shape=(size,)).view(np.ndarray)
        return cls(values, seed, digest, path)

    @classmethod
    def in_memory(cls, size: int, seed: int = DEFAULT_SEED) -> NoiseTable:
        """The same table without a file, for tests and tiny runs. Raises UsageError as :meth:`open` does."""
        check_recipe(size, seed)
        values = np.empty(size, dtype="<f4")
        digest = write_normals(seed, size, into_array(values))
        values.flags.writeable = False
        return cls(values, seed, digest)

    def row(self, index: int, size: int) -> Floats:
        """The perturbation at ``index``: a read-only view float32[size]. Raises ValueError outside the table."""
        if isinstance(index, bool | np.bool_) or not isinstance(index, int | np.integer):
            raise ValueError(f"a noise index is an integer, not {type(index).__name__}")
        self._check_bounds(int(index), int(index), 0, size)
        return self._values[int(index) : int(index) + size]

    def rows(self, indices: npt.NDArray[np.int64], start: int, stop: int) -> Floats:
        """Columns start to stop of each perturbation: a copy, indices int64[S] to float32[S, stop - start].

        Raises ValueError before anything is read if an index is no integer or reaches outside the table.
        """
        starts = np.asarray(indices)
        if starts.ndim != 1 or starts.dtype.kind not in "iu":
            raise ValueError(f"noise indices are integers[S], not {starts.dtype}{list(starts.shape)}")
        low, high = (int(starts.min()), int(starts.max())) if starts.size else (0, 0)
        self._check_bounds(low, high, start, stop)
        windows = np.lib.stride_tricks.sliding_window_view(self._values, stop - start)
        return windows[starts.astype(np.int64) + start]

    def verify(self) -> bool:
        """Whether the content has the digest that its maker wrote down; reads it all, about a second a gigabyte."""
        return hashlib.blake2b(self._values.data, digest_size=DIGEST_BYTES).hexdigest() == self.digest

    def _check_bounds(self, low: int, high: int, start: int, stop: int) -> None:
        # numpy would answer a negative index with other noise, and a late one with a short row that broadcasts.
        if not 0 <= start <= stop <= self.size:
            raise ValueError(f"columns {start} to {stop} do not fit a noise table of {self.size} floats")
        if low < 0 or high > self.size - stop:
            raise ValueError(f"noise index {low if low < 0 else high} is not in 0 .. {self.size - stop}")


def default_size(parameters: int) -> int:
    """Floats of the table for a policy of that many parameters: 16 MB at least, 1 GB unless the policy needs more."""
    grown = 1 << max(0, SLICES * parameters - 1).bit_length()
    return max(min(max(SMALLEST_DEFAULT, grown), LARGEST_DEFAULT), 2 * parameters)


def check_recipe(size: int, seed: int) -> None:
    """Raise UsageError unless a table of that size (floats) and seed can be made."""
    if not 1 <= size <= MAX_SIZE:
        raise UsageError(f"a noise table has 1 to {MAX_SIZE} floats, not {size}")
    if not 0 <= seed < 2**64:
        raise UsageError(f"the seed of a noise table is in 0 .. 2**64 - 1, not {seed}")


# --- the numbers ------------------------------------------------------------------------------------------

LN2 = 0.6931471805599453
#: log m = 2 (s + s^3/3 + s^5/5 ...) with s = (m - 1)/(m + 1); |s| < 0.172, so the error is below 1e-13.
LOG_SERIES = [1 / (2 * k + 1) for k in range(8)]
#: Taylor series on [-pi/2, pi/2]; the first term left out is below 1e-16.
COS_SERIES = [(-1) ** k / math.factorial(2 * k) for k in range(12)]
SIN_SERIES = [(-1) ** k / math.factorial(2 * k + 1) for k in range(11)]
HALF_BITS = int(np.sqrt(np.float64(0.5)).view(np.int64))


def chunk_normals(seed: int, number: int) -> Floats:
    """Chunk ``number`` of the table: float32[CHUNK] by Box and Muller (1958), two Philox words a pair."""
    key = np.array([seed, DOMAIN], dtype=np.uint64)
    counter = np.array([0, 0, number, 0], dtype=np.uint64)
    words = np.random.Philox(key=key, counter=counter).random_raw(CHUNK)
    radius, angle = radii(words[: CHUNK // 2], words[CHUNK // 2 :])
    square = angle * angle
    normals = np.empty(CHUNK, dtype="<f4")
    normals[0::2] = series(COS_SERIES, square) * radius
    normals[1::2] = series(SIN_SERIES, square) * angle * radius
    return normals


def radii(first: Words, second: Words) -> tuple[Doubles, Doubles]:
    """Signed radii and angles in [-pi/2, pi/2): the sign, a bit of its own, completes the half circle."""
    uniform = ((first >> np.uint64(11)) + np.uint64(1)).astype(np.float64) * 2.0**-53
    angle = ((second >> np.uint64(11)).astype(np.float64) * 2.0**-53 - 0.5) * math.pi
    sign = 1.0 - 2.0 * (second & np.uint64(1)).astype(np.float64)
    return np.sqrt(-2.0 * logarithm(uniform)) * sign, angle


def logarithm(values: Doubles) -> Doubles:
    """Natural logarithm of normal positive doubles, the same bits on every machine, to about 1e-13."""
    bits = values.view(np.int64)
    exponent = (bits - HALF_BITS) >> 52
    mantissa = (bits - (exponent << 52)).view(np.float64)
    ratio = (mantissa - 1.0) / (mantissa + 1.0)
    return series(LOG_SERIES, ratio * ratio) * ratio * 2.0 + exponent * LN2


def series(coefficients: list[float], values: Doubles) -> Doubles:
    """The polynomial with those coefficients, lowest first; separate calls, so that no compiler fuses them."""
    total = np.full_like(values, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total *= values
        total += coefficient
    return total


def write_normals(seed: int, size: int, write: Callable[[Floats], object]) -> str:
    """Hand the table to ``write`` piece by piece, in order; gives its digest. Threads share chunks, no bits."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    count = -(-size // CHUNK)
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        for first in range(0, count, BATCH):
            numbers = range(first, min(first + BATCH, count))
            for number, normals in zip(numbers, pool.map(lambda one: chunk_normals(seed, one), numbers), strict=True):
                piece = normals[: size - number * CHUNK]
                digest.update(piece.data)
                write(piece)
    return digest.hexdigest()


def into_array(values: Floats) -> Callable[[Floats], None]:
    """A writer that fills ``values`` from its beginning."""
    done = 0

    def write(piece: Floats) -> None:
        nonlocal done
        values[done : done + len(piece)] = piece
        done += len(piece)

    return write


# --- the file ---------------------------------------------------------------------------------------------


def default_folder() -> Path:
    """Where this user's tables stand on this host; made when missing. Raises OSError or RunFolderError."""
    chosen = os.environ.get(FOLDER_VARIABLE)
    if chosen:
        return private_folder(Path(chosen))
    with suppress(OSError, RunFolderError, RuntimeError):
        cache = os.environ.get("XDG_CACHE_HOME", "")
        home = Path(cache) if Path(cache).is_absolute() else Path.home() / ".cache"
        return private_folder(home / "es-queue" / "noise")
    return private_folder(Path(tempfile.gettempdir()) / f"es-queue-noise-{os.geteuid()}")


def private_folder(folder: Path) -> Path:
    """``folder``, made with mode 0700 when missing. Raises OSError, or RunFolderError if others may write there."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, "it is not writable", str(folder))
    refuse_foreign(folder)
    return folder


def refuse_foreign(path: Path) -> None:
    """Raise RunFolderError unless ``path``, and what a link leads to, is this user's and only theirs to write."""
    for about in (path.lstat(), path.stat()):
        if about.st_uid != os.geteuid():
            raise RunFolderError(f"{path} belongs to another user (uid {about.st_uid}); remove it or set {FOLDER_VARIABLE}")
    if stat.S_IMODE(about.st_mode) & 0o022:
        raise RunFolderError(f"{path} can be written by other users; chmod go-w it or set {FOLDER_VARIABLE}")


def stored_digest(path: Path, seed: int, size: int) -> str | None:
    """The digest beside a whole table at ``path``; None when it has to be made. Raises RunFolderError (owner)."""
    try:
        for one in (path, sidecar(path)):
            refuse_foreign(one)
        about = json.loads(sidecar(path).read_text())
        whole = path.stat().st_size == 4 * size
    except (FileNotFoundError, ValueError):
        return None
    digest = about.get("digest") if isinstance(about, dict) else None
    agrees = whole and isinstance(digest, str) and about == description(seed, size, digest)
    return digest if agrees else None


def made_once(path: Path, seed: int, size: int) -> str:
    """Make the table unless another process does so meanwhile; gives its digest."""
    with exclusive(path.with_suffix(".lock")):
        return stored_digest(path, seed, size) or make_table(path, seed, size)


def make_table(path: Path, seed: int, size: int) -> str:
    """Write table and description under other names and rename them, so that no reader meets half a table."""
    require_space(path.parent, 4 * size)
    with replacing(path) as file:
        digest = write_normals(seed, size, lambda piece: file.write(piece.data))
    with replacing(sidecar(path)) as file:
        file.write(json.dumps(description(seed, size, digest), indent=2).encode())
    return digest


def sidecar(path: Path) -> Path:
    """The file that describes the table at ``path``."""
    return path.with_suffix(".json")


def description(seed: int, size: int, digest: str) -> dict[str, Any]:
    """What the sidecar says."""
    return {"recipe": RECIPE, "seed": seed, "size": size, "digest": digest}


def require_space(folder: Path, wanted: int) -> None:
    """Raise RunFolderError unless the disk of ``folder`` has that many bytes and a megabyte more."""
    free = shutil.disk_usage(folder).free
    if free < wanted + 2**20:
        raise RunFolderError(
            f"the noise table takes {wanted / 1e6:.0f} MB and {folder} has {free / 1e6:.0f} MB free; "
            f"set {FOLDER_VARIABLE} to a larger local disk, or lower --noise-size"
        )


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A new file that takes the place of ``path`` when all went well, and else leaves no trace."""
    partial = path.with_name(f"{path.name}.partial")
    partial.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def exclusive(path: Path, seconds: float = LOCK_SECONDS) -> Iterator[None]:
    """Hold the lock file; the kernel lets go of it when the process ends. Raises RunFolderError at the deadline."""
    deadline = time.monotonic() + seconds
    with os.fdopen(os.open(path, os.O_CREAT | os.O_RDWR, 0o600)) as file:
        while not locked(file):
            if time.monotonic() > deadline:
                raise RunFolderError(f"another process has held {path} for {seconds:.0f} s; end it or set {FOLDER_VARIABLE}")
            time.sleep(0.02)
        yield


def locked(file: IO[str]) -> bool:
    """Try once to lock ``file``."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def explained(folder: Path | None) -> Iterator[None]:
    """Turn the operating system's errors into one sentence with the remedy."""
    try:
        yield
    except EsQueueError:
        raise
    except OSError as error:
        place = folder or error.filename or "its folder"
        reason = error.strerror or error
        raise RunFolderError(f"the noise table cannot be kept in {place}: {reason}; set {FOLDER_VARIABLE} to a local disk") from error
