"""Interleavings on the workers' side: claims whose replies are lost, seats that follow each other,
a lease that is over.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from es_queue.protocol.connection import client_from_url
from es_queue.protocol.messages import Block
from es_queue.protocol.redis_channel import RedisWorkerChannel
from tests.contract.places import (
    ABOUT,
    P0,
    RUN,
    TOKEN,
    TTL,
    RedisPlace,
    block,
    owed,
    wait_until,
    worker_name,
)
from tests.ring import QUICK
from workers.block_worker import BlockWorker


@pytest.fixture
def place(redis_client: redis.Redis) -> RedisPlace:
    return RedisPlace(redis_client)


# --- 1.1


def test_a_block_that_my_dead_connection_was_given_is_the_next_that_i_work(
    place: RedisPlace, valkey_url: str
) -> None:
    """The server serves whoever waits longest, and does not know that nobody listens there any
    more.
    """
    master = place.publish(P0)
    nobody: Any = SimpleNamespace()
    me = BlockWorker(place.arrived(), nobody, QUICK, "")
    with client_from_url(valkey_url) as client, ThreadPoolExecutor(1) as pool:
        dead = pool.submit(RedisWorkerChannel(client, RUN, worker_name(1)).claim, 4.0)
        wait_until(lambda: place.client.info("clients")["blocked_clients"])
        master.extend(TOKEN, P0, [block(0, 4), block(4, 8)])
        dead.result(20)
    assert me._next_block() == block(0, 4)


# --- 1.2


def dropped(place: RedisPlace) -> None:
    """It read another publication's task, and dropped a block that is open."""
    worker = place.arrived()
    worker.drop(worker.claim(0.01) or block(0, 1))


def unknown(place: RedisPlace) -> None:
    """It has claimed, and nothing says yet that it lives."""
    place.worker().claim(0.01)


def answered_without_use(place: RedisPlace) -> None:
    """Its answer is there, but was refused, or left slots out."""
    worker = place.arrived()
    worker.answer(worker.claim(0.01) or block(0, 1), b"refused")


def suspected(place: RedisPlace) -> None:
    """Thought dead, it claims again while its former block is on its way back."""
    worker = place.arrived()
    worker.claim(0.01)
    place.lapse()
    place.master().reconcile(TOKEN, owed(("train", 0, 8)))
    worker.beat(ABOUT, TTL)
    worker.claim(0.01)
    worker.answer(block(0, 4), b"refused")


@pytest.mark.parametrize("befall", [dropped, unknown, answered_without_use, suspected])
def test_whatever_befalls_a_claim_no_unanswered_slot_is_in_no_list(
    place: RedisPlace, befall: Callable[[RedisPlace], None]
) -> None:
    master = place.publish(P0, block(0, 4), block(4, 8))
    befall(place)
    found = master.reconcile(TOKEN, owed(("train", 0, 8)))
    assert found is not None
    held = [one for blocks in found.claims.values() for one in blocks]
    waiting = [Block.decode(text) for text in place.todo()]
    assert sorted(slot for one in (*held, *waiting) for slot in range(one.start, one.stop)) == list(
        range(8)
    )
