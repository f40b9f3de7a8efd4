"""Equal bits on all machines: the numeric environment, one BLAS thread, and digests."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy.typing as npt

#: Threads split sums differently, so each process that handles parameters has only one.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

#: numpy's names for features beyond AVX2, by the release that added them: numpy warns of unknown
#: names.
BEYOND_AVX2 = (
    ((2, 4), "X86_V4 AVX512_ICL AVX512_SPR"),
    ((2, 3), "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR"),
    ((2, 0), "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL"),
)

DIGEST_BYTES = 16


def fix_numeric_environment() -> None:
    """Make AVX2 and AVX-512 machines compute the same bits. Call it before numpy is imported.

    It keeps the user's own values. Once numpy is loaded, only the thread counts of child processes
    can change.
    """
    settings = ONE_THREAD if "numpy" in sys.modules else numeric_environment()
    for name, value in settings.items():
        os.environ.setdefault(name, value)


def numeric_environment(cpuinfo: Path = Path("/proc/cpuinfo")) -> dict[str, str]:
    settings = dict(ONE_THREAD)
    flags = cpu_flags(cpuinfo)
    if platform.machine().lower() in ("x86_64", "amd64"):
        if {"avx2", "fma"} <= flags:
            settings["OPENBLAS_CORETYPE"] = "Haswell"
        settings["NPY_DISABLE_CPU_FEATURES"] = features_beyond_avx2()
    return {name: value for name, value in settings.items() if value}


def cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """The first core's flags as Linux lists them; empty without such a list."""
    try:
        lines = cpuinfo.read_text(errors="replace").splitlines()
    except OSError:
        return frozenset()
    flag_lists = (line.partition(":")[2] for line in lines if line.startswith("flags"))
    return frozenset(next(flag_lists, "").split())


def features_beyond_avx2() -> str:
    """NPY_DISABLE_CPU_FEATURES for the installed numpy; empty without numpy."""
    try:
        major, minor = metadata.version("numpy").split(".")[:2]
        version = (int(major), int(minor))
    except (metadata.PackageNotFoundError, ValueError):
        return ""
    return next((names for since, names in BEYOND_AVX2 if version >= since), "")


def limit_blas_threads() -> None:
    """Limit every loaded BLAS, and torch, to one thread permanently. It can be called again."""
    # start-up: it searches for loaded BLAS libraries
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    threadpool_limits(limits=1)
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


def bytes_digest(data: bytes | bytearray | memoryview) -> str:
    """BLAKE2b-128 of the bytes, 32 hexadecimal digits."""
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).hexdigest()


def array_digest(array: npt.NDArray[Any]) -> str:
    """BLAKE2b-128 of an array's bytes in C order and little-endian, without shape and dtype."""
    # start-up: numpy, whose threads must be fixed before it loads
    import numpy as np

    little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    return bytes_digest(little.reshape(-1).view(np.uint8).data)


def power(base: float, exponent: int) -> float:
    """``base`` to a whole power of 0 or more, by squaring."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result
