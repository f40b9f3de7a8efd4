"""Whoever may write a run's keys: forged answers, blocks, requests and workers, through a live
server, while a run goes on.

They cannot stop the master, move its parameters by a bit, or make it grow.
"""

from __future__ import annotations

from typing import Any

import redis

from es_queue.protocol.keys import RunKeys
from es_queue.protocol.messages import MAX_TASK
from es_queue.protocol.store import MasterStore, WorkerStore
from tests.abuse.forge import BLOCKS, COMMANDS, WORKER_FIELDS
from tests.faults.scenario import RUN, Row, arena
from tests.faults.scenarios.workers import ENDLESS, end
from tests.integration.processes import NERVOUS, wait_for


def test_no_more_of_a_string_is_fetched_than_its_decoder_takes(redis_client: redis.Redis) -> None:
    own = RunKeys("a-run")
    for name in (own.config, own.task):
        redis_client.setrange(name, 2**24, b"x")
    master = MasterStore(redis_client, "a-run")
    assert (len(master.config() or b""), len(master.task() or b"")) == (2**20 + 1, MAX_TASK + 1)
    assert master.checkpoint() is None
    worker = WorkerStore(redis_client, "a-run", "h-1-aaaaaa")
    assert (len(worker.config() or b""), len(worker.task() or b"")) == (2**20 + 1, MAX_TASK + 1)


def test_hashes_larger_than_any_of_ours_are_left_in_redis(
    redis_client: redis.Redis,
) -> None:
    own, channel = RunKeys("a-run"), MasterStore(redis_client, "a-run")
    redis_client.sadd(own.workers, "small-1-aaaaaa", "large-1-aaaaaa", "gone-1-aaaaaa")
    redis_client.hset(own.worker("small-1-aaaaaa"), "host", "h")
    redis_client.hset(own.worker("large-1-aaaaaa"), "host", b"x" * 2**20)
    assert channel.workers() == {"small-1-aaaaaa": {"host": "h"}}
    redis_client.rpush(own.commands, b"x" * 100)
    redis_client.rpush(own.errors, b"a report")
    assert (channel.requests(), channel.errors()) == ([b"x" * 100], ["a report"])


def test_forged_blocks_requests_and_workers_change_nothing() -> None:
    with arena() as place:
        url = place.server()
        master, seen = place.started("keys", url, ENDLESS)
        seen.joined(place.processes.worker(url, clocks=NERVOUS))
        client, own = seen.client, seen.keys
        strangers: list[Any] = [b"\xff\xfe-1-000000", "h-1-aaaaaa", "x" * 5000]
        for one in BLOCKS:
            client.lpush(own.todo, one)
            client.rpush(f"{own.prefix}claims:h-1-aaaaaa", one)
        for one in COMMANDS:
            client.rpush(own.commands, one)
        for stranger in strangers:
            name = f"{own.prefix}worker:".encode() + (
                stranger if isinstance(stranger, bytes) else stranger.encode()
            )
            client.sadd(own.workers, stranger)
            client.hset(name, mapping=WORKER_FIELDS)
            client.pexpire(name, 3000)
        client.rpush(own.errors, *BLOCKS, b"[" * 10**5)
        wait_for(lambda: not client.llen(own.commands), "the requests are looked at")
        row = Row("")
        end(row, master, RUN)
        assert row.equal and row.lost == 0
        assert "Traceback" not in master.said() and "\x1b[2J" not in master.said()
