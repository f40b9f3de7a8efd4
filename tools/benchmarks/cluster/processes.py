"""CPU and memory of other processes, by /proc, and a watch over several of them while a
run lasts.
"""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_left
from pathlib import Path

TICK = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far; 0 for one that is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICK


def resident(pid: int) -> int:
    """Bytes of memory that a process holds; 0 for one that is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


class Meter(threading.Thread):
    """Samples processes by name ten times a second; the machine's idle time among them."""

    def __init__(self, pids: dict[str, list[int]]) -> None:
        super().__init__(daemon=True)
        self._pids, self._over = pids, threading.Event()
        self._times: list[float] = []
        self._seconds: dict[str, list[float]] = {name: [] for name in pids}
        self.peak: dict[str, int] = dict.fromkeys(pids, 0)

    def run(self) -> None:
        while not self._over.wait(0.1):
            self._times.append(time.monotonic())
            for name, pids in self._pids.items():
                last = self._seconds[name][-1] if self._seconds[name] else 0.0
                self._seconds[name].append(max(last, sum(map(cpu_seconds, pids))))
                self.peak[name] = max(self.peak[name], sum(map(resident, pids)))

    def end(self) -> None:
        self._over.set()
        self.join()

    def used(self, name: str, start: float, stop: float) -> float:
        """CPU seconds between two moments of the monotonic clock."""
        return self._at(name, stop) - self._at(name, start)

    def _at(self, name: str, moment: float) -> float:
        place = min(bisect_left(self._times, moment), len(self._times) - 1)
        return self._seconds[name][place]
