"""SilentWorkers: workers that hold blocks for too long without a result. ResponsiveWorkers: workers
whose results show that they answer.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Container, Mapping
from dataclasses import dataclass

from es_queue.protocol.messages import Block
from master.display.notes import LimitedNotes
from master.fleet.worker_registry import WorkerIdentity

LOGGER = logging.getLogger("es_queue.fleet")
#: Seconds without a result after which no worker is expected to answer; more if there were longer
#: gaps between the results of the publication: that many times the longest of them.
LEAST_PATIENCE, PATIENCE_FACTOR = 3.0, 2.0


@dataclass
class Hold:
    """since: when a worker began to hold blocks without a break; answers: its counted results
    then
    """

    since: float
    answers: int


class SilentWorkers:
    """Updated after each reconcile. names: workers that get no more blocks, and whose claims are
    ignored, until a result of theirs counts
    """

    def __init__(self) -> None:
        self._notes = LimitedNotes(LOGGER)
        self._holds: dict[str, Hold] = {}
        self.names: set[str] = set()

    def update(
        self,
        claims: Mapping[str, tuple[Block, ...]],
        living: Container[str],
        answers: Mapping[str, int],
        patience: Callable[[Block], float],
        now: float,
    ) -> None:
        """``claims``: blocks by living worker, without those of ``names``; ``answers``: counted
        results of each.
        """
        self.names = {
            name
            for name in self.names
            if name in living and answers.get(name, 0) == self._holds[name].answers
        }
        kept = {name: self._holds[name] for name in self.names}
        for worker, blocks in claims.items():
            count = answers.get(worker, 0)
            if not blocks or worker in kept:
                continue
            before = self._holds.get(worker)
            hold = before if before is not None and before.answers == count else Hold(now, count)
            kept[worker] = hold
            if now - hold.since > max(map(patience, blocks)):
                self.names.add(worker)
                self._notes.warning(
                    f"worker {worker} has held blocks for {now - hold.since:.0f} s without a "
                    f"result: other workers get them"
                )
        self._holds = kept


class ResponsiveWorkers:
    """Workers that have returned a result. Any client with the workers' password can register
    workers that never respond, so a worker counts from its first accepted result until a silence of
    all workers.

    identities: the workers that count
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.identities: set[WorkerIdentity] = set()
        self.begin(())

    def begin(self, present: Collection[WorkerIdentity]) -> None:
        self.identities.intersection_update(present)
        self._answered_at, self._longest_gap = self._clock(), 0.0

    def record_answer(self, identity: WorkerIdentity) -> None:
        now = self._clock()
        self._longest_gap = max(self._longest_gap, now - self._answered_at)
        self._answered_at = now
        self.identities.add(identity)

    def restart_clock(self) -> None:
        """A pause or an outage does not count as silence."""
        self._answered_at = self._clock()

    def expire(self) -> None:
        """Questions are open: after a long silence, no worker counts until its next result."""
        patience = max(LEAST_PATIENCE, PATIENCE_FACTOR * self._longest_gap)
        if self._clock() - self._answered_at > patience:
            self.identities.clear()
