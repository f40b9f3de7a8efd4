"""Becoming a run's master beside others who want the same, over a real server; and the ends of a
standby.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest
import redis

from es_queue.errors import FencedError, RunBusyError
from es_queue.protocol.connection import client_from_url
from es_queue.protocol.keys import Clocks
from es_queue.protocol.store import MasterStore
from master.run.lease import take_lease
from tests.integration.processes import CARTPOLE, Processes, Seen, flags, wait_for

CLOCKS = Clocks(lease=5.0, renew=0.5)
RACES, RACERS = 50, 4


@pytest.fixture
def channels(valkey_url: str) -> Iterator[list[redis.Redis]]:
    with ExitStack() as stack:
        yield [stack.enter_context(client_from_url(valkey_url)) for _ in range(RACERS)]


def test_who_reads_the_token_late_does_not_fence_who_has_just_taken_the_run(
    channels: list[redis.Redis],
) -> None:
    first, taken = MasterStore(channels[0], "late"), list[str]()

    class Late(MasterStore):
        def epoch(self) -> str | None:
            taken.append(take_lease(first, "first pid 1 abcdef", CLOCKS, wait=False))
            return super().epoch()

    with pytest.raises(RunBusyError, match="first pid 1 leads it"):
        take_lease(Late(channels[1], "late"), "second pid 2 abcdef", CLOCKS, wait=False)
    first.renew(taken[0], "first pid 1 abcdef", CLOCKS.lease)
    assert first.epoch() == taken[0]


def test_a_woken_master_can_write_nothing_at_all(channels: list[redis.Redis]) -> None:
    old, new = (MasterStore(client, "woken") for client in channels[:2])
    before = take_lease(old, "old pid 1 abcdef", replace(CLOCKS, lease=0.01), wait=False)
    wait_for(lambda: new.lease_holder()[0] is None, "the lease lapses")
    token = take_lease(new, "new pid 2 abcdef", CLOCKS, wait=False)
    new.open(token, f"0.{token}", b"1234", b"task", config="{}", progress={"state": "running"})
    client = channels[2]
    stored = {name: client.dump(name) for name in client.keys("es:woken:*")}
    ended = {"state": "finished"}
    writes: list[Callable[[], object]] = [
        lambda: old.open(before, f"0.{before}", b"5678", b"other", config="{}", progress=ended),
        lambda: old.issue(before, f"0.{token}", [], b"other"),
        lambda: old.look(before, "old pid 1 abcdef", 5.0, ended),
        lambda: old.renew(before, "old pid 1 abcdef", 5.0),
        lambda: old.finish(before, ended, 0, None),
    ]
    for write in writes:
        with pytest.raises(FencedError):
            write()
    client.delete(f"es:woken:parameters:0.{before}")  # what it staged goes by itself
    assert {name: client.dump(name) for name in client.keys("es:woken:*")} == stored


def test_a_standby_ends_with_the_run_or_with_a_persons_wish(
    valkey_url: str, redis_client: redis.Redis, processes: Processes
) -> None:
    master = processes.master(
        *flags({**CARTPOLE, "generations": 3000}), "--run", "watched", "--json", url=valkey_url
    )
    processes.worker(valkey_url)
    wait_for(Seen(redis_client, "watched").has_reached(1), "generation 1")
    standbys = [
        processes.master(
            "--standby", "watched", "--run-dir", processes.folder / name, "--json", url=valkey_url
        )
        for name in ("a", "b")
    ]
    for one in standbys:
        wait_for(lambda one=one: "standing by:" in one.said(), "it stands by")  # type: ignore[misc]
    standbys[0].signal(signal.SIGINT)
    assert standbys[0].wait() == 130, standbys[0].said()
    master.signal(signal.SIGINT)
    assert master.wait() == 130, master.said()
    assert standbys[1].wait() == 0, standbys[1].said()
    assert "run watched is stopped: there is nothing to take over" in standbys[1].said()
    assert not any(one.events() for one in standbys)
