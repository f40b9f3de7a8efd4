"""What Redis has lost is noticed at the next publish as well, and parameters that vanish before it
are staged again.
"""

from __future__ import annotations

from typing import Any

import pytest

from es_queue.errors import RedisError
from es_queue.protocol.channel import PublishRequest
from master.collect.collector import FORMER_GENERATION_LOST, MOST_STAGING_ATTEMPTS
from master.collect.recovery_statistics import REDIS_AWAY, REDIS_LOST
from tests.cases import each_case
from tests.unit.master.collect.collector_bench import ALL, PARAMETERS, PUBLICATION, Bench

NEXT = "4.1-00000000"


def next_generation(bench: Bench) -> None:
    bench.ledger.publication = NEXT
    bench.what = PublishRequest(NEXT, b"task", (), "{}", {"state": "running"})
    bench.open()


def test_the_next_generation_over_the_one_before_is_no_loss() -> None:
    bench = Bench().open()
    next_generation(bench)
    assert bench.notes == [] and bench.collector.context.recoveries.count(REDIS_LOST) == 0


@each_case("stored", [None, "2.1-00000000"])
def test_a_generation_that_was_lost_before_the_next_is_published_is_noticed(
    stored: str | None,
) -> None:
    bench = Bench().open()
    bench.server.progress = {} if stored is None else {"publication": stored}
    next_generation(bench)
    assert (
        bench.notes == [FORMER_GENERATION_LOST]
        and bench.collector.context.recoveries.count(REDIS_LOST) == 1
    )
    assert bench.server.progress["publication"] == NEXT


def test_a_publish_that_was_sent_twice_is_no_loss() -> None:
    bench = Bench().open()
    bench.server.progress["publication"] = NEXT
    next_generation(bench)
    assert bench.notes == []


def test_the_first_generation_of_a_master_replaces_whatever_is_stored() -> None:
    bench = Bench()
    bench.server.progress = {"publication": "2.1-00000000"}
    assert bench.open().notes == []


class Vanishing:
    """Takes the parameters away after each of the first few stagings."""

    def __init__(self, bench: Bench, times: int) -> None:
        self._bench, self._stage, self.left = bench, bench.channel.stage, times
        bench.channel.stage = self  # type: ignore[method-assign,assignment]

    def __call__(self, *arguments: Any) -> None:
        self._stage(*arguments)
        self.left -= 1
        if self.left >= 0:
            self._bench.server.parameters.clear()


def test_parameters_that_vanish_before_the_publish_are_staged_again() -> None:
    bench = Bench()
    Vanishing(bench, 3)
    bench.open()
    assert bench.server.parameters == {PUBLICATION: PARAMETERS} and bench.todo() == ALL


def test_parameters_that_vanish_for_ever_are_one_sentence() -> None:
    bench = Bench()
    Vanishing(bench, MOST_STAGING_ATTEMPTS)
    with pytest.raises(
        RedisError, match=r"^the parameters of publication 3\.1-00000000 disappeared from Redis"
    ):
        bench.open()


def test_outages_that_ended_since_the_last_look_are_one() -> None:
    bench = Bench().open()
    bench.channel.ended_outages = lambda: [0.5, 1.5]  # type: ignore[method-assign]
    bench.tick()
    assert bench.collector.context.recoveries.totals()[REDIS_AWAY] == [1, 2.0, 2.0]
