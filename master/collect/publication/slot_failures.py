"""Slots at which workers fail or die, and the consequences (rule 12)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from es_queue.errors import EnvironmentFailure, StrategyFailure
from es_queue.protocol import messages
from es_queue.security.sanitize import sanitize
from master.collect.answer_check import AnswerChecker
from master.collect.publication.pending_slots import Slot

FAILURES = 3
LONGEST_REASON = 4000  # letters of a failure that are shown
MOST_FAILURES = 10  # of one worker alone, while the others are busy or gone
DEATHS = 10
SUSPECT_DEATHS = 2


class SlotFailures:
    """slots: those that count as failed; last_reason: of the newest of them, in words; marks: of
    reports that were counted, because a report may be sent, and read, twice
    """

    def __init__(self, checker: AnswerChecker) -> None:
        self._checker = checker
        self.slots: set[Slot] = set()
        self.last_reason = ""
        self._reports: dict[Slot, Counter[str]] = {}
        self.marks: set[str] = set()
        self._deaths: Counter[Slot] = Counter()

    def report(self, slot: Slot, reporter: str) -> bool:
        """Count a report. Returns whether to reconcile at once; a worker that fails here repeatedly
        waits for the next second and another worker.
        """
        reports = self._reports.setdefault(slot, Counter())
        reports[reporter] += 1
        return reports[reporter] <= FAILURES

    def is_decided(self, slot: Slot, live: int) -> bool:
        """Decided by the third report (from two workers, if there are two), and in any case by the
        tenth.
        """
        reports = self._reports[slot]
        return reports.total() >= FAILURES and (
            live < 2 or len(reports) >= 2 or reports.total() >= MOST_FAILURES
        )

    def fail(self, slot: Slot, reason: str) -> None:
        """A deterministic failure counts as the worst; any other stops the run."""
        named, reason = self._checker.format_slot(*slot), sanitize(reason, LONGEST_REASON)
        failed = f"{named} failed {self._reports[slot].total()} times"
        if reason.startswith(messages.HOST_FAILURE):
            raise EnvironmentFailure(
                f"{failed} because of the workers' hosts: "
                f"{reason.removeprefix(messages.HOST_FAILURE)}"
            )
        if reason.startswith(messages.STRATEGY_FAILURE):
            raise StrategyFailure(reason.removeprefix(messages.STRATEGY_FAILURE))
        if slot[0] not in messages.TRAINED:
            raise EnvironmentFailure(f"{failed}, and an evaluation must be complete: {reason}")
        self.slots.add(slot)
        self.last_reason = f"{named}: {reason}"

    def check_training(self, required: int) -> None:
        """Raises EnvironmentFailure if every training slot has failed."""
        if sum(kind == messages.TRAIN for kind, _ in self.slots) >= required:
            raise EnvironmentFailure(
                f"every episode of a generation failed{self._checker.advice}; the last was "
                f"{self.last_reason}"
            )

    def record_deaths(self, slots: Iterable[Slot]) -> None:
        """A worker died while it played these; the tenth death is attributed to the slot."""
        for slot in slots:
            self._deaths[slot] += 1
            if self._deaths[slot] >= DEATHS:
                raise EnvironmentFailure(
                    f"{DEATHS} workers died while playing {self._checker.format_slot(*slot)}: "
                    "it may end or block its process, or need more memory than the hosts have; "
                    "the workers' terminals show how they ended"
                )

    def restore_deaths(self, deaths: Mapping[Slot, int]) -> None:
        """Restore deaths that Redis counted for this publication: under a former master, or in a
        lost reply.
        """
        self._deaths |= Counter(deaths)

    def suspects(self) -> frozenset[Slot]:
        """Slots that are issued singly."""
        deadly = {slot for slot, count in self._deaths.items() if count >= SUSPECT_DEATHS}
        return frozenset(deadly | self._reports.keys())
