"""What people and RQ see in Redis: readable keys, flags, lifetimes, and a server whose memory is
full.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import redis

from es_queue.errors import RedisError
from es_queue.protocol import keys
from es_queue.protocol.connection import Retry, runs_in_training
from es_queue.protocol.store import MAX_ERRORS, PART, MasterStore, WorkerFlags
from tests.cases import each_case
from tests.contract.places import (
    ABOUT,
    P0,
    P1,
    RUN,
    RUNNING,
    TOKEN,
    TTL,
    RedisPlace,
    block,
    look,
    moments,
    name_of,
    read,
    reasons,
    results,
    texts,
    worker_name,
)


def lasting_keys(place: RedisPlace) -> list[str]:
    """Keys of the run that would stay for ever."""
    return sorted(
        name.decode()
        for name in place.client.scan_iter(f"es:{RUN}:*")
        if place.client.ttl(name) == -1
    )


def used_run(place: RedisPlace) -> None:
    """A run in which every key of a run exists."""
    master = place.publish(
        P0, block(0, 4), block(4, 8), block(8, 12), checkpoint=b"c", history={"generation": "0"}
    )
    living, dead = place.arrived(1), place.arrived(2)
    living.claim(0.01)
    dead.claim(0.01)
    place.lapse(2)
    living.report("{}")
    look(master)
    master.look(TOKEN, "me", 9.0, {}, {"duplicate": 1})
    living.answer(block(0, 4), results(1), b"")
    place.client.rpush(place.keys.commands, "stop")
    place.client.incr(place.keys.seatno)
    living.claim(0.01)


def test_people_can_read_the_keys(redis_place: RedisPlace) -> None:
    place, get = redis_place, redis_place.client.get
    place.publish(
        name_of(12),
        block(0, 4, name_of(12)),
        config='{\n  "env": "x"\n}',
        progress={"state": RUNNING, "reward_mean": "1.5"},
    )
    assert get(f"es:{RUN}:iteration") == b"12"
    assert get(f"es:{RUN}:config") == b'{\n  "env": "x"\n}'
    assert get(f"es:{RUN}:epoch") == TOKEN.encode()
    assert place.client.lrange(f"es:{RUN}:todo", 0, -1) == [f"12.{TOKEN} train 0 4".encode()]
    assert place.progress() == {
        "state": "running",
        "reward_mean": "1.5",
        "publication": f"12.{TOKEN}",
    }
    assert get(f"es:{RUN}:parameters:12.{TOKEN}") == b"12345678"
    assert place.client.zrange("es:runs", 0, -1) == [RUN.encode()]


def test_the_start_of_a_run_is_written_once(redis_place: RedisPlace) -> None:
    redis_place.publish(P0)
    began = redis_place.client.zscore(keys.RUNS, RUN)
    redis_place.publish(P1)
    assert redis_place.client.zscore(keys.RUNS, RUN) == began


def test_publish_lets_every_key_expire_in_a_month(redis_place: RedisPlace) -> None:
    used_run(redis_place)
    redis_place.publish(P1, block(0, 1, P1), checkpoint=b"d", history={"generation": "1"})
    claims = f"es:{RUN}:claims:{worker_name(1)}"
    assert lasting_keys(redis_place) == [claims], (
        "claims go when their worker leaves or the run ends"
    )
    for name in (
        "epoch",
        "config",
        "task",
        "todo",
        "progress",
        "workers",
        f"results:{P1}:0",
        f"moments:{P1}:0",
        f"parameters:{P1}",
    ):
        assert redis_place.client.ttl(f"es:{RUN}:{name}") > 29 * 24 * 3600


def test_after_finish_every_key_of_the_run_expires(redis_place: RedisPlace) -> None:
    used_run(redis_place)
    redis_place.master().finish(TOKEN, {"state": "finished"}, keys.FINISHED_SECONDS, b"last")
    assert lasting_keys(redis_place) == []
    left = {
        name.decode().removeprefix(f"es:{RUN}:")
        for name in redis_place.client.scan_iter(f"es:{RUN}:*")
    }
    assert left == {
        "checkpoint",
        "commands",
        "config",
        "epoch",
        "errors",
        "history",
        "iteration",
        "progress",
        "refused",
        "seatno",
        "task",
        f"worker:{worker_name(1)}",
    }
    assert redis_place.client.ttl(f"es:{RUN}:config") <= keys.FINISHED_SECONDS


def test_a_worker_that_slept_through_the_end_of_a_run_leaves_nothing_for_ever(
    redis_place: RedisPlace,
) -> None:
    used_run(redis_place)
    worker = redis_place.worker(1)
    held = worker.held_blocks()
    redis_place.master().finish(TOKEN, {"state": "finished"}, keys.FINISHED_SECONDS, None)
    redis_place.lapse(1)
    worker.beat(ABOUT, TTL)
    worker.release(held)
    worker.report("{}")
    assert not worker.answer(block(0, 4), results(1), b"")
    assert held and lasting_keys(redis_place) == []


def test_a_worker_that_outlived_all_keys_of_its_run_leaves_nothing_for_ever(
    redis_place: RedisPlace,
) -> None:
    worker = redis_place.worker(1)
    worker.beat(ABOUT, TTL)
    worker.release([block(0, 4)])
    worker.report("{}")
    assert lasting_keys(redis_place) == []


def test_parameters_that_disappear_before_they_are_published_are_stored_again_ten_times(
    redis_place: RedisPlace,
) -> None:
    redis_place.publish(P0, block(0, 4))
    stored = list[int]()

    class Losing(redis.Redis):
        """Its server loses what was staged just before each script."""

        def evalsha(self, *arguments: Any) -> Any:
            stored.append(redis_place.client.ttl(redis_place.keys.parameters(P1)))
            redis_place.client.delete(redis_place.keys.parameters(P1))
            return super().evalsha(*arguments)

    losing = Losing(connection_pool=redis_place.client.connection_pool)
    with pytest.raises(RedisError, match="disappeared from Redis 10 times"):
        redis_place.open(MasterStore(losing, RUN), P1)
    assert len(stored) == 10 and all(0 < seconds <= 600 for seconds in stored), (
        "those of a master that ends here go by themselves"
    )
    assert redis_place.todo() == texts(block(0, 4))
    assert look(redis_place.master()).publication == P0


def test_parameters_that_were_stored_again_for_an_open_publication_stay(
    redis_place: RedisPlace,
) -> None:
    redis_place.publish(P0)
    redis_place.lose("parameters", P0)
    redis_place.publish(P0)
    assert redis_place.client.ttl(redis_place.keys.parameters(P0)) > 29 * 24 * 3600


def test_a_string_that_is_full_is_followed_by_the_next_and_none_of_it_is_lost(
    redis_place: RedisPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("es_queue.protocol.store.PART", 12)
    master, workers = redis_place.publish(P0), [redis_place.worker(n) for n in range(2)]
    found = list[int]()
    for value in range(0, 12, 2):
        workers[value // 2 % 2].answer(block(0, 2), results(value, value + 1), b"")
        if value == 6:  # at the end of a part, and in its midst
            found += read(master)[P0][0]
    found += read(master)[P0][0]
    assert found == list(range(12)) == redis_place.given()
    names = redis_place.client.scan_iter(f"{redis_place.keys.prefix}results:*")
    sizes = {name.decode()[-1]: redis_place.client.strlen(name) for name in names}
    assert PART == 2**28 and set(sizes) == set("012345") and set(sizes.values()) == {8}
    assert lasting_keys(redis_place) == []
    redis_place.publish(P1)
    assert redis_place.open_ones() == {P1} and not redis_place.client.exists(
        redis_place.keys.results(P0, 5)
    )
    assert not workers[0].answer(block(0, 2), results(1), b"")


def test_a_worker_that_filled_parts_answers_in_the_first_one_after_redis_has_lost_them(
    redis_place: RedisPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("es_queue.protocol.store.PART", 12)
    worker = redis_place.publish(P0) and redis_place.worker()
    for value in range(0, 6, 2):
        worker.answer(block(0, 2), results(value, value + 1), b"")
    redis_place.flush()
    master = redis_place.publish(P0)
    assert worker.answer(block(0, 2), results(7, 8), b"") and read(master) == {P0: ([7, 8], [])}


@each_case("piece", [1, 4, 8])
def test_more_than_one_read_takes_comes_in_pieces(
    redis_place: RedisPlace, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    redis_place.flush()
    master = redis_place.publish(P0)
    redis_place.worker().answer(block(0, 9), results(*range(9)), moments(*range(9)))
    monkeypatch.setattr("es_queue.protocol.store.READ", piece)
    assert read(master) == {P0: (list(range(9)), list(range(9)))}


def test_orders_carry_the_flags_of_rq(redis_place: RedisPlace) -> None:
    redis_place.publish(P0).renew(TOKEN, "me", 60.0)
    worker = redis_place.worker(1, rq_name="rq-one")
    assert worker.poll_flags() == WorkerFlags(RUNNING)
    redis_place.client.hset("rq:worker:rq-two", "shutdown_requested_date", "now")
    redis_place.client.hset("rq:worker:", "shutdown_requested_date", "now")
    assert not worker.poll_flags().leave and not redis_place.worker(2).poll_flags().leave
    redis_place.client.hset("rq:worker:rq-one", "shutdown_requested_date", "now")
    assert worker.poll_flags() == WorkerFlags(RUNNING, leave="its RQ worker is stopping")
    redis_place.client.hdel("rq:worker:rq-one", "shutdown_requested_date")
    redis_place.client.set("rq:suspended", "1")
    assert worker.poll_flags() == WorkerFlags(RUNNING, leave="RQ is suspended")


def test_a_run_without_a_master_has_no_claim_to_workers_whatever_its_state(
    redis_place: RedisPlace,
) -> None:
    master = redis_place.publish(P0)
    assert runs_in_training(redis_place.client, [RUN, "nobody"]) == {}
    master.renew(TOKEN, "me", 60.0)
    assert runs_in_training(redis_place.client, [RUN, "nobody"]) == {RUN: ("", 0)}


def test_only_a_running_run_is_another_run_that_has_workers(redis_place: RedisPlace) -> None:
    master = redis_place.publish(P0)
    master.renew(TOKEN, "me", 60.0)
    progress = redis_place.keys.progress
    redis_place.client.hset(progress, mapping={"workers": "7", "queue": "gpu"})
    assert runs_in_training(redis_place.client, [RUN]) == {RUN: ("gpu", 7)}
    redis_place.client.hset(progress, "workers", "many")
    assert runs_in_training(redis_place.client, [RUN]) == {RUN: ("gpu", 0)}
    redis_place.client.hset(progress, "state", "finished")
    assert runs_in_training(redis_place.client, [RUN]) == {}


def test_the_list_of_errors_is_bounded(redis_place: RedisPlace) -> None:
    redis_place.publish(P0)
    for number in range(MAX_ERRORS + 5):
        redis_place.worker().report(str(number))
    assert redis_place.client.llen(redis_place.keys.errors) == MAX_ERRORS
    assert reasons(redis_place.master())[-1] == str(MAX_ERRORS + 4)


def test_what_a_look_writes_is_no_run_after_a_flush(redis_place: RedisPlace) -> None:
    master = redis_place.publish(P0)
    redis_place.flush()
    master.look(TOKEN, "me", 9.0, {"answered": "1"}, {"late": 1})
    left = {name.decode() for name in redis_place.client.scan_iter("*")}
    assert left == {f"es:{RUN}:epoch", f"es:{RUN}:master"}


@pytest.fixture
def full(redis_place: RedisPlace) -> RedisPlace:
    """A run with a claimed block on a server that has no memory left."""
    master = redis_place.publish(P0, block(0, 4), block(4, 8))
    master.renew(TOKEN, "me", 9.0)
    redis_place.arrived().claim(0.01)
    redis_place.client.config_set("maxmemory", 1)
    return redis_place


def test_on_a_full_server_the_lease_and_the_beat_go_on(full: RedisPlace) -> None:
    master, beat = full.master(), full.keys.worker(worker_name(1))
    full.client.pexpire(beat, 2000)
    looks = partial(master.look, progress={"answered": "1"}, refused={"late": 1})
    for renew in (master.renew, looks):
        full.client.pexpire(full.keys.master, 2000)
        renew(TOKEN, "me", 9.0)
        assert master.lease_holder()[1] > 5
    full.worker().beat(ABOUT, 9.0)
    assert full.client.pttl(beat) > 5000


def test_on_a_full_server_a_lapsed_lease_cannot_be_had_but_what_is_stored_is_told(
    full: RedisPlace,
) -> None:
    full.client.delete(full.keys.master)
    master = full.master()
    assert look(master).publication == P0
    assert master.lease_holder() == (None, 0.0)


def test_a_full_server_refuses_open_before_anything_has_changed(full: RedisPlace) -> None:
    master = full.master()
    master.retry = Retry(0.05)
    with pytest.raises(RedisError, match="unreachable or full"):
        full.open(master, P1, task=b"new")
    full.client.config_set("maxmemory", 0)
    assert full.todo() == texts(block(4, 8)) and full.open_ones() == {P0}
    assert master.task() == b"task" and full.client.get(full.keys.iteration) == b"0"


def test_a_full_server_never_drops_a_claim_without_its_results(full: RedisPlace) -> None:
    full.worker().release([block(0, 4)])
    assert full.claims() == texts(block(0, 4)) and full.given() == []
    tried = threading.Event()
    worker = full.worker()
    worker.retry = Retry(on_outage=lambda seconds: tried.set())
    with ThreadPoolExecutor() as pool:
        given = pool.submit(worker.answer, block(0, 4), results(1), b"")
        assert tried.wait(10)
        assert full.claims() == texts(block(0, 4)) and full.given() == []
        full.client.config_set("maxmemory", 0)
        assert given.result(10)
    assert full.given() == [1] and full.claims() == []
