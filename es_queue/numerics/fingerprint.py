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

#: Threads cut sums differently, so every process that touches parameters has one.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

#: numpy's names for what goes beyond AVX2, from the release that brought them (a name unknown to
#: numpy warns).
BEYOND_AVX2 = (
    ((2, 4), "X86_V4 AVX512_ICL AVX512_SPR"),
    ((2, 3), "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR"),
    ((2, 0), "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL"),
)

DIGEST_BYTES = 16


def fix_numeric_environment() -> None:
    """Make AVX2 and AVX-512 machines compute the same bits; call it before anything imports numpy.

    What the user has set stays. Once numpy is loaded its choice of kernels is made, so nothing is
    changed then but the number of threads that child processes will see.
    """
    settings = ONE_THREAD if "numpy" in sys.modules else numeric_environment()
    for name, value in settings.items():
        os.environ.setdefault(name, value)


def numeric_environment(cpuinfo: Path = Path("/proc/cpuinfo")) -> dict[str, str]:
    """The environment variables of this machine's numeric processes, by name."""
    settings = dict(ONE_THREAD)
    flags = cpu_flags(cpuinfo)
    if platform.machine().lower() in ("x86_64", "amd64"):
        if {"avx2", "fma"} <= flags:
            settings["OPENBLAS_CORETYPE"] = "Haswell"
        settings["NPY_DISABLE_CPU_FEATURES"] = features_beyond_avx2()
    return {name: value for name, value in settings.items() if value}


def cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """The first core's flags as Linux lists them; empty if there is no such list."""
    try:
        lines = cpuinfo.read_text(errors="replace").splitlines()
    except OSError:
        return frozenset()
    flag_lists = (line.partition(":")[2] for line in lines if line.startswith("flags"))
    return frozenset(next(flag_lists, "").split())


def features_beyond_avx2() -> str:
    """The value of NPY_DISABLE_CPU_FEATURES that the installed numpy understands; empty without a
    numpy.
    """
    try:
        major, minor = metadata.version("numpy").split(".")[:2]
        version = (int(major), int(minor))
    except (metadata.PackageNotFoundError, ValueError):
        return ""
    return next((names for since, names in BEYOND_AVX2 if version >= since), "")


def limit_blas_threads() -> None:
    """Hold every BLAS that this process has loaded, and torch, to one thread, for good; calling it
    again is harmless.
    """
    # start-up: it looks for the BLAS libraries that are loaded
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    threadpool_limits(limits=1)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


def bytes_digest(data: bytes | bytearray | memoryview) -> str:
    """BLAKE2b-128 of the bytes, 32 hexadecimal digits."""
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).hexdigest()


def array_digest(array: npt.NDArray[Any]) -> str:
    """BLAKE2b-128 of an array's bytes in C order and little-endian; shape and dtype are not part of
    it.
    """
    # start-up: numpy, whose threads must be fixed before it loads
    import numpy as np

    little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    return bytes_digest(little.reshape(-1).view(np.uint8).data)
