"""Facts about this host: cores, packages, folders, the processor. Reading them imports nothing."""

from __future__ import annotations

import errno
import os
import platform
import resource
import sys
from collections.abc import Iterable
from contextlib import suppress
from importlib import metadata
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path

import es_queue
from es_queue.errors import UsageError
from es_queue.text import parse_whole

#: More workers per core are refused: starting them could take all memory of the host.
MOST_PER_CORE = 64


def default_workers(root: Path = Path("/")) -> int:
    """Cores of this process, by affinity and CPU quota, at least 1."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    return max(1, int(min(cores, cpu_quota(root))))


def process_limit_hint(text: str) -> str:
    """The end of a sentence, if ``text`` says that no process or thread could be started."""
    if not any(sign in text for sign in ("can't start new thread", os.strerror(errno.EAGAIN))):
        return ""
    limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    shown = "unlimited" if limit == resource.RLIM_INFINITY else limit
    return (
        f"; this user can start no more processes and threads here (ulimit -u is {shown}; a "
        "container or service can have its own limit): raise the limit, or end other programs"
    )


def checked_workers(given: object, place: str) -> int:
    """A number of local workers. Raises UsageError, also for more than this host can start."""
    cores = default_workers()
    most = MOST_PER_CORE * cores
    with suppress(ValueError):
        if (count := parse_whole(str(given), 0)) <= most:
            return count
    flag = "" if place == "train()" else "--"
    raise UsageError(
        f"{flag}workers is {given!r} in {place}: use a whole number from 0 to {most}, which is "
        f"{MOST_PER_CORE} per core; this host has {cores} core{'s' * (cores > 1)}"
    )


def cpu_quota(root: Path = Path("/")) -> float:
    """The tightest quota, in cores, of this control group (v1 or v2) and those above it."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return float("inf")
    quotas = [float("inf")]
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers or "cpu" in controllers.split(","):
            base = root / "sys/fs/cgroup" / ("cpu" if controllers else "")
            own_group = base / path.lstrip("/")
            # In a container the path is the host's and base itself is the container's own group.
            quotas += [
                group_quota(group)
                for group in (base, own_group, *own_group.parents)
                if group.is_relative_to(base)
            ]
    return min(quotas)


def group_quota(group: Path) -> float:
    """Of one control group, in cores; infinite if it has none."""
    with suppress(OSError, ValueError):
        quota, period = (group / "cpu.max").read_text().split()
        return float("inf") if quota == "max" else int(quota) / int(period)
    with suppress(OSError, ValueError):
        quota, period = ((group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return float("inf") if int(quota) < 0 else int(quota) / int(period)
    return float("inf")


PACKAGES = ("numpy", "redis", "rq", "gymnasium", "msgpack")
#: Distributions of the package Box2D; two of them overwrite each other's files.
BOX2D = ("box2d", "box2d-py", "box2d-kengz")


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
    """The distributions that provide Box2D: ``box2d 2.3.10``, two joined by ``and``, or empty."""
    found = []
    for name in BOX2D:
        with suppress(metadata.PackageNotFoundError, ValueError, OSError):
            files = metadata.distribution(name).files
            if files is None or "Box2D/__init__.py" in map(str, files):
                found.append(f"{name} {version_of(name)}")
    return " and ".join(found)


def package_folder(package: str, more: Iterable[str] = ()) -> Path | None:
    """The folder from which Python would import a package here, or None.

    more: folders that ``rq worker`` searches after sys.path, before editable installations
    """
    try:
        spec = PathFinder.find_spec(package, [*sys.path, *more]) if more else None
        spec = spec or find_spec(package)
    except (ImportError, ValueError):
        return None
    places = list(spec.submodule_search_locations or ()) if spec else []
    return Path(places[0]).resolve() if places else None


def source_root() -> Path:
    return Path(__file__).resolve().parents[1]


def blas_threads() -> int:
    """The most threads that a loaded BLAS would use; 1 if none is loaded."""
    # start-up: it searches for loaded BLAS libraries
    from threadpoolctl import threadpool_info  # type: ignore[import-untyped]

    return max((int(pool.get("num_threads", 1)) for pool in threadpool_info()), default=1)


def cpu_model() -> str:
    """The processor's name, or its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return (next(named, "") or platform.processor() or platform.machine())[:60]


def free_bytes(folder: Path) -> int | None:
    """Free space for this user at ``folder``, which may not exist; None if unknown."""
    place = next((path for path in (folder, *folder.absolute().parents) if path.exists()), None)
    try:
        about = os.statvfs(place) if place else None
    except OSError:
        return None
    return about.f_bavail * about.f_frsize if about else None
