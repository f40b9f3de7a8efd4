"""Reading keys of odd sizes takes master, purge and looks no more memory than SECURITY.md claims."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from es_queue import acl
from es_queue.protocol import keys
from es_queue.protocol.connection import client_from_url
from tests.abuse.servers import BOTH
from tests.abuse.test_least_privilege import ENDLESS, Household, guarded
from tests.faults.scenarios.answers import most_held
from tests.integration.processes import Processes, Seen, flags, wait_for

MOST_MEGABYTES, MEGABYTE = 256.0, 2**20


@pytest.fixture(params=BOTH)
def household(request: pytest.FixtureRequest, tmp_path: Path, processes: Processes) -> Iterator[Household]:
    with guarded(request.param, tmp_path, processes) as one:
        yield one


def begun(household: Household, run: str) -> tuple[Any, Seen, Any]:
    """A run without workers, and a client with the worker's password."""
    seen = Seen(household.client, run)
    master = household.master(*flags(ENDLESS), "--run", run, "--json")
    wait_for(lambda: seen.progress().get("publication"), "the run has a publication")
    return master, seen, client_from_url(household.url(acl.WORKER))


def watched(master: Any, seconds: float) -> float:
    """The most megabytes that the master has held after so many seconds, or when it is too much."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and master.process.poll() is None and most_held(master) < MOST_MEGABYTES:
        time.sleep(0.2)
    held = most_held(master) if master.process.poll() is None else float("nan")
    print(f"the master held {held:.0f} MB at most")
    return held


def test_workers_that_say_much_in_small_words_stay_within_the_bound(household: Household) -> None:
    """20,000 hashes of 128 short fields are 32 MB in Redis, and many times that as Python's dicts of str."""
    master, seen, client = begun(household, "hashes")
    fields = {f"f{number:03}": f"v{number:03}" for number in range(128)}
    for start in range(0, 20_000, 500):
        pipeline = client.pipeline(transaction=False)
        for number in range(start, start + 500):
            name = f"h-{number}-abcdef"
            pipeline.hset(seen.keys.worker(name), mapping=fields)
            pipeline.pexpire(seen.keys.worker(name), 120_000)
            pipeline.sadd(seen.keys.workers, name)
        pipeline.execute()
    assert watched(master, 25) < MOST_MEGABYTES


def test_a_swollen_lock_of_rqs_registries_stays_within_the_bound(household: Household) -> None:
    """The cleaner reads the lock after it did not get it; a worker may write 120 MB there."""
    master, _, client = begun(household, "locked")
    client.set(keys.rq_cleaning("default"), bytes(120 * MEGABYTE))
    client.zadd(keys.rq_wip("default"), {f"{keys.seat_id('locked', 'abcdef', 1)}:execution": time.time() + 1000})
    assert watched(master, 25) < MOST_MEGABYTES


def test_a_run_whose_keys_have_long_names_is_purged_within_the_bound(household: Household) -> None:
    """SCAN gives 500 names at once, of any length."""
    master, seen, client = begun(household, "named")
    household.master("--stop", "named").wait()
    master.wait()
    for number in range(400):
        client.lpush(seen.keys.claims(f"{number:04}" + "x" * MEGABYTE), "y")
    purge = household.master("--purge", "named", "--yes")
    held = 0.0
    until = time.monotonic() + 30
    while purge.process.poll() is None and time.monotonic() < until:
        try:
            held = max(held, most_held(purge))
        except (OSError, AttributeError, IndexError, AssertionError, StopIteration):
            break
        time.sleep(0.02)
    print(f"the purge held {held:.0f} MB at most; it said {purge.said()[-300:]}")
    assert held < MOST_MEGABYTES


@pytest.mark.parametrize("what", ["names", "hashes", "errors"])
@pytest.mark.parametrize("words", [(), ("odd",), ("odd", "--doctor"), ("--keys",), ("odd", "--errors")], ids=["runs", "run", "doctor", "keys", "errors"])
def test_a_look_stays_within_its_bound(words: tuple[str, ...], what: str, household: Household) -> None:
    """Names of a megabyte, workers of 128 short fields, reports of many short items."""
    _, seen, client = begun(household, "odd")
    if what == "names":
        for number in range(300):
            client.lpush(seen.keys.claims(f"{number:04}" + "x" * MEGABYTE), "y")
    if what == "hashes":
        fields = {f"f{number:03}": f"v{number:03}" for number in range(128)}
        pipeline = client.pipeline(transaction=False)
        for number in range(10_000):
            name = f"h-{number}-abcdef"
            pipeline.hset(seen.keys.worker(name), mapping=fields)
            pipeline.sadd(seen.keys.workers, name)
        pipeline.execute()
    if what == "errors":
        client.rpush(seen.keys.errors, *['{"a":[' + "1," * 9000 + "1]}"] * 200)
    look = household.status(*words)
    held, until = 0.0, time.monotonic() + 40
    while look.process.poll() is None and time.monotonic() < until:
        held = max(held, most_held(look))
        time.sleep(0.01)
    print(f"{what} {words}: {held:.0f} MB, code {look.process.poll()}")
    assert held < 128
