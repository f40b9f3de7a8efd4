"""Recoveries: counted by cause, timed from notice to the last answer, kept over masters."""

from __future__ import annotations

import json

from master.recoveries import OVERDUE, TAKEN_OVER, WORKER_DIED, Recoveries


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_recovery_is_over_when_the_last_of_its_slots_is_answered() -> None:
    clock = Clock()
    recoveries = Recoveries(clock)
    recoveries.begin(WORKER_DIED, [("train", 1), ("train", 2)])
    recoveries.begin(OVERDUE, [("train", 2)])
    clock.now += 1
    recoveries.answered(("train", 2))
    assert recoveries.totals() == {OVERDUE: [1, 1.0, 1.0]}
    clock.now += 2
    recoveries.answered(("eval", 1))
    recoveries.answered(("train", 1))
    assert recoveries.totals()[WORKER_DIED] == [1, 3.0, 3.0]


def test_a_complete_generation_ends_what_waits_and_nothing_waits_for_no_slot() -> None:
    recoveries = Recoveries(Clock())
    recoveries.begin(WORKER_DIED, [("train", 1)])
    recoveries.begin(WORKER_DIED, [])
    recoveries.closed()
    recoveries.closed()
    assert recoveries.count(WORKER_DIED) == 1


def test_totals_of_former_masters_are_added_to() -> None:
    recoveries = Recoveries(Clock())
    recoveries.note(TAKEN_OVER, 5.0)
    recoveries.remember({TAKEN_OVER: [2, 3.0, 2.0], OVERDUE: [1, 1.0, 1.0]})
    assert json.loads(recoveries.text()) == {TAKEN_OVER: [3, 8.0, 5.0], OVERDUE: [1, 1.0, 1.0]}
    assert Recoveries(Clock()).text() == ""
