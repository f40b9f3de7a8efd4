"""Counts of one publication: accepted and refused results, and durations of slots."""

from __future__ import annotations

from collections import Counter, defaultdict

from es_queue.protocol.messages import Answer


class Tally:
    """refused: results that did not count, by reason; contributors: workers with a counted result;
    reissued: slots that were issued again; recovered: workers that died; lost_steps: of results
    that did not count
    """

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._slots: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.contributors: set[str] = set()
        self.reissued = self.recovered = self.lost_steps = 0

    def refuse(self, reason: str, count: int = 1) -> None:
        if count:
            self.refused[reason] += count

    def add_lost_steps(self, steps: int) -> None:
        """Count steps of a slot that already had a result."""
        self.lost_steps += steps

    def credit(self, answer: Answer) -> None:
        self.contributors.add(answer.worker)
        self._seconds[answer.kind] += answer.seconds
        self._slots[answer.kind] += len(answer.results)

    def count_death(self) -> None:
        self.recovered += 1

    def count_reissued(self, slots: int) -> None:
        self.reissued += slots

    def seconds_per_slot(self, kind: str) -> float | None:
        """Mean wall seconds that a worker needed for a slot, None before the first answer."""
        slots = self._slots[kind]
        return self._seconds[kind] / slots if slots else None
