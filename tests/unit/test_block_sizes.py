"""How many slots a block holds where a worker plays many episodes at once."""

from __future__ import annotations

from es_queue.protocol import messages
from master.collector import least_sizes
from tests.unit.test_collector import Bench


def test_blocks_of_episodes_that_are_played_together_hold_32_individuals_but_leave_something_for_others() -> None:
    assert least_sizes("lean", 2) == least_sizes("stock", 2) == {}
    bench = Bench(block=0, slots=40)
    bench.collector.least = least_sizes("envpool", 2)
    bench.open()
    assert bench.todo()[1] == "train 0 16"
    for name in "abcd":
        bench.worker(name)
    bench.tick()
    assert bench.collector._sizes(bench.ledger)[messages.TRAIN] == 10
