"""Interleavings on the master's side: broken-off writes, tokens after a loss, cursors ahead of
their stream, takeovers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from es_queue.errors import FencedError, RedisError
from es_queue.protocol.channel import RUNNING, PublishRequest, WorkerChannel
from es_queue.protocol.connection import client_from_url
from es_queue.protocol.messages import Answer, Block, token_number
from es_queue.protocol.redis_channel import RedisMasterChannel
from es_queue.protocol.retry import Retry
from master.collect.collector import GENERATION_LOST
from master.run.lease import take_lease
from tests.contract.places import (
    HIGHER,
    P0,
    P1,
    P2,
    RUN,
    TOKEN,
    RedisPlace,
    block,
    texts,
    wait_until,
)
from tests.faults.bench import PUBLICATION, Bench
from tests.faults.proxy import Proxy
from tests.ring import QUICK
from tests.tiny import eventually

AHEAD = "9999999999999-1"  # an id of a server whose clock is centuries ahead


@pytest.fixture
def place(redis_client: redis.Redis) -> RedisPlace:
    return RedisPlace(redis_client)


class Real(Bench):
    """The bench of a collector, over a real server."""

    def __init__(self, place: RedisPlace) -> None:
        self.place = place
        super().__init__()

    def make_channel(self) -> Any:
        return self.place.master()

    def payload(self, *blocks: Block) -> bytes:
        one = blocks[0]
        results = tuple(self.result(one.kind, slot) for slot in range(one.start, one.stop))
        return Answer(one.publication, one.kind, "host-1-000001", 0.1, results).encode()

    def answered(self) -> int:
        return self.ledger.answer_counts()[0]


@pytest.fixture
def bench(place: RedisPlace) -> Real:
    return Real(place)


def claimed(worker: WorkerChannel) -> Block:
    found = worker.claim(0.01)
    assert found is not None
    return found


# --- 1.8


def test_a_publish_that_broke_off_half_way_is_completed_by_the_next(place: RedisPlace) -> None:
    """Scripts do not roll back: a key of another type ends one in the middle."""
    master = place.publish(P0, block(0, 4))
    place.client.set(place.keys.history, "no stream")
    master.stage(P1, b"12345678")
    what = PublishRequest(
        P1, b"new", [block(0, 2, P1)], "{}", {"state": RUNNING}, {"generation": "1"}
    )
    with pytest.raises(RedisError, match="WRONGTYPE"):
        master.publish(TOKEN, what)
    place.client.delete(place.keys.history)
    place.client.delete(place.keys.todo)
    place.client.set(place.keys.todo, "no list")
    assert master.publish(TOKEN, what).succeeded
    assert place.todo() == texts(block(0, 2, P1)) and P1 in place.streams()
    assert place.arrived().answer(block(0, 2, P1), b"answer") and place.answers(P1) == [b"answer"]


# --- 1.9, 1.10, 1.11


def test_a_token_that_was_lost_with_redis_is_not_given_to_two_masters(place: RedisPlace) -> None:
    """Both would count from 1 again; the number in the checkpoint tells the later one that there
    was an earlier.
    """
    asleep = place.master()
    asleep.renew("3-0000000a", "asleep", 60.0, {}, {})
    place.flush()
    token = take_lease(place.master(), "new", QUICK, wait=False, floor=3)
    assert token_number(token) == 4
    with pytest.raises(FencedError):
        asleep.renew("3-0000000a", "asleep", 60.0, {}, {})
    assert place.master().lease_holder()[0] == "new"


@pytest.fixture
def proxy(valkey_url: str) -> Iterator[Proxy]:
    found = Proxy(valkey_url)
    yield found
    found.close()


def test_a_master_whose_lease_was_granted_in_a_lost_reply_does_not_refuse_itself(
    place: RedisPlace, proxy: Proxy
) -> None:
    RedisMasterChannel(place.client, "other").renew(
        TOKEN, "other", 9.0, {}, {}
    )  # the server knows the script from now on
    with client_from_url(proxy.url) as client:
        proxy.lose_reply_to(b"EVALSHA")
        token = take_lease(
            RedisMasterChannel(client, RUN, Retry(5)), "me pid 1 abcdef", QUICK, wait=False
        )
    assert proxy.caught == 1
    assert place.master().epoch() == token and place.master().lease_holder()[0] == "me pid 1 abcdef"


# --- 1.13, 1.14


def test_a_redis_that_is_emptied_while_the_master_waits_for_answers_is_filled_again(
    bench: Real,
) -> None:
    """The blocked read is never told: only renew finds out."""
    bench.open()
    worker = bench.place.arrived()
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(bench.collector.collect, bench.ledger)
        wait_until(lambda: bench.place.client.info("clients")["blocked_clients"])
        bench.place.flush()
        wait_until(bench.place.todo, 10)
        while bench.place.todo():
            one = claimed(worker)
            assert worker.answer(one, bench.payload(one))
        ended.result(20)
    assert GENERATION_LOST in bench.notes


def get_ahead(bench: Real) -> WorkerChannel:
    """The master has read an entry whose id is far ahead; then the stream is another one, whose ids
    are not.
    """
    bench.open()
    worker, stream = bench.place.arrived(), bench.place.keys.results(PUBLICATION)
    one = claimed(worker)
    bench.place.client.xadd(stream, {"answer": bench.payload(one)}, id=AHEAD)
    worker.drop(one)
    bench.collector.drain(bench.ledger, 0.01)
    assert bench.answered() == 1
    bench.place.client.delete(stream)
    bench.place.client.xadd(stream, {"publication": PUBLICATION})
    return worker


def nobody_holds_it(bench: Real, worker: WorkerChannel) -> None:
    one = claimed(worker)
    worker.answer(one, bench.payload(one))


def redis_was_away(bench: Real, worker: WorkerChannel) -> None:
    """Its claim is still there, so that nothing is owed."""
    one = claimed(worker)
    bench.place.client.xadd(bench.place.keys.results(PUBLICATION), {"answer": bench.payload(one)})
    bench.channel.record_failure(redis.exceptions.ConnectionError("restarted"))


def it_is_published_again(bench: Real, worker: WorkerChannel) -> None:
    bench.place.lose("results", PUBLICATION)
    bench.tick()
    one = claimed(worker)
    worker.answer(one, bench.payload(one))


@pytest.mark.parametrize("befall", [nobody_holds_it, redis_was_away, it_is_published_again])
def test_an_answer_below_the_cursor_is_found(
    bench: Real, befall: Callable[[Real, WorkerChannel], None]
) -> None:
    worker = get_ahead(bench)
    before = bench.answered()
    befall(bench, worker)
    if befall is not it_is_published_again:
        bench.tick()
    bench.collector.drain(bench.ledger, 0.01)
    assert bench.answered() > before


# --- 1.15, 1.16


def test_an_answer_to_other_parameters_of_the_same_number_does_not_count(place: RedisPlace) -> None:
    """Redis and the master have lost generation 3, and another master has published another one."""
    other = "3.6-0000000c"
    bench = Real(place)
    bench.open()
    worker = place.arrived()
    one = claimed(worker)
    place.flush()
    place.publish(other, block(0, 2, other), token=HIGHER)
    assert not worker.answer(one, bench.payload(one)), "its stream is gone, and it is told so"
    assert place.streams() == {other} and place.answers(other) == []
    foreign = Answer(
        other, one.kind, "host-1-000001", 0.1, (bench.result(one.kind, one.start),)
    ).encode()
    assert not bench.ledger.accept(foreign) and bench.ledger.refused == {"wrong-publication": 1}


def test_the_stream_that_a_failover_brought_back_goes_with_the_next_publish(
    place: RedisPlace,
) -> None:
    place.publish(P0, block(0, 4))
    replica = {name: place.client.dump(name) for name in place.client.scan_iter("*")}
    place.publish(P1, block(0, 4, P1))
    place.flush()
    for name, value in replica.items():
        place.client.restore(name, 0, value)
    place.publish(P2, block(0, 4, P2))
    assert (place.streams(), place.parameters()) == ({P2}, {P2})


# --- 1.29


def test_after_an_outage_nobody_is_dead_until_there_was_time_to_beat_again(bench: Real) -> None:
    bench.open()
    worker = bench.place.arrived()
    held = claimed(worker)
    bench.place.lapse()
    bench.channel.record_failure(redis.exceptions.ConnectionError("away for longer than a beat"))
    bench.tick()
    assert bench.place.claims() == [str(held)] and bench.ledger.tally.recovered == 0

    def recovered() -> int:
        bench.tick()
        return bench.ledger.tally.recovered

    assert eventually(recovered), "grace is not for ever"
    assert str(held) in bench.place.todo()
