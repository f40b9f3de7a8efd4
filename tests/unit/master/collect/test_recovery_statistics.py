"""RecoveryStatistics: counted by cause, timed from notice to the last answer, kept over masters."""

from __future__ import annotations

import json

from master.collect.recovery_statistics import STRAGGLER, TAKEOVER, WORKER_DIED, RecoveryStatistics


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_recovery_is_over_when_the_last_of_its_slots_is_answered() -> None:
    clock = Clock()
    recoveries = RecoveryStatistics(clock)
    recoveries.start_recovery(WORKER_DIED, [("train", 1), ("train", 2)])
    recoveries.start_recovery(STRAGGLER, [("train", 2)])
    clock.now += 1
    recoveries.record_answer(("train", 2))
    assert recoveries.totals() == {STRAGGLER: [1, 1.0, 1.0]}
    clock.now += 2
    recoveries.record_answer(("eval", 1))
    recoveries.record_answer(("train", 1))
    assert recoveries.totals()[WORKER_DIED] == [1, 3.0, 3.0]


def test_a_complete_generation_ends_what_waits_and_nothing_waits_for_no_slot() -> None:
    recoveries = RecoveryStatistics(Clock())
    recoveries.start_recovery(WORKER_DIED, [("train", 1)])
    recoveries.start_recovery(WORKER_DIED, [])
    recoveries.finish_all()
    recoveries.finish_all()
    assert recoveries.count(WORKER_DIED) == 1


def test_totals_of_former_masters_are_added_to() -> None:
    recoveries = RecoveryStatistics(Clock())
    recoveries.record_recovery(TAKEOVER, 5.0)
    recoveries.restore({TAKEOVER: [2, 3.0, 2.0], STRAGGLER: [1, 1.0, 1.0]})
    assert json.loads(recoveries.to_json()) == {TAKEOVER: [3, 8.0, 5.0], STRAGGLER: [1, 1.0, 1.0]}
    assert RecoveryStatistics(Clock()).to_json() == ""
