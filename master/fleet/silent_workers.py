"""SilentWorkers: workers that hold blocks for too long without a result."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass

from es_queue.protocol.messages import Block
from master.display.notes import LimitedNotes

LOGGER = logging.getLogger("es_queue.fleet")


@dataclass
class Hold:
    """since: from when on a worker has held blocks without a break; answers: how many of its
    answers had counted then.
    """

    since: float
    answers: int


class SilentWorkers:
    """Looked at after each reconcile. names: workers that get no more, and whose claims hold
    nothing up, until an answer of theirs counts.
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
        """``claims``: blocks by living worker, without those of ``names``; ``answers``: how many of
        each counted so far.
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
