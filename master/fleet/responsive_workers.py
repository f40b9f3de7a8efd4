"""ResponsiveWorkers: workers that have returned results, and so would answer an audit."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from master.fleet.worker_registry import WorkerIdentity

#: Seconds without a result after which no worker is expected to answer; more if there were longer
#: gaps between the results of the publication: that many times the longest of them.
LEAST_PATIENCE, PATIENCE_FACTOR = 3.0, 2.0


class ResponsiveWorkers:
    """Any client with the workers' password can register workers, and they need not answer. So a
    worker counts from its first accepted result until a silence of all workers.

    identities: the workers that count
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.identities: set[WorkerIdentity] = set()
        self.begin(())

    def begin(self, present: Collection[WorkerIdentity]) -> None:
        """Another publication is open, and these workers are there."""
        self.identities.intersection_update(present)
        self._answered_at, self._longest_gap = self._clock(), 0.0

    def record_answer(self, identity: WorkerIdentity) -> None:
        """A result of the worker was accepted."""
        now = self._clock()
        self._longest_gap = max(self._longest_gap, now - self._answered_at)
        self._answered_at = now
        self.identities.add(identity)

    def restart_clock(self) -> None:
        """The run is paused, or Redis was away: this time is no silence of the workers."""
        self._answered_at = self._clock()

    def expire(self) -> None:
        """There are questions: after too long a silence no worker counts until it answers again."""
        patience = max(LEAST_PATIENCE, PATIENCE_FACTOR * self._longest_gap)
        if self._clock() - self._answered_at > patience:
            self.identities.clear()
