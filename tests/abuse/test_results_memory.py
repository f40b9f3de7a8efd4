"""Megabytes among a run's results: the master's memory is bounded, whatever anyone adds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from es_queue import acl
from es_queue.slots import Shape
from tests.abuse.servers import WHEEL
from tests.abuse.test_least_privilege import Household, guarded
from tests.faults.scenarios.answers import most_held
from tests.integration.processes import CARTPOLE, Processes, Seen, flags, wait_for

MOST_MEGABYTES = 256.0
MEGABYTE = 2**20
ENDLESS = {**CARTPOLE, "generations": 100_000, "block": 1}


@pytest.fixture
def household(tmp_path: Path, processes: Processes) -> Iterator[Household]:
    with guarded(WHEEL, tmp_path, processes) as one:
        yield one


def test_hundreds_of_megabytes_of_results_and_moments_are_read_a_few_at_a_time(
    household: Household,
) -> None:
    seen = Seen(household.client, "filled")
    master = household.master(*flags(ENDLESS), "--run", "filled", "--json")
    publication = wait_for(lambda: seen.progress().get("publication"), "the run has a publication")
    # Results of zeros have too few steps; moments of zeros are of no sampled slot.
    sizes = {
        seen.keys.moments(publication, 0): (Shape(1, 4, 0).moments.itemsize, 100),
        seen.keys.results(publication, 0): (Shape(2, 0, 0).result.itemsize, 200),
    }
    client: Any = Redis.from_url(household.url(acl.WORKER), socket_timeout=60)
    for key, (size, megabytes) in sizes.items():
        piece = bytes(MEGABYTE // size * size)
        for _ in range(megabytes):
            client.append(key, piece)
    results = 200 * (MEGABYTE // Shape(2, 0, 0).result.itemsize)
    refused = seen.keys.refused
    wait_for(
        lambda: int(seen.client.hget(refused, "wrong-length") or 0) >= results, "all are refused"
    )
    held = most_held(master)
    print(f"the master held {held:.0f} MB at most")
    assert held < MOST_MEGABYTES
    client.close()
