"""Large entries in a results stream: the master's memory is bounded, whatever anyone adds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from es_queue import acl
from tests.abuse.servers import BOTH
from tests.abuse.test_least_privilege import Household, guarded
from tests.faults.scenarios.answers import most_held
from tests.integration.processes import CARTPOLE, Processes, Seen, flags, wait_for

MOST_MEGABYTES = 256.0
MEGABYTE = 2**20
ENDLESS = {**CARTPOLE, "generations": 100_000, "block": 1}


@pytest.fixture(params=BOTH)
def household(
    request: pytest.FixtureRequest, tmp_path: Path, processes: Processes
) -> Iterator[Household]:
    with guarded(request.param, tmp_path, processes) as one:
        yield one


class Attack:
    """A run without workers, whose results stream somebody with the worker's password fills."""

    def __init__(self, household: Household) -> None:
        self.seen = Seen(household.client, "filled")
        self.master = household.master(*flags(ENDLESS), "--run", "filled", "--json")
        wait_for(lambda: self.seen.progress().get("publication"), "the run has a publication")
        self.key = self.seen.keys.results(self.seen.progress()["publication"])
        #: An attacker waits as long as 720 MB take on a busy machine.
        self.client: Any = Redis.from_url(household.url(acl.WORKER), socket_timeout=60)

    def add(self, fields: dict[Any, Any], times: int = 1) -> None:
        pipeline = self.client.pipeline(transaction=True)  # seen all at once
        for _ in range(times):
            pipeline.xadd(self.key, fields, nomkstream=True)
        pipeline.execute()

    def refused(self) -> int:
        return int(self.seen.client.hget(self.seen.keys.refused, "undecodable") or 0)

    def wait_until_refused(self, count: int) -> None:
        wait_for(lambda: self.refused() >= count, f"{count} entries are refused", 60)

    def assert_bounded(self, count: int) -> None:
        """All entries were refused and deleted, and the master never held too much."""
        self.wait_until_refused(count)
        wait_for(lambda: self.seen.client.xlen(self.key) == 1, "only the header stays")
        held = most_held(self.master)
        print(f"the master held {held:.0f} MB at most")
        assert held < MOST_MEGABYTES
        assert self.refused() == count
        self.client.close()


def test_large_answers_after_many_tiny_ones_stay_within_the_bound(household: Household) -> None:
    attack = Attack(household)
    pipeline = attack.client.pipeline(transaction=True)
    for _ in range(1500):
        pipeline.xadd(attack.key, {"answer": b"x"}, nomkstream=True)
    for _ in range(300):
        pipeline.xadd(attack.key, {"answer": bytes(3 * MEGABYTE // 2)}, nomkstream=True)
    pipeline.execute()
    attack.assert_bounded(1800)


def test_one_entry_of_six_large_fields_stays_within_the_bound(household: Household) -> None:
    attack = Attack(household)
    attack.add({f"field {number}": bytes(120 * MEGABYTE) for number in range(6)})
    attack.add({"answer": bytes(120 * MEGABYTE)})
    attack.assert_bounded(2)


def test_entries_of_many_fields_are_refused_and_cost_nothing(household: Household) -> None:
    attack = Attack(household)
    attack.add({str(number): b"" for number in range(100_000)}, times=3)
    attack.add({"answer": b"x", "other": b"y"}, times=3)
    attack.assert_bounded(6)
