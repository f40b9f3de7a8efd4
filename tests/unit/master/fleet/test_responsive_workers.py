"""ResponsiveWorkers: workers whose results show that a question to them gets an answer."""

from __future__ import annotations

from master.fleet.silent_workers import LEAST_PATIENCE, PATIENCE_FACTOR, ResponsiveWorkers
from master.fleet.worker_registry import WorkerIdentity

A, B = WorkerIdentity("a", "w"), WorkerIdentity("b", "w")


class Bench:
    def __init__(self) -> None:
        self.now = 0.0
        self.responsive = ResponsiveWorkers(lambda: self.now)
        self.responsive.record_answer(A)

    def expire(self, after: float) -> set[WorkerIdentity]:
        """The workers that count when a silence has lasted that long."""
        self.now += after
        self.responsive.expire()
        return self.responsive.identities


def test_a_worker_counts_from_its_first_result_until_a_silence_of_all() -> None:
    bench = Bench()
    assert bench.expire(LEAST_PATIENCE) == {A}
    bench.responsive.record_answer(B)
    assert bench.expire(LEAST_PATIENCE) == {A, B}
    assert bench.expire(2 * LEAST_PATIENCE) == set()
    bench.responsive.record_answer(B)
    assert bench.responsive.identities == {B}


def test_the_longest_gap_between_results_of_a_publication_sets_the_patience() -> None:
    bench = Bench()
    bench.now = 20.0
    bench.responsive.record_answer(A)
    assert bench.expire(20.0 * PATIENCE_FACTOR) == {A}
    bench.responsive.begin({A})
    assert bench.expire(LEAST_PATIENCE + 0.1) == set()


def test_a_pause_is_neither_a_silence_nor_a_gap_between_results() -> None:
    bench = Bench()
    for _ in range(10):
        bench.now += 360.0
        bench.responsive.restart_clock()
    assert bench.expire(LEAST_PATIENCE) == {A}
    bench.responsive.record_answer(A)
    assert bench.expire(PATIENCE_FACTOR * LEAST_PATIENCE + 0.1) == set()


def test_a_worker_that_has_left_does_not_count() -> None:
    bench = Bench()
    bench.responsive.begin({B})
    assert bench.responsive.identities == set()
