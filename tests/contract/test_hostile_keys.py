"""What somebody with a worker's rights may write into a run's keys: noise to the master, and
bounded.
"""

from __future__ import annotations

from typing import Any

import pytest

from es_queue.errors import RedisError
from tests.cases import each_case
from tests.contract.places import (
    ABOUT,
    P0,
    TOKEN,
    TTL,
    Place,
    RedisPlace,
    block,
    look,
    read,
    worker_name,
)

MINE = worker_name(1)
LONG = "z" * 100_000


# --- keys of another type


def set_to_another_type(place: RedisPlace, key: str, kind: str) -> None:
    client: Any = place.client
    client.delete(key)
    makes: dict[str, Any] = {
        "string": lambda: client.set(key, "x"),
        "set": lambda: client.sadd(key, "x"),
        "list": lambda: client.rpush(key, "x"),
        "hash": lambda: client.hset(key, "x", "y"),
        "stream": lambda: client.xadd(key, {"x": "y"}),
    }
    makes[kind]()


@each_case("kind", ["string", "list", "hash", "stream"])
@each_case("name", ["errors", "commands", f"claims:{MINE}", f"worker:{MINE}"])
def test_a_key_of_another_type_that_is_read_for_people_or_of_one_worker_ends_no_master(
    redis_place: RedisPlace, name: str, kind: str
) -> None:
    redis_place.flush()
    master = redis_place.publish(P0, block(0, 4))
    redis_place.arrived().claim(0.01)
    set_to_another_type(redis_place, redis_place.keys.prefix + name, kind)
    for _ in range(2):
        assert set(master.workers()) <= {MINE}
        master.errors(), master.requests(), look(master)
        master.issue(TOKEN, P0, [block(0, 1)])
        redis_place.lapse()
    master.finish(TOKEN, {"state": "finished"}, 60, None)


@each_case("kind", ["string", "hash", "stream"])
@each_case("name", ["workers", "todo"])
def test_a_key_of_another_type_that_a_script_needs_is_named(
    redis_place: RedisPlace, name: str, kind: str
) -> None:
    redis_place.flush()
    redis_place.publish(P0, block(0, 4))
    key = redis_place.keys.prefix + name
    set_to_another_type(redis_place, key, kind)
    with pytest.raises(RedisError, match=rf"to look \({key} is a {kind}\): "):
        redis_place.look()


def test_the_beat_of_a_worker_that_has_not_left_yet_brings_back_nothing_of_a_run_that_ended(
    redis_place: RedisPlace,
) -> None:
    master, worker = redis_place.publish(P0, block(0, 4)), redis_place.arrived()
    master.renew(TOKEN, "me", 60)
    master.finish(TOKEN, {"state": "finished"}, 60, None)
    worker.beat(ABOUT, TTL)
    assert not redis_place.client.exists(redis_place.keys.workers)


# --- bounded memory and time


@each_case(
    "text",
    [
        "nonsense",
        LONG,
        f"{P0} train 9007199254740992 9007199254744000",
        f"{P0} train 99999999999 0",
        f"{P0} train {'9' * 40} {'9' * 41}",
    ],
)
def test_what_is_no_block_is_seen_by_no_look(place: Place, text: str) -> None:
    place.flush()
    place.publish(P0, block(0, 4))
    place.arrived()
    place.add_todo(text)
    place.add_claim(text)
    seen = place.look()
    assert (seen.todo, seen.claims) == ((block(0, 4),), {MINE: ()})


@each_case("name", ["results", "moments"])
def test_results_of_another_type_end_a_master_in_one_sentence(
    redis_place: RedisPlace, name: str
) -> None:
    redis_place.flush()
    master = redis_place.publish(P0)
    set_to_another_type(redis_place, getattr(redis_place.keys, name)(P0, 0), "list")
    with pytest.raises(RedisError, match="WRONGTYPE"):
        read(master)
