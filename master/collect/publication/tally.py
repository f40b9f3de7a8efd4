"""Counts of one publication: accepted and refused results, and durations of slots."""

from __future__ import annotations

import time
from collections import Counter, defaultdict

from es_queue.protocol.messages import Answer
from master.collect.answer_check import IMPLAUSIBLE


class Tally:
    """refused: results that did not count, by reason; contributors: workers with a counted result;
    implausible: the last worker whose moments were left out; reissued: slots that were issued
    again; recovered: workers that died; lost_steps: of results that did not count
    """

    def __init__(self, opened_at: float) -> None:
        """``opened_at``: on the master's monotonic clock; no answer took longer than the time since
        then.
        """
        self._opened_at = opened_at
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._slots: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.contributors: set[str] = set()
        self.implausible = ""
        self.reissued = self.recovered = self.lost_steps = 0

    def refuse(self, reason: str, count: int = 1) -> None:
        if count:
            self.refused[reason] += count

    def add_lost_steps(self, steps: int) -> None:
        """Count steps of a slot that already had a result."""
        self.lost_steps += steps

    def credit(self, answer: Answer) -> None:
        self.contributors.add(answer.worker)
        longest = time.monotonic() - self._opened_at  # a worker may say anything
        self._seconds[answer.kind] += min(answer.seconds, longest)
        self._slots[answer.kind] += len(answer.results)

    def leave_out_moments(self, worker: str) -> None:
        self.refuse(IMPLAUSIBLE)
        self.implausible = worker

    def count_death(self) -> None:
        self.recovered += 1

    def count_reissued(self, slots: int) -> None:
        self.reissued += slots

    def seconds_per_slot(self, kind: str) -> float | None:
        """Mean wall seconds that a worker needed for a slot, None before the first answer."""
        slots = self._slots[kind]
        return self._seconds[kind] / slots if slots else None
