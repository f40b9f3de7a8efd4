"""RecoveryStatistics: how often the run recovered, by cause, and how long that took.

A death, a copy or a lost result is recovered when the last of its rows has a result; an outage,
when Redis responds again. Seconds begin when the master noticed, on its own monotonic clock.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence

from es_queue.slots import Rows

WORKER_DIED, STRAGGLER = "worker-died", "overdue"
REDIS_AWAY, REDIS_LOST, TAKEOVER = "redis-away", "redis-lost", "taken-over"
#: Of more recoveries that are not over yet, a new one counts as one with the newest of its cause.
MOST_OPEN = 100


class RecoveryStatistics:
    def __init__(self) -> None:
        #: By cause: how often, the seconds of all together, and those of the longest.
        self._totals: dict[str, list[float]] = {}
        self._ongoing: list[tuple[str, float, set[int]]] = []

    def restore(self, totals: Mapping[str, Sequence[float]]) -> None:
        for cause, (count, seconds, worst) in totals.items():
            self._add(cause, int(count), seconds, worst)

    def record(self, cause: str, seconds: float) -> None:
        """The run recovered from a fault within so many seconds."""
        self._add(cause, 1, seconds, seconds)

    def _add(self, cause: str, count: int, seconds: float, worst: float) -> None:
        before, total, worst_before = self._totals.get(cause, (0, 0.0, 0.0))
        self._totals[cause] = [before + count, total + seconds, max(worst_before, worst)]

    def begin(self, cause: str, rows: Sequence[int]) -> None:
        """Note a fault that delays these rows of the newest table."""
        same = [waiting for other, _, waiting in self._ongoing if other == cause]
        if rows and same and len(self._ongoing) >= MOST_OPEN:
            same[-1].update(rows)
        elif rows:
            self._ongoing.append((cause, time.monotonic(), set(rows)))

    def settle(self, rows: Rows) -> None:
        """Rows have a result: recoveries that waited only for them are over."""
        if self._ongoing:
            settled = set(rows.tolist())
            for _, _, waiting in self._ongoing:
                waiting -= settled
            self._end(over=[each for each in self._ongoing if not each[2]])

    def end_all(self) -> None:
        """The generation is complete, so nothing waits any more."""
        self._end(over=self._ongoing)

    def _end(self, over: Sequence[tuple[str, float, set[int]]]) -> None:
        self._ongoing = [each for each in self._ongoing if each not in over]
        for cause, began, _ in over:
            self.record(cause, time.monotonic() - began)

    def totals(self) -> dict[str, list[float]]:
        """Count, seconds and worst by cause: plain data for a checkpoint."""
        return {
            cause: [count, round(seconds, 3), round(worst, 3)]
            for cause, (count, seconds, worst) in self._totals.items()
        }

    def to_json(self) -> str:
        """The totals as JSON, for the run's progress; empty while there are none."""
        return json.dumps(self.totals()) if self._totals else ""
