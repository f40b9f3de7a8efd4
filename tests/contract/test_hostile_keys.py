"""What somebody with a worker's rights may write into a run's keys: noise to the master, and
bounded.
"""

from __future__ import annotations

from typing import Any

import pytest
import redis

from es_queue.errors import RedisError
from es_queue.protocol import keys, seats
from es_queue.protocol.channel import ReconcileReport
from tests.cases import each_case
from tests.contract.places import (
    ABOUT,
    P0,
    TOKEN,
    TTL,
    Place,
    RedisPlace,
    block,
    owed,
    texts,
    worker_name,
)

MINE = worker_name(1)
LONG = "z" * 100_000


def reconcile(place: Place, **more: object) -> ReconcileReport:
    found = place.master().reconcile(TOKEN, owed(("train", 0, 4), **more))
    assert found is not None
    return found


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
        master.deaths(), master.errors(), master.requests(), reconcile(redis_place)
        assert master.extend(TOKEN, P0, [block(0, 1)])
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
    with pytest.raises(RedisError, match=rf"to reconcile \({key} is a {kind}\): "):
        reconcile(redis_place)


def test_a_worker_that_others_took_from_the_set_is_there_again_with_its_next_beat(
    place: Place,
) -> None:
    master, worker = place.publish(P0, block(0, 4)), place.arrived()
    master.renew(TOKEN, "me", 60, {}, {})
    if isinstance(place, RedisPlace):
        place.client.expire(place.keys.workers, 0)
    else:
        place.server.workers.clear()  # type: ignore[attr-defined]
    assert master.workers() == {}
    worker.beat(ABOUT, TTL)
    assert master.workers() == {MINE: ABOUT}
    if isinstance(place, RedisPlace):
        assert 0 < place.client.ttl(place.keys.workers) <= keys.RUN_SECONDS


def test_the_beat_of_a_worker_that_has_not_left_yet_brings_back_nothing_of_a_run_that_ended(
    redis_place: RedisPlace,
) -> None:
    master, worker = redis_place.publish(P0, block(0, 4)), redis_place.arrived()
    master.renew(TOKEN, "me", 60, {}, {})
    master.finish(TOKEN, {"state": "finished"}, 60, None)
    worker.beat(ABOUT, TTL)
    assert not redis_place.client.exists(redis_place.keys.workers)


# --- bounded memory and time


def test_eight_thousand_workers_are_read(redis_place: RedisPlace) -> None:
    pipeline = redis_place.client.pipeline(transaction=False)
    about = {"host": "h"} | {f"field-{number}": "v" * 40 for number in range(15)}
    for number in range(8192):
        pipeline.sadd(redis_place.keys.workers, worker_name(number)).hset(
            redis_place.keys.worker(worker_name(number)), mapping=about
        )
    pipeline.execute()
    assert len(redis_place.master().workers()) == 8192


def test_more_workers_than_can_be_are_forgotten_and_the_living_are_back_with_their_next_beat(
    redis_place: RedisPlace,
) -> None:
    master, worker = redis_place.publish(P0), redis_place.arrived()
    master.renew(TOKEN, "me", 60, {}, {})
    names = [worker_name(2 + number) for number in range(20_001)]
    redis_place.client.sadd(redis_place.keys.workers, *names)
    assert reconcile(redis_place).dead == []
    worker.beat(ABOUT, TTL)
    assert master.workers() == {MINE: ABOUT}


def test_long_and_strange_entries_leave_todo_however_many(redis_place: RedisPlace) -> None:
    redis_place.publish(P0, block(0, 2), block(2, 4))
    redis_place.client.lpush(
        redis_place.keys.todo, *[LONG] * 20, *[f"junk {number}" for number in range(500)]
    )
    assert reconcile(redis_place).requeued == 0
    assert redis_place.todo() == texts(block(0, 2), block(2, 4))


def test_a_todo_longer_than_any_is_made_anew_though_each_entry_is_a_block(
    redis_place: RedisPlace,
) -> None:
    master, client = redis_place.publish(P0), redis_place.client
    for _ in range(70):
        client.rpush(redis_place.keys.todo, *texts(block(0, 1)) * 1000)
    assert (
        master.extend(TOKEN, P0, [block(0, 1)]) and client.llen(redis_place.keys.todo) == 70_001
    ), "so many are not compared"
    assert reconcile(redis_place).requeued == 4 and redis_place.todo() == texts(block(0, 4))


@each_case(
    "text",
    [
        f"{P0} train 9007199254740992 9007199254744000",
        f"{P0} train 99999999999 0",
        f"{P0} train {'9' * 40} {'9' * 41}",
    ],
)
def test_a_range_of_numbers_that_no_slot_has_ends_nothing(place: Place, text: str) -> None:
    place.flush()
    place.publish(P0)
    place.arrived()
    place.add_todo(text)
    place.add_claim(text)
    found = reconcile(place)
    assert (found.requeued, place.todo(), found.claims) == (4, texts(block(0, 4)), {MINE: ()})


def test_the_same_slots_a_million_times_take_bounded_time(redis_place: RedisPlace) -> None:
    redis_place.publish(P0)
    pipeline = redis_place.client.pipeline(transaction=False)
    for _ in range(20):
        pipeline.rpush(redis_place.keys.todo, *[f"{P0} train 0 4096"] * 1000)
    pipeline.execute()
    reconcile(redis_place)
    assert len(redis_place.todo()) < 2**20 / 4096 + 2, "more than can be is no more than noise"


def test_a_count_of_late_answers_that_is_none_counts_nothing(redis_place: RedisPlace) -> None:
    redis_place.publish(P0)
    for number, late in enumerate(("1e308", "0x10", "9" * 13, LONG, "2")):
        redis_place.worker(number).arrive({**ABOUT, "late": late}, TTL)
    assert reconcile(redis_place).late == {worker_name(4): 2}


def test_answers_that_were_deleted_before_they_were_read_are_owed_again(
    redis_place: RedisPlace,
) -> None:
    redis_place.publish(P0, block(0, 4))
    worker = redis_place.arrived()
    taken = worker.claim(0.01)
    assert taken is not None and worker.answer(taken, b"answer")
    redis_place.client.execute_command(
        "XADD", redis_place.keys.results(P0), "NOMKSTREAM", "MAXLEN", 0, "*", "answer", "x"
    )
    assert redis_place.answers() == []
    assert reconcile(redis_place).requeued == 4


# --- RQ's keys


@each_case("value", [10**13, -5, 2**63 - 1, "no number", None])
def test_a_counter_of_seats_that_others_moved_opens_no_more_seats_than_are_wanted(
    redis_client: redis.Redis, value: Any
) -> None:
    redis_client.flushall()
    counter = keys.RunKeys("mine").seatno
    redis_client.rpush(counter, "x") if value is None else redis_client.set(counter, value)
    for _ in range(3):
        seats.open_seats(redis_client, "default", "mine", "abcdef", 2, 960)
    assert (
        len(seats.waiting_seat_ids(redis_client, "default"))
        == redis_client.llen(keys.rq_queue("default"))
        == 2
    )
