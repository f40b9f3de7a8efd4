"""A server that is busy with a script answers BUSY: everybody waits, nobody ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from es_queue.protocol import connection
from es_queue.protocol.connection import Retry, client_from_url
from es_queue.protocol.store import MasterStore, WorkerStore
from tests.contract.places import (
    ABOUT,
    P0,
    RUN,
    TOKEN,
    TTL,
    RedisPlace,
    block,
    look,
    read,
    results,
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
    redis_place.publish(P0, block(0, 4))
    redis_place.arrived().answer(block(0, 1), results(1), b"")
    calls: list[tuple[Callable[[MasterStore], object], object]] = [
        (lambda one: one.renew(TOKEN, "me", 9.0), None),
        (lambda one: one.lease_holder()[0], "me"),
        (lambda one: one.workers(), {worker_name(1): ABOUT}),
        (lambda one: look(one).publication, P0),
        (lambda one: one.issue(TOKEN, P0, [block(0, 4)]), None),
        (read, {P0: ([1], [])}),
    ]
    for call, expected in calls:
        with busy(valkey_url) as end:
            waiting = MasterStore(redis_place.client, RUN, Retry(20, lambda _, end=end: end()))
            assert call(waiting) == expected
            assert waiting.outages >= 1
            assert "BUSY" in waiting.retry.last_error


def test_a_worker_waits_for_a_busy_server(redis_place: RedisPlace, valkey_url: str) -> None:
    redis_place.publish(P0, block(0, 4))
    redis_place.arrived()
    calls: list[Callable[[WorkerStore], object]] = [
        lambda one: one.arrive(ABOUT, TTL),
        lambda one: one.beat(ABOUT, TTL),
        lambda one: one.poll_flags(P0).state == "running",
        lambda one: one.held_blocks() == [],
        lambda one: one.answer(block(0, 4), results(2), b""),
    ]
    for call in calls:
        with busy(valkey_url) as end:
            waiting = WorkerStore(
                redis_place.client, RUN, worker_name(1), retry=Retry(20, lambda _, end=end: end())
            )
            assert call(waiting) in (None, True)
            assert waiting.outages >= 1
    with busy(valkey_url) as end:
        waiting = WorkerStore(
            redis_place.client, RUN, worker_name(1), retry=Retry(20, lambda _: end())
        )
        assert waiting.claim(0.01) is None
    assert redis_place.todo() == texts(block(0, 4))


def test_workers_that_a_busy_server_does_not_tell_are_not_taken_for_gone(
    redis_place: RedisPlace, valkey_url: str
) -> None:
    redis_place.arrived()
    with busy(valkey_url), pytest.raises(redis.exceptions.ResponseError, match="BUSY"):
        connection.replies_of(redis_place.client.pipeline().hget(f"es:{RUN}:worker:x", "host"))
