"""How many workers this host can keep busy: its cores, by affinity and control group."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from es_queue.errors import UsageError
from es_queue.util.number_ranges import parse_whole

#: More workers per core are refused: starting them could take all memory of the host.
MOST_PER_CORE = 64


def default_workers(root: Path = Path("/")) -> int:
    """Cores of this process, by affinity and CPU quota, at least 1."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    return max(1, int(min(cores, cpu_quota(root))))


def checked_workers(given: object, place: str) -> int:
    """A number of local workers. Raises UsageError, also for more than this host can start."""
    cores = default_workers()
    most = MOST_PER_CORE * cores
    with suppress(ValueError):
        if (count := parse_whole(str(given), 0)) <= most:
            return count
    raise UsageError(
        f"workers is {given!r} in {place}: use a whole number from 0 to {most}, which is "
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
