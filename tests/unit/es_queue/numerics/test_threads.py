"""Threads for arithmetic: each piece of work is done once, and what goes wrong in one is the
caller's to know.
"""

from __future__ import annotations

import os
import threading

import pytest

from es_queue.numerics.threads import MAX_THREADS, for_each, usable_cores
from tests.cases import each_case


@each_case("threads", [0, 1, 2, 5])
def test_each_item_is_worked_on_once(threads: int) -> None:
    done: list[int] = []
    for_each(done.append, range(100), threads)
    assert sorted(done) == list(range(100))


def test_threads_work_at_the_same_time_and_are_gone_afterwards() -> None:
    before, meet = threading.active_count(), threading.Barrier(3, timeout=30)
    for_each(lambda _: meet.wait(), range(3), 3)
    assert threading.active_count() == before


@each_case("threads", [1, 3])
def test_an_error_of_the_work_is_raised_when_nothing_is_under_way_any_more(threads: int) -> None:
    before = threading.active_count()
    with pytest.raises(ZeroDivisionError):
        for_each(lambda item: 1 // (item - 5), range(1000), threads)
    assert threading.active_count() == before


def test_cores_are_those_that_the_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    for usable, wanted in (({3}, 1), ({1, 5}, 2), (set(range(64)), MAX_THREADS)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, usable=usable: usable)
        assert usable_cores() == wanted
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_cores() == 1
