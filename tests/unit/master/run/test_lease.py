"""Becoming the master: a living one is never disturbed, a dead one is waited for, and the token
fences the loser.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from es_queue.errors import FencedError, RedisError, RunBusyError
from es_queue.protocol.channel import PublishRequest
from es_queue.protocol.messages import TOKEN, Block, token_number
from es_queue.protocol.timing import Clocks
from master.run.lease import LeaseRenewal, take_lease
from tests.memory_channel import MemoryMasterChannel, MemoryServer
from tests.notes import collect_notes
from tests.ring import QUICK

CLOCKS = replace(QUICK, lease=0.3, renew=0.02)


def channel() -> MemoryMasterChannel:
    return MemoryMasterChannel(MemoryServer())


def test_the_first_master_takes_the_lease_at_once() -> None:
    master = channel()
    token = take_lease(master, "me pid 1 abcdef", CLOCKS, wait=False)
    assert TOKEN.fullmatch(token) and token_number(token) == 1
    assert master.epoch() == token and master.lease_holder()[0] == "me pid 1 abcdef"


def test_each_master_raises_the_token_and_none_repeats_it() -> None:
    master, tokens = channel(), []
    for _ in range(4):
        tokens.append(take_lease(master, "me", replace(CLOCKS, lease=0.0), wait=False))
    assert [token_number(token) for token in tokens] == [1, 2, 3, 4]
    assert len({token.partition("-")[2] for token in tokens}) == 4


def test_a_live_master_is_named_and_left_alone() -> None:
    master = channel()
    token = take_lease(master, "big-host pid 77 abcdef", CLOCKS, wait=False)
    with pytest.raises(RunBusyError, match="big-host pid 77 leads it") as caught:
        take_lease(master, "other", CLOCKS, wait=False)
    assert "abcdef" not in str(caught.value) and caught.value.exit_code == 4
    assert master.epoch() == token


def test_waiting_takes_over_from_a_dead_master_once_its_lease_is_over() -> None:
    master, said = channel(), collect_notes()
    first = take_lease(master, "dead pid 1 abcdef", CLOCKS, wait=False)
    began = time.monotonic()
    second = take_lease(master, "me", CLOCKS, wait=True)
    assert token_number(second) == token_number(first) + 1
    assert 0.2 < time.monotonic() - began < 5
    assert len(said) == 1 and "dead pid 1 may still lead" in said[0]


def test_waiting_gives_up_as_soon_as_the_lease_is_renewed() -> None:
    master, over, clocks = channel(), threading.Event(), replace(CLOCKS, lease=30.0)
    token = take_lease(master, "alive pid 1 abcdef", clocks, wait=False)

    def renew() -> None:
        while not over.wait(0.03):
            master.renew(token, "alive pid 1 abcdef", clocks.lease, {}, {})

    thread = threading.Thread(target=renew)
    thread.start()
    began = time.monotonic()
    try:
        with pytest.raises(RunBusyError, match="alive pid 1"):
            take_lease(master, "me", clocks, wait=True)
    finally:
        over.set()
        thread.join(10)
    assert master.epoch() == token and time.monotonic() - began < 15


def test_of_two_masters_the_one_with_the_lower_token_writes_nothing() -> None:
    master = channel()
    old = take_lease(master, "old", replace(CLOCKS, lease=0.0), wait=False)
    new = take_lease(master, "new", CLOCKS, wait=False)
    publication = f"0.{old}"
    what = PublishRequest(
        publication, b"task", [Block(publication, "train", 0, 1)], "{}", {"state": "running"}
    )
    for write in (
        lambda: master.publish(old, what),
        lambda: master.extend(old, publication, []),
        lambda: master.renew(old, "old", 1.0, {}, {}),
        lambda: master.finish(old, {}, 1, None),
    ):
        with pytest.raises(FencedError):
            write()
    assert master.epoch() == new and master.server.todo == [] and master.server.task is None


def eventually(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    return condition()


@contextmanager
def renewing(master: MemoryMasterChannel, clocks: Clocks, **more: Any) -> Iterator[LeaseRenewal]:
    """A lease that is renewed beside the test's own thread."""
    thread = LeaseRenewal(
        master,
        take_lease(master, "me pid 1 abcdef", clocks, wait=False),
        "me pid 1 abcdef",
        clocks,
        **more,
    )
    thread.start()
    try:
        yield thread
    finally:
        thread.end(10)
    assert not thread.is_alive()


def left(master: MemoryMasterChannel) -> float:
    return master.lease_holder()[1]


def test_the_lease_is_renewed_whatever_the_masters_own_thread_does() -> None:
    master = channel()
    with renewing(master, replace(CLOCKS, lease=10.0)):
        for _ in range(3):
            master.server.lease = ("me pid 1 abcdef", time.monotonic() + 1.0)
            assert eventually(lambda: left(master) > 5)
    master.server.lease = ("", 0.0)
    assert master.lease_holder()[0] is None, "nobody takes it again after the end"


def test_a_silent_master_loses_its_lease_and_gets_it_again_with_the_next_sign_of_life() -> None:
    now = [100.0]
    master = channel()
    with renewing(master, replace(CLOCKS, lease=0.3, grace=60.0), clock=lambda: now[0]) as thread:
        now[0] += 61
        assert eventually(lambda: master.lease_holder()[0] is None)
        thread.show_sign()
        assert eventually(lambda: master.lease_holder()[0] is not None)


def test_a_master_that_was_replaced_renews_no_more() -> None:
    master = channel()
    with renewing(master, CLOCKS) as thread:
        master.renew("99-00000000", "another pid 2 abcdef", 60.0, {}, {})
        thread.join(10)
        assert not thread.is_alive() and master.lease_holder()[0] == "another pid 2 abcdef"


def test_renewals_that_redis_does_not_answer_are_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    master, calls = channel(), [0]
    renew = master.renew

    def away(*given: Any) -> Any:
        calls[0] += 1
        if calls[0] in (2, 3):
            raise RedisError("Redis has been unreachable")
        return renew(*given)

    monkeypatch.setattr(master, "renew", away)
    with renewing(master, CLOCKS):
        assert eventually(lambda: calls[0] >= 5)
