"""Recoveries: how often something went wrong and was put right, by cause, and how long that took.

A death, a copy or a lost answer counts as put right when the last of its slots is answered, an outage when Redis
answers again. Seconds begin when the master noticed, on its own monotonic clock.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

WORKER_DIED, OVERDUE = "worker-died", "overdue"
REDIS_AWAY, REDIS_LOST, TAKEN_OVER = "redis-away", "redis-lost", "taken-over"

Slot = tuple[str, int]
#: What is noticed beyond so many that are not over yet counts as one with the newest of its cause.
MOST_OPEN = 100


@dataclass(frozen=True)
class Tally:
    """How often one cause was recovered from, the seconds of all together and of the worst."""

    count: int = 0
    seconds: float = 0.0
    worst: float = 0.0

    def with_one(self, seconds: float) -> Tally:
        return Tally(self.count + 1, self.seconds + seconds, max(self.worst, seconds))


class Recoveries:
    """One run's recoveries."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tallies: dict[str, Tally] = {}
        self._open: list[tuple[str, float, set[Slot]]] = []

    def remember(self, totals: Mapping[str, Sequence[float]]) -> None:
        """What former masters counted, as ``totals`` gave it, beside what this one has."""
        for cause, (count, seconds, worst) in totals.items():
            own = self._tallies.get(cause, Tally())
            self._tallies[cause] = Tally(own.count + int(count), own.seconds + seconds, max(own.worst, worst))

    def begin(self, cause: str, slots: Iterable[Slot]) -> None:
        """Something was noticed that holds up these slots."""
        waiting = set(slots)
        if not waiting:
            return
        same = [one for one in self._open if one[0] == cause] if len(self._open) >= MOST_OPEN else []
        if same:  # each answer is looked up in all that are open
            same[-1][2].update(waiting)
        else:
            self._open.append((cause, self._clock(), waiting))

    def answered(self, slot: Slot) -> None:
        """A slot is answered: what waited for it alone is over."""
        for one in self._open:
            one[2].discard(slot)
        over = [one for one in self._open if not one[2]]
        self._open = [one for one in self._open if one[2]]
        for cause, began, _ in over:
            self.note(cause, self._clock() - began)

    def closed(self) -> None:
        """The generation is complete, so nothing waits any more."""
        for cause, began, _ in self._open:
            self.note(cause, self._clock() - began)
        self._open = []

    def note(self, cause: str, seconds: float) -> None:
        """Something was put right that took so long."""
        self._tallies[cause] = self._tallies.get(cause, Tally()).with_one(seconds)

    def count(self, cause: str) -> int:
        return self._tallies.get(cause, Tally()).count

    def totals(self) -> dict[str, list[float]]:
        """Count, seconds and worst by cause: plain data for a checkpoint."""
        return {cause: [one.count, round(one.seconds, 3), round(one.worst, 3)] for cause, one in self._tallies.items()}

    def text(self) -> str:
        """The totals as JSON, for the run's progress; empty while there are none."""
        return json.dumps(self.totals()) if self._tallies else ""
