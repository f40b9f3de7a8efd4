"""The machine under the figures, and what its processes use, read from /proc."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from es_queue import __version__, host

TICKS = os.sysconf("SC_CLK_TCK")
#: What a process of a whole run is for, by a word of its command; the first that fits.
ROLES = (
    ("wrapper", ("bound",)),
    ("server", ("valkey-server", "redis-server")),
    ("workers", ("rq",)),
    ("master", ("master", "es-master")),
)


def about() -> dict[str, str]:
    """What a reader must know to compare figures; no path, no host name."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    versions = {
        name: host.version_of(name)
        for name in ("numpy", "gymnasium", "box2d", "envpool", "redis", "rq")
    }
    return {
        "processor": host.cpu_model() or platform.machine(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{memory:.1f} GiB",
        "system": platform.system(),
        "python": platform.python_version(),
        "es-queue": __version__,
        **{name: version for name, version in versions.items() if version},
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "load before": f"{os.getloadavg()[0]:.2f}",
    }


def stat_of(pid: int) -> list[str]:
    """The fields of /proc/<pid>/stat from the third on; empty when the process is gone."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    return []


def tree(root: int) -> list[int]:
    """A process and all its living descendants."""
    parents = {
        int(path.name): int(fields[1])
        for path in Path("/proc").glob("[0-9]*")
        if (fields := stat_of(int(path.name)))
    }
    found = [root] if root in parents else []
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def role(pid: int) -> str:
    """What a process is for, by its command."""
    words: list[str] = []
    with suppress(OSError):
        words = [
            Path(word).name
            for word in Path(f"/proc/{pid}/cmdline")
            .read_bytes()
            .decode(errors="replace")
            .replace("\0", " ")
            .split()
        ]
    for name, marks in ROLES:
        if any(word.split(".")[-1] in marks or word.split(".")[0] in marks for word in words):
            return name
    return "other"


def cpu_seconds(pids: Iterable[int]) -> dict[str, float]:
    """User and system seconds by role, with those of children that have ended; a tick is a
    hundredth of a second.
    """
    found: dict[str, float] = {}
    for pid in pids:
        fields = stat_of(pid)
        if fields:
            name = role(pid)
            found[name] = found.get(name, 0.0) + sum(map(int, fields[11:15])) / TICKS
    return found


def resident(pid: int) -> tuple[int, int]:
    """(Pss, Rss) of a process in bytes: shared pages divided among those who map them, and counted
    whole; (0, 0) when it is gone.
    """
    return _kilobytes(Path(f"/proc/{pid}/smaps_rollup"))


def resident_of(pid: int, path: Path) -> tuple[int, int]:
    """(Pss, Rss) in bytes of what the process maps of one file."""
    sums, inside = [0, 0], False
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps").read_text(errors="replace").splitlines():
            first = line.split(maxsplit=1)[0]
            if "-" in first and not first.endswith(":"):
                inside = line.endswith(str(path))
            elif inside and first in ("Pss:", "Rss:"):
                sums[first == "Rss:"] += 1024 * int(line.split()[1])
    return sums[0], sums[1]


def _kilobytes(path: Path) -> tuple[int, int]:
    found = {"Pss:": 0, "Rss:": 0}
    with suppress(OSError):
        for line in path.read_text().splitlines():
            name = line.split(maxsplit=1)[0]
            if name in found:
                found[name] = 1024 * int(line.split()[1])
    return found["Pss:"], found["Rss:"]


def wait_gone(pid: int, seconds: float) -> bool:
    """Wait until a process is over, as a zombie too; whether it came to that."""
    until = time.monotonic() + seconds
    while (fields := stat_of(pid)) and fields[0] != "Z":
        if time.monotonic() > until:
            return False
        time.sleep(0.001)
    return True
