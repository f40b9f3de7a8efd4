"""What was answered while the master looked after other things is owed by nobody."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.unit.master.collect.collector_bench import Bench


class Slow:
    """A housekeeper that takes its time, in which the workers play everything there is."""

    def __init__(self) -> None:
        self.bench: Bench | None = None
        self.worker: Any = None

    def maintain(
        self, workers: Mapping[str, Mapping[str, str]], served: bool, paused: bool
    ) -> list[str]:
        assert self.bench is not None
        self.bench.work(self.worker)
        return []


def test_answers_that_come_during_a_look_are_read_before_what_is_owed_is_issued_again() -> None:
    keeper = Slow()
    bench = keeper.bench = Bench(maintain=keeper.maintain).open()
    keeper.worker = bench.worker()
    bench.tick()
    assert bench.ledger.is_complete() and bench.todo() == [] and bench.ledger.tally.reissued == 0
