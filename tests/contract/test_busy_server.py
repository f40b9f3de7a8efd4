"""A server that is busy with a script answers BUSY: everybody waits, nobody ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from es_queue.protocol import bounded, keys
from es_queue.protocol.again import Again
from es_queue.protocol.channel import Stored
from es_queue.protocol.connection import client_from_url
from es_queue.protocol.redis_channel import RedisMasterChannel, RedisWorkerChannel
from es_queue.protocol.seats import outlasting
from tests.contract.places import (
    ABOUT,
    P0,
    RUN,
    TOKEN,
    TTL,
    RedisPlace,
    block,
    owed,
    texts,
    wait_until,
    worker_name,
)

LIMIT = "busy-reply-threshold"


@contextmanager
def busy(url: str) -> Iterator[Callable[[], None]]:
    """A server that runs a script without end; what is yielded ends it."""
    with client_from_url(url) as client, client_from_url(url) as looping:
        before: Any = client.config_get(LIMIT)
        client.config_set(LIMIT, 1)

        def loop() -> None:
            with pytest.raises(redis.exceptions.RedisError):
                looping.eval("while true do end", 0)

        def answers_busy() -> bool:
            try:
                return not client.ping()
            except redis.exceptions.ResponseError as error:
                return str(error).startswith("BUSY")

        def end() -> None:
            if answers_busy():
                client.script_kill()

        thread = threading.Thread(target=loop)
        thread.start()
        try:
            wait_until(answers_busy)
            yield end
        finally:
            end()
            thread.join(20)
            client.config_set(LIMIT, before[LIMIT])


def test_the_master_waits_for_a_busy_server(redis_place: RedisPlace, valkey_url: str) -> None:
    master = redis_place.publish(P0, block(0, 4))
    redis_place.arrived()
    calls: list[tuple[Callable[[RedisMasterChannel], object], object]] = [
        (lambda one: one.renew(TOKEN, "me", 9.0, {}, {}), Stored(P0, True)),
        (lambda one: one.lease_holder()[0], "me"),
        (lambda one: one.workers(), {worker_name(1): ABOUT}),
        (lambda one: one.reconcile(TOKEN, owed(("train", 0, 4))), master.reconcile(TOKEN, owed(("train", 0, 4)))),
        (lambda one: one.extend(TOKEN, P0, [block(0, 4)]), True),
        (lambda one: len(one.collect(P0, "0", 10, 0.01)), 1),
    ]
    for call, expected in calls:
        with busy(valkey_url) as end:
            waiting = RedisMasterChannel(redis_place.client, RUN, Again(20, lambda _, end=end: end()))
            assert call(waiting) == expected
            assert waiting.outages >= 1
            assert "BUSY" in waiting.again.trouble


def test_a_worker_waits_for_a_busy_server(redis_place: RedisPlace, valkey_url: str) -> None:
    redis_place.publish(P0, block(0, 4))
    redis_place.arrived()
    calls: list[Callable[[RedisWorkerChannel], object]] = [
        lambda one: one.arrive(ABOUT, TTL),
        lambda one: one.beat(ABOUT, TTL),
        lambda one: one.orders(P0).state == "running",
        lambda one: one.claimed() == [],
        lambda one: one.answer(block(0, 4), b"answer"),
    ]
    for call in calls:
        with busy(valkey_url) as end:
            waiting = RedisWorkerChannel(redis_place.client, RUN, worker_name(1), again=Again(20, lambda _, end=end: end()))
            assert call(waiting) in (None, True)
            assert waiting.outages >= 1
    with busy(valkey_url) as end:
        waiting = RedisWorkerChannel(redis_place.client, RUN, worker_name(1), again=Again(20, lambda _: end()))
        assert waiting.claim(0.01) is None
    assert redis_place.todo() == texts(block(0, 4))


def test_rqs_bookkeeping_outlasts_a_busy_server(redis_place: RedisPlace, valkey_url: str) -> None:
    said: list[str] = []
    with busy(valkey_url) as end:

        def say(text: str) -> None:
            said.append(text)
            end()

        with outlasting(redis_place.client, lambda: False, say) as client:
            assert client.set("rq:one", "1")
            pipeline = client.pipeline(transaction=True)
            assert pipeline.get("rq:one").execute() == [b"1"]
    assert len(said) == 1


def test_workers_that_a_busy_server_does_not_tell_are_not_taken_for_gone(redis_place: RedisPlace, valkey_url: str) -> None:
    redis_place.arrived()
    with busy(valkey_url), pytest.raises(redis.exceptions.ResponseError, match="BUSY"):
        bounded.hashes(redis_place.client, [keys.RunKeys(RUN).worker(worker_name(1))], ("host",))
