"""RecoveryStatistics: how often the run recovered, by cause, and how long that took.

A death, a copy or a lost result is recovered when the last of its slots has a result; an outage,
when Redis answers again. Seconds begin when the master noticed, on its own monotonic clock.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

WORKER_DIED, STRAGGLER = "worker-died", "overdue"
REDIS_AWAY, REDIS_LOST, TAKEOVER = "redis-away", "redis-lost", "taken-over"

Slot = tuple[str, int] | int
#: What is noticed beyond so many that are not over yet counts as one with the newest of its cause.
MOST_OPEN = 100


@dataclass(frozen=True)
class RecoveryTally:
    """How often one cause was recovered from, the seconds of all together and of the worst."""

    count: int = 0
    seconds: float = 0.0
    worst: float = 0.0

    def with_recovery(self, seconds: float) -> RecoveryTally:
        return RecoveryTally(self.count + 1, self.seconds + seconds, max(self.worst, seconds))


class RecoveryStatistics:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tallies: dict[str, RecoveryTally] = {}
        self._ongoing: list[tuple[str, float, set[Slot]]] = []

    def restore(self, totals: Mapping[str, Sequence[float]]) -> None:
        for cause, (count, seconds, worst) in totals.items():
            tally = self._tallies.get(cause, RecoveryTally())
            self._tallies[cause] = RecoveryTally(
                tally.count + int(count), tally.seconds + seconds, max(tally.worst, worst)
            )

    def start_recovery(self, cause: str, slots: Iterable[Slot]) -> None:
        """Note a fault that delays these slots."""
        waiting = set(slots)
        if not waiting:
            return
        same = (
            [recovery for recovery in self._ongoing if recovery[0] == cause]
            if len(self._ongoing) >= MOST_OPEN
            else []
        )
        if same:  # each answer is looked up in all that are open
            same[-1][2].update(waiting)
        else:
            self._ongoing.append((cause, self._clock(), waiting))

    @property
    def is_waiting(self) -> bool:
        """Whether any recovery waits for results."""
        return bool(self._ongoing)

    def settle(self, rows: Iterable[int]) -> None:
        """Rows of the newest table have a result: recoveries that waited only for them end."""
        for row in rows:
            self.record_answer(row)

    def record_answer(self, slot: Slot) -> None:
        """A slot has a result: recoveries that waited only for it end."""
        if not self._ongoing:
            return
        for recovery in self._ongoing:
            recovery[2].discard(slot)
        finished = [recovery for recovery in self._ongoing if not recovery[2]]
        self._ongoing = [recovery for recovery in self._ongoing if recovery[2]]
        for cause, began, _ in finished:
            self.record_recovery(cause, self._clock() - began)

    def finish_all(self) -> None:
        """The generation is complete, so nothing waits any more."""
        for cause, began, _ in self._ongoing:
            self.record_recovery(cause, self._clock() - began)
        self._ongoing = []

    def record_recovery(self, cause: str, seconds: float) -> None:
        self._tallies[cause] = self._tallies.get(cause, RecoveryTally()).with_recovery(seconds)

    def count(self, cause: str) -> int:
        return self._tallies.get(cause, RecoveryTally()).count

    def totals(self) -> dict[str, list[float]]:
        """Count, seconds and worst by cause: plain data for a checkpoint."""
        return {
            cause: [tally.count, round(tally.seconds, 3), round(tally.worst, 3)]
            for cause, tally in self._tallies.items()
        }

    def to_json(self) -> str:
        """The totals as JSON, for the run's progress; empty while there are none."""
        return json.dumps(self.totals()) if self._tallies else ""
