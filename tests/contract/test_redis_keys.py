"""What people and RQ see in Redis: readable keys, flags, lifetimes, and a server whose memory is
full.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from es_queue.errors import RedisError
from es_queue.protocol import keys
from es_queue.protocol.channel import (
    RUNNING,
    PublishRequest,
    PublishResult,
    RenewResult,
    WorkerFlags,
)
from es_queue.protocol.redis_channel import MAX_ERRORS, RedisMasterChannel
from es_queue.protocol.retry import Retry
from tests.contract.places import (
    ABOUT,
    P0,
    P1,
    RUN,
    TOKEN,
    TTL,
    RedisPlace,
    block,
    name_of,
    owed,
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
    master.reconcile(TOKEN, owed(("train", 0, 12)))
    master.renew(TOKEN, "me", 9.0, {}, {"duplicate": 1})
    living.answer(block(0, 4), b"answer")
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
        f"results:{P1}",
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
    worker.give_back(held)
    worker.report("{}")
    assert not worker.answer(block(0, 4), b"late")
    assert held and lasting_keys(redis_place) == []


def test_a_worker_that_outlived_all_keys_of_its_run_leaves_nothing_for_ever(
    redis_place: RedisPlace,
) -> None:
    worker = redis_place.worker(1)
    worker.beat(ABOUT, TTL)
    worker.give_back([block(0, 4)])
    worker.report("{}")
    assert lasting_keys(redis_place) == []


def test_staged_parameters_go_by_themselves_and_published_ones_stay(
    redis_place: RedisPlace,
) -> None:
    master, name = redis_place.master(), redis_place.keys.parameters(P0)
    master.stage(P0, b"12345678")
    assert 0 < redis_place.client.ttl(name) <= 600
    redis_place.publish(P0)
    assert redis_place.client.ttl(name) > 29 * 24 * 3600


def test_parameters_that_were_staged_again_for_an_open_publication_stay_too(
    redis_place: RedisPlace,
) -> None:
    redis_place.publish(P0)
    redis_place.lose("parameters", P0)
    redis_place.publish(P0)
    assert redis_place.client.ttl(redis_place.keys.parameters(P0)) > 29 * 24 * 3600


def test_publish_without_staged_parameters_says_so_and_changes_nothing(
    redis_place: RedisPlace,
) -> None:
    master = redis_place.publish(P0, block(0, 4))
    assert master.publish(
        TOKEN, PublishRequest(P1, b"new", [block(0, 1, P1)], "{}", {"state": RUNNING})
    ) == PublishResult(P0, succeeded=False)
    assert redis_place.todo() == texts(block(0, 4))
    assert master.renew(TOKEN, "me", 9.0, {}, {}) == RenewResult(P0, True)
    assert master.stored_run()[1] == b"task"


def test_orders_carry_the_flags_of_rq(redis_place: RedisPlace) -> None:
    redis_place.publish(P0).renew(TOKEN, "me", 60.0, {}, {})
    worker = redis_place.worker(1, rq_name="rq-one")
    assert worker.poll_flags() == WorkerFlags(RUNNING)
    redis_place.client.hset("rq:worker:rq-two", "shutdown_requested_date", "now")
    redis_place.client.hset("rq:worker:", "shutdown_requested_date", "now")
    assert not worker.poll_flags().shutdown and not redis_place.worker(2).poll_flags().shutdown
    redis_place.client.hset("rq:worker:rq-one", "shutdown_requested_date", "now")
    assert worker.poll_flags() == WorkerFlags(RUNNING, shutdown=True)
    redis_place.client.set("rq:suspended", "1")
    assert worker.poll_flags() == WorkerFlags(RUNNING, shutdown=True, suspended=True)


def test_a_run_without_a_master_has_no_claim_to_workers_whatever_its_state(
    redis_place: RedisPlace,
) -> None:
    master = redis_place.publish(P0)
    assert master.other_workers(RUN) is None
    master.renew(TOKEN, "me", 60.0, {}, {})
    assert master.other_workers(RUN) == 0


def test_only_a_running_run_is_another_run_that_has_workers(redis_place: RedisPlace) -> None:
    master = redis_place.publish(P0)
    master.renew(TOKEN, "me", 60.0, {}, {})
    progress = redis_place.keys.progress
    assert master.other_workers(RUN) == 0
    redis_place.client.hset(progress, "workers", "7")
    assert master.other_workers(RUN) == 7
    redis_place.client.hset(progress, "workers", "many")
    assert master.other_workers(RUN) == 0
    redis_place.client.hset(progress, "state", "finished")
    assert master.other_workers(RUN) is None


def test_the_list_of_errors_is_bounded(redis_place: RedisPlace) -> None:
    redis_place.publish(P0)
    for number in range(MAX_ERRORS + 5):
        redis_place.worker().report(str(number))
    assert redis_place.client.llen(redis_place.keys.errors) == MAX_ERRORS
    assert redis_place.master().errors()[-1] == str(MAX_ERRORS + 4)


def test_what_renew_writes_is_no_run_after_a_flush(redis_place: RedisPlace) -> None:
    master = redis_place.publish(P0)
    redis_place.flush()
    master.renew(TOKEN, "me", 9.0, {"answered": "1"}, {"late": 1})
    left = {name.decode() for name in redis_place.client.scan_iter("*")}
    assert left == {f"es:{RUN}:epoch", f"es:{RUN}:master"}


@pytest.fixture
def full(redis_place: RedisPlace) -> RedisPlace:
    """A run with a claimed block on a server that has no memory left."""
    master = redis_place.publish(P0, block(0, 4), block(4, 8))
    master.renew(TOKEN, "me", 9.0, {}, {})
    redis_place.arrived().claim(0.01)
    master.stage(P1, b"12345678")
    redis_place.client.config_set("maxmemory", 1)
    return redis_place


def test_on_a_full_server_the_lease_and_the_beat_go_on(full: RedisPlace) -> None:
    full.client.pexpire(full.keys.master, 2000)
    full.client.pexpire(full.keys.worker(worker_name(1)), 2000)
    master = full.master()
    assert master.renew(TOKEN, "me", 9.0, {"answered": "1"}, {"late": 1}) == RenewResult(P0, True)
    full.worker().beat(ABOUT, 9.0)
    assert (
        master.lease_holder()[1] > 5 and full.client.pttl(full.keys.worker(worker_name(1))) > 5000
    )


def test_on_a_full_server_a_lapsed_lease_cannot_be_had_but_renew_still_tells_what_is_stored(
    full: RedisPlace,
) -> None:
    full.client.delete(full.keys.master)
    assert full.master().renew(TOKEN, "me", 9.0, {"answered": "1"}, {"late": 1}) == RenewResult(
        P0, True
    )
    assert full.master().lease_holder() == (None, 0.0)


def test_a_full_server_refuses_publish_before_anything_has_changed(full: RedisPlace) -> None:
    master = RedisMasterChannel(full.client, RUN, Retry(seconds=1))
    with pytest.raises(RedisError, match="unreachable or full"):
        master.publish(
            TOKEN, PublishRequest(P1, b"new", [block(0, 1, P1)], "{}", {"state": RUNNING})
        )
    full.client.config_set("maxmemory", 0)
    assert full.todo() == texts(block(4, 8)) and full.streams() == {P0}
    assert master.stored_run()[1] == b"task" and full.client.get(full.keys.iteration) == b"0"


def test_a_full_server_never_drops_a_claim_without_its_answer(full: RedisPlace) -> None:
    full.worker().give_back([block(0, 4)])
    assert full.claims() == texts(block(0, 4)) and full.answers() == []
    tried = threading.Event()
    worker = full.worker()
    worker.retry = Retry(on_outage=lambda seconds: tried.set())
    with ThreadPoolExecutor() as pool:
        answered = pool.submit(worker.answer, block(0, 4), b"answer")
        assert tried.wait(10)
        assert full.claims() == texts(block(0, 4)) and full.answers() == []
        full.client.config_set("maxmemory", 0)
        assert answered.result(10)
    assert full.answers() == [b"answer"] and full.claims() == []
