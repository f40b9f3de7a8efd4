"""No call to Redis waits longer than it says: measured where bytes are sent and received, against
servers that say nothing.
"""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import redis

from es_queue.errors import RedisError
from es_queue.protocol import connection
from es_queue.protocol.connection import Retry, backoff_delays, client_from_url, clone_client
from es_queue.protocol.keys import Clocks
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
    worker_name,
)
from tests.faults.proxy import Proxy

#: In place of 5 s, for connecting and for a reply; no call may take five times as long.
SHORT = 0.2
DEADLINE = 5 * SHORT


class Calls:
    """What every connection of this process does from now on: how long each took, and which
    commands were sent.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.seconds: dict[str, float] = {}
        self.commands: list[tuple[Any, ...]] = []
        self.connects = 0
        for name in ("connect", "send_packed_command", "read_response"):
            self._time(patch, name)
        kind: Any = redis.connection.AbstractConnection
        send = kind.send_command

        def noted(sender: Any, *words: Any, **options: Any) -> Any:
            self.commands.append(words)
            return send(sender, *words, **options)

        patch.setattr(kind, "send_command", noted)

    def _time(self, patch: pytest.MonkeyPatch, name: str) -> None:
        kind: Any = redis.connection.AbstractConnection
        call = getattr(kind, name)

        def timed(*arguments: Any, **options: Any) -> Any:
            began = time.monotonic()
            self.connects += name == "connect" and arguments[0]._sock is None
            try:
                return call(*arguments, **options)
            finally:
                self.seconds[name] = max(self.seconds.get(name, 0.0), time.monotonic() - began)

        patch.setattr(kind, name, timed)


@pytest.fixture
def redis_place(redis_client: redis.Redis) -> RedisPlace:
    return RedisPlace(redis_client)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "SOCKET_SECONDS", SHORT)
    monkeypatch.setattr(connection, "CONNECT_SECONDS", SHORT)


@pytest.fixture
def line(
    hasty: None, redis_place: RedisPlace, valkey_url: str
) -> Iterator[tuple[Proxy, redis.Redis]]:
    """A client whose one connection stands, through a proxy that can fall silent, before a run with
    a publication.
    """
    redis_place.publish(P0, block(0, 4))
    redis_place.arrived()
    proxy = Proxy(valkey_url)
    with client_from_url(proxy.url) as client:
        client.ping()
        yield proxy, client
    proxy.close()


MASTERS: dict[str, Callable[[MasterStore], object]] = {
    "epoch": lambda one: one.epoch(),
    "lease_holder": lambda one: one.lease_holder(),
    "progress_field": lambda one: one.progress_field("state"),
    "open": lambda one: one.open(TOKEN, P0, b"12345678", b"task", config="{}", progress={"x": "y"}),
    "issue": lambda one: one.issue(TOKEN, P0, [block(4, 8)]),
    "look": look,
    "read": read,
    "wait": lambda one: one.wait(SHORT / 2),
    "renew": lambda one: one.renew(TOKEN, "me", 9.0),
    "finish": lambda one: one.finish(TOKEN, {"state": "stopped"}, 60, None),
    "stored_run": lambda one: one.stored_run(),
    "workers": lambda one: one.workers(),
    "errors": lambda one: one.errors(),
    "requests": lambda one: one.requests(),
    "forget_requests": lambda one: one.forget_requests([b"one"]),
    "other_workers": lambda one: one.other_workers("other"),
}
WORKERS: dict[str, Callable[[WorkerStore], object]] = {
    "config": lambda one: one.config(),
    "progress_field": lambda one: one.progress_field("state"),
    "task": lambda one: one.task(),
    "parameters": lambda one: one.parameters(P0, 8),
    "arrive": lambda one: one.arrive(ABOUT, TTL),
    "beat": lambda one: one.beat(ABOUT, TTL),
    "poll_flags": lambda one: one.poll_flags(),
    "held_blocks": lambda one: one.held_blocks(),
    "claim": lambda one: one.claim(SHORT / 2),
    "give": lambda one: one.give(block(0, 4), results(1), b""),
    "drop": lambda one: one.drop(block(0, 4)),
    "give_back": lambda one: one.give_back([block(0, 4)]),
    "report": lambda one: one.report("trouble"),
    "depart": lambda one: one.depart(),
}


#: What asks no server.
SILENT = {"outages", "ended_outages", "record_failure", "read_again", "state", "forget_gone_runs"}


def test_every_verb_of_the_store_is_looked_at() -> None:
    for kind, verbs in ((MasterStore, MASTERS), (WorkerStore, WORKERS)):
        public = {name for name in dir(kind) if not name.startswith("_")}
        assert set(verbs) == public - SILENT


@pytest.mark.parametrize("verb", [*MASTERS, *WORKERS])
def test_a_server_that_falls_silent_holds_no_call_longer_than_its_timeout(
    line: tuple[Proxy, redis.Redis], monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    proxy, client = line
    proxy.frozen = True
    calls, once, began = Calls(monkeypatch), Retry(0), time.monotonic()
    with suppress(RedisError):
        if verb in MASTERS:
            MASTERS[verb](MasterStore(client, RUN, once))
        else:
            WORKERS[verb](WorkerStore(client, RUN, worker_name(1), retry=once))
    assert max(calls.seconds.values()) < DEADLINE, calls.seconds
    assert time.monotonic() - began < DEADLINE
    assert calls.connects <= (1 if verb == "claim" else 0), (
        "it was sent once; a claim that failed is looked up once"
    )


def test_a_host_that_does_not_accept_holds_no_call_longer_than_the_timeout(
    hasty: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        port = deaf.getsockname()[1]
        waiting = [
            socket.socket() for _ in range(4)
        ]  # its queue is full: further ones hear nothing at all
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))
        calls, began = Calls(monkeypatch), time.monotonic()
        with (
            client_from_url(f"redis://127.0.0.1:{port}") as client,
            pytest.raises(RedisError, match="unreachable or full"),
        ):
            MasterStore(client, RUN, Retry(0)).epoch()
        assert calls.seconds["connect"] >= SHORT / 2, (
            "it was not the connecting that was waited for"
        )
        assert time.monotonic() - began < DEADLINE and calls.connects == 1
        for one in waiting:
            one.close()


class Stock(redis.Redis):
    """What RQ has: a client that waits for seven minutes and tries again ten times."""

    def __init__(self) -> None:
        super().__init__(socket_timeout=415, socket_connect_timeout=60)


@pytest.mark.parametrize(
    "build",
    [
        lambda: client_from_url("redis://localhost"),
        lambda: client_from_url("rediss://localhost"),
        lambda: client_from_url("unix:///nowhere"),
        lambda: client_from_url("redis://localhost?retry_on_timeout=yes"),
        lambda: clone_client(Stock()),
    ],
    ids=["tcp", "tls", "unix", "a URL that wishes more tries", "like RQ's"],
)
def test_every_client_says_how_long_it_waits_and_sends_nothing_again_by_itself(
    build: Callable[[], redis.Redis],
) -> None:
    arguments = build().connection_pool.connection_kwargs
    assert (arguments["socket_timeout"], arguments["socket_connect_timeout"]) == (5.0, 5.0)
    assert arguments["retry"].get_retries() == 0 and not arguments["retry_on_error"]


def test_what_waits_on_the_server_waits_a_second_at_most(
    redis_place: RedisPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks = Clocks()
    redis_place.publish(P0)
    calls = Calls(monkeypatch)
    assert redis_place.worker().claim(clocks.claim_wait) is None
    redis_place.master().wait(clocks.collect_wait)
    for command in ("BLMOVE", "BLPOP"):
        (waited,) = (words for words in calls.commands if words[0] == command)
        assert 0 < float(waited[-1]) <= 1.0


def test_a_server_that_is_back_is_tried_within_a_second() -> None:
    tries = list(itertools.islice(backoff_delays(), 50))
    assert max(tries) <= 1.0 and min(tries[10:]) >= 0.5, "neither later than that, nor in circles"
