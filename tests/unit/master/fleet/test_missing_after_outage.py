"""MissingAfterOutage after an outage: who did not come back is named, once, with what to do."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from master.fleet.idle_monitor import MISSING_HOSTS_NAMED, MissingAfterOutage
from tests.notes import collect_notes


class Bench:
    def __init__(self) -> None:
        self.now, self.notes = 100.0, collect_notes()
        self.roll = MissingAfterOutage(3.0, lambda: self.now)

    def update(
        self, names: str, outages: int, after: float = 1.0, leaving: Iterable[str] = ()
    ) -> None:
        self.now += after
        self.roll.update({name: {"host": f"host-{name}"} for name in names}, outages, leaving)


@pytest.fixture
def bench() -> Bench:
    found = Bench()
    found.update("abc", 0)
    return found


def test_workers_that_did_not_come_back_are_counted_with_their_hosts_and_what_helps(
    bench: Bench,
) -> None:
    bench.update("", 4)
    bench.update("a", 4, 2.9)
    assert bench.notes == []
    bench.update("a", 4, 0.2)
    (said,) = bench.notes
    assert said.startswith(
        "2 of 3 workers did not return after the Redis outage (on host-b, host-c)"
    )
    assert "Restart=always" in said and "rq worker-pool" in said
    bench.update("a", 4, 10)
    assert len(bench.notes) == 1


def test_all_that_are_back_in_time_are_not_named(bench: Bench) -> None:
    bench.update("", 4)
    bench.update("cab", 4, 4)
    assert bench.notes == []


def test_a_worker_that_was_started_again_under_another_name_is_back(bench: Bench) -> None:
    bench.update("ab", 1)
    bench.update("abx", 1, 4)
    assert bench.notes == []


def test_a_further_failure_gives_them_more_time_and_forgets_nobody(bench: Bench) -> None:
    bench.update("a", 1)
    bench.update("a", 2, 2)
    bench.update("ab", 2, 2)
    assert bench.notes == []
    bench.update("ab", 2, 1)
    assert bench.notes[0].startswith("1 of 3 workers")


def test_a_worker_that_goes_without_an_outage_is_no_matter_of_this(bench: Bench) -> None:
    for _ in range(9):
        bench.update("a", 0)
    assert bench.notes == []


def test_a_worker_that_gives_way_to_another_run_is_not_missed(bench: Bench) -> None:
    bench.update("abc", 1, leaving=["c"])
    bench.update("ab", 1, 4)
    assert bench.notes == []


def test_after_the_call_the_present_ones_are_those_that_count(bench: Bench) -> None:
    bench.update("ab", 1)
    bench.update("ab", 1, 4)
    bench.update("ab", 2)
    bench.update("ab", 2, 4)
    assert len(bench.notes) == 1


def test_many_hosts_are_not_all_named() -> None:
    bench = Bench()
    bench.update("abcdefghij", 0)
    bench.update("", 1)
    bench.update("", 1, 4)
    assert bench.notes[0].count("host-") == MISSING_HOSTS_NAMED and " and others" in bench.notes[0]
