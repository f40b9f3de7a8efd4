"""Facts about this host: package versions, the provider of Box2D, folders of es-queue, the
processor.

Reading them takes a few milliseconds and imports nothing.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterable
from importlib import metadata
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path

import es_queue

PACKAGES = ("numpy", "redis", "rq", "gymnasium", "msgpack")
#: Distributions of the package Box2D; two of them overwrite each other's files.
BOX2D = ("box2d", "box2d-py", "box2d-kengz")
MAX_CPU_NAME = 60
PROCESSOR_LIST = Path("/proc/cpuinfo")


def versions() -> str:
    """``es-queue 0.1.0, python 3.11.7, numpy 2.4.6 …``, without missing packages."""
    entries = [("es-queue", es_queue.__version__), ("python", platform.python_version())]
    entries += [(name, version_of(name)) for name in PACKAGES]
    return ", ".join(f"{name} {version}" for name, version in entries if version)


def version_of(distribution: str) -> str:
    """The installed version, empty if there is none."""
    try:
        return metadata.version(distribution) or ""
    except (metadata.PackageNotFoundError, ValueError, OSError):
        return ""


def box2d_versions() -> str:
    """The distributions that provide Box2D, ``box2d 2.3.10`` or two joined by ``and``; empty for
    none.
    """
    return " and ".join(
        f"{name} {version_of(name)}" for name in BOX2D if has_file(name, "Box2D/__init__.py")
    )


def has_file(distribution: str, file: str) -> bool:
    """Whether a distribution is installed and has that file, or lists no files."""
    try:
        listed = metadata.distribution(distribution).files
    except (metadata.PackageNotFoundError, ValueError, OSError):
        return False
    return listed is None or any(str(path) == file for path in listed)


def package_folder(package: str, more: Iterable[str] = ()) -> Path | None:
    """The folder from which Python would import a package here, or None.

    more: folders that are searched after sys.path, but before packages that are installed as a link
    (pip install -e), which is how ``rq worker`` finds the current folder.
    """
    try:
        spec = PathFinder.find_spec(package, [*sys.path, *more]) if more else None
        spec = spec or find_spec(package)
    except (ImportError, ValueError):
        return None
    places = list(spec.submodule_search_locations or ()) if spec else []
    return Path(places[0]).resolve() if places else None


def source_root() -> Path:
    return Path(__file__).resolve().parents[2]


def blas_threads() -> int:
    """The most threads that a loaded BLAS would use; 1 if none is loaded."""
    # start-up: it searches for loaded BLAS libraries
    from threadpoolctl import threadpool_info  # type: ignore[import-untyped]

    return max((int(pool.get("num_threads", 1)) for pool in threadpool_info()), default=1)


def cpu_model() -> str:
    """The processor's name, or its architecture."""
    try:
        lines = PROCESSOR_LIST.read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return (next(named, "") or platform.processor() or platform.machine())[:MAX_CPU_NAME]


def free_bytes(folder: Path) -> int | None:
    """Free space for this user at ``folder``, which may not exist; None if unknown."""
    place = next((path for path in (folder, *folder.absolute().parents) if path.exists()), None)
    try:
        about = os.statvfs(place) if place else None
    except OSError:
        return None
    return about.f_bavail * about.f_frsize if about else None
