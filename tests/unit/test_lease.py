"""Becoming the master: a living one is never disturbed, a dead one is waited for, and the token fences the loser."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest

from es_queue.errors import FencedError, RunBusyError
from es_queue.protocol.channel import Publish
from es_queue.protocol.memory_channel import MemoryMasterChannel, MemoryServer
from es_queue.protocol.messages import TOKEN, Block, token_number
from master.lease import holder_name, host_of, refuse_live, take
from tests.ring import QUICK

CLOCKS = replace(QUICK, lease=0.3, renew=0.02)


def channel() -> MemoryMasterChannel:
    return MemoryMasterChannel(MemoryServer())


def test_the_first_master_takes_the_lease_at_once() -> None:
    master = channel()
    token = take(master, "me pid 1 abcdef", CLOCKS, wait=False)
    assert TOKEN.fullmatch(token) and token_number(token) == 1
    assert master.epoch() == token and master.lease_holder()[0] == "me pid 1 abcdef"


def test_each_master_raises_the_token_and_none_repeats_it() -> None:
    master, tokens = channel(), []
    for _ in range(4):
        tokens.append(take(master, "me", replace(CLOCKS, lease=0.0), wait=False))
    assert [token_number(token) for token in tokens] == [1, 2, 3, 4]
    assert len({token.partition("-")[2] for token in tokens}) == 4


def test_a_live_master_is_named_and_left_alone() -> None:
    master = channel()
    token = take(master, "big-host pid 77 abcdef", CLOCKS, wait=False)
    with pytest.raises(RunBusyError, match="big-host pid 77 drives it") as caught:
        take(master, "other", CLOCKS, wait=False)
    assert "abcdef" not in str(caught.value) and caught.value.exit_code == 4
    assert master.epoch() == token


def test_waiting_takes_over_from_a_dead_master_once_its_lease_is_over() -> None:
    master, said = channel(), []
    first = take(master, "dead pid 1 abcdef", CLOCKS, wait=False)
    began = time.monotonic()
    second = take(master, "me", CLOCKS, wait=True, note=said.append)
    assert token_number(second) == token_number(first) + 1
    assert 0.2 < time.monotonic() - began < 5
    assert len(said) == 1 and "dead pid 1 may still drive" in said[0]


def test_waiting_gives_up_as_soon_as_the_lease_is_renewed() -> None:
    master, over, clocks = channel(), threading.Event(), replace(CLOCKS, lease=30.0)
    token = take(master, "alive pid 1 abcdef", clocks, wait=False)

    def renew() -> None:
        while not over.wait(0.03):
            master.renew(token, "alive pid 1 abcdef", clocks.lease, {}, {})

    thread = threading.Thread(target=renew)
    thread.start()
    began = time.monotonic()
    try:
        with pytest.raises(RunBusyError, match="alive pid 1"):
            take(master, "me", clocks, wait=True)
    finally:
        over.set()
        thread.join(10)
    assert master.epoch() == token and time.monotonic() - began < 15


def test_nobody_waits_for_a_lease_that_nobody_holds() -> None:
    refuse_live(channel(), CLOCKS, wait=False, note=lambda text: pytest.fail(text))


def test_of_two_masters_the_one_with_the_lower_token_writes_nothing() -> None:
    master = channel()
    old = take(master, "old", replace(CLOCKS, lease=0.0), wait=False)
    new = take(master, "new", CLOCKS, wait=False)
    publication = f"0.{old}"
    what = Publish(publication, b"task", [Block(publication, "train", 0, 1)], "{}", {"state": "running"})
    for write in (
        lambda: master.publish(old, what),
        lambda: master.extend(old, publication, []),
        lambda: master.renew(old, "old", 1.0, {}, {}),
        lambda: master.finish(old, {}, 1, None),
    ):
        with pytest.raises(FencedError):
            write()
    assert master.epoch() == new and master.server.todo == [] and master.server.task is None


def test_a_holders_name_is_for_people_and_unlike_any_other() -> None:
    assert holder_name() != holder_name()
    assert host_of("node pid 12 abcdef") == "node pid 12"
    assert host_of("evil\x1b[2J pid 1 abcdef") == "evil[2J pid 1" and len(host_of("x " * 500)) <= 100
