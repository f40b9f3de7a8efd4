"""ControlClient over a real server: requests are sent once, replies are bounded, and a purged run
leaves nothing but its epoch.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import redis

from es_queue.errors import RedisError
from es_queue.protocol import keys
from es_queue.protocol.control import (
    EPOCH_SECONDS,
    MAX_WAITING,
    PAUSE,
    ControlClient,
    ControlRequest,
    LeaseStatus,
)
from es_queue.protocol.seats import open_seats
from tests.cases import each_case
from tests.contract.places import P0, RUN, RedisPlace, block

REQUEST = ControlRequest("0a0b0c0d", PAUSE, "ada@host", 1.0)


@pytest.fixture
def place(redis_client: redis.Redis) -> RedisPlace:
    return RedisPlace(redis_client)


@pytest.fixture
def desk(redis_client: redis.Redis) -> ControlClient:
    return ControlClient(redis_client, RUN, 2.0)


def test_a_run_that_nobody_knows_has_no_standing_and_no_config(desk: ControlClient) -> None:
    assert (desk.lease_status(), desk.config(), desk.key_count()) == (
        LeaseStatus(None, None),
        None,
        0,
    )


def test_a_request_stands_there_once_however_often_it_is_sent_and_can_be_withdrawn(
    desk: ControlClient, place: RedisPlace
) -> None:
    desk.send(REQUEST)
    desk.send(REQUEST)
    assert place.master().requests() == [REQUEST.encode()]
    assert 0 < place.client.ttl(place.keys.commands) <= keys.RUN_SECONDS
    desk.withdraw(REQUEST)
    assert place.master().requests() == []


def test_a_master_that_does_not_look_is_not_buried_in_requests(
    desk: ControlClient, place: RedisPlace
) -> None:
    place.client.rpush(place.keys.commands, *range(MAX_WAITING))
    with pytest.raises(RedisError, match="100 requests already wait for the master of contract"):
        desk.send(REQUEST)


def test_requests_that_were_answered_are_forgotten_and_no_others(
    desk: ControlClient, place: RedisPlace
) -> None:
    desk.send(REQUEST)
    place.client.rpush(place.keys.commands, b"rubbish")
    place.master().forget_requests([b"rubbish"])
    assert place.master().requests() == [REQUEST.encode()]


@each_case(
    ("replies", "expected"),
    [
        ('{"0a0b0c0d": "paused"}', "paused"),
        ('{"0a0b0c0d": 3}', None),
        ("{}", None),
        ("no", None),
        ("[]", None),
        (json.dumps({"x": "y" * 70_000}), None),
        ("", None),
    ],
)
def test_a_reply_is_believed_only_when_it_is_one(
    replies: str, expected: Any, desk: ControlClient, place: RedisPlace
) -> None:
    place.client.hset(place.keys.progress, "replies", replies)
    assert desk.poll_reply(REQUEST) == expected


def test_a_purged_run_leaves_its_epoch_for_a_while_and_nothing_else(
    desk: ControlClient, place: RedisPlace, redis_client: redis.Redis
) -> None:
    place.publish(P0, block(0, 4))
    place.arrived().claim(0.01)
    for queue in ("default", "other"):
        open_seats(redis_client, queue, RUN, "0a0b0c", 2, 60)
    open_seats(redis_client, "default", "neighbour", "0a0b0c", 1, 60)
    place.client.set("es:contract-2:config", "{}")
    assert desk.key_count() > 5
    desk.delete_keys()
    left = {name.decode() for name in place.client.scan_iter("es:*")}
    assert left == {place.keys.epoch, "es:contract-2:config", "es:neighbour:seatno"}
    assert 0 < place.client.ttl(place.keys.epoch) <= EPOCH_SECONDS
    assert place.client.zscore(keys.RUNS, RUN) is None
    assert (place.client.llen("rq:queue:default"), place.client.llen("rq:queue:other")) == (1, 0), (
        "the neighbour's seat stays"
    )
    assert not list(place.client.scan_iter(f"rq:job:es-{RUN}-0*"))
