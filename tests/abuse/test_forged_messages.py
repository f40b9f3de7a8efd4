"""Whoever may write a run's keys: forged answers, blocks, requests and workers, through a live
server, while a run goes on.

They cannot stop the master, move its parameters by a bit, or make it grow.
"""

from __future__ import annotations

import random
import signal
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import redis

from es_queue.protocol.keys import RunKeys
from es_queue.protocol.messages import MAX_TASK
from es_queue.protocol.redis_channel import RedisMasterChannel, RedisWorkerChannel
from tests.abuse.forge import BLOCKS, COMMANDS, WORKER_FIELDS, entries, odd_answers
from tests.faults.scenario import RUN, Arena, arena
from tests.faults.scenarios.answers import Inlet, most_held
from tests.integration.processes import quiet_digest, wait_for

SEED = 20260101
MOST_GROWTH = 32.0  # megabytes


@pytest.fixture
def place() -> Iterator[Arena]:
    with arena() as own:
        yield own


def push(inlet: Inlet, forged: Iterator[dict[bytes, bytes]]) -> int:
    """Add entries as a worker may, a few at a time; how many they were."""
    pipeline, count = inlet.client.pipeline(transaction=False), 0
    for fields in forged:
        pipeline.xadd(inlet.key, fields, nomkstream=True)
        count += 1
        if count % 500 == 0:
            pipeline.execute()
    pipeline.execute()
    return count


def all_refused(inlet: Inlet, before: Counter[str], count: int) -> bool:
    return (inlet.refused() - before).total() >= count


def forge(place: Arena, count: int) -> None:
    """``count`` forged entries in the open publication while its only worker is frozen, then the
    run to its end.
    """
    inlet = Inlet(place, "forged")
    before, length = inlet.refused(), inlet.client.xlen(inlet.key)
    memory = most_held(inlet.master)
    received = push(inlet, entries(inlet.genuine, inlet.publication, random.Random(SEED), count))
    wait_for(partial(all_refused, inlet, before, received), "every forged entry is refused", 240)
    wait_for(lambda: inlet.client.xlen(inlet.key) == length, "no refused entry stays")
    refused = inlet.refused() - before
    growth = most_held(inlet.master) - memory
    print(f"{received:,} forged, refused: {dict(refused)}; master {growth:+.1f} MB at most")
    assert refused.total() == received == count
    assert set(refused) >= {"undecodable", *odd_answers(inlet.genuine, inlet.publication)}
    assert growth < MOST_GROWTH
    inlet.thaw()
    ended(inlet)


def ended(inlet: Inlet) -> None:
    """The run ends as if nothing had happened."""
    assert inlet.master.wait(120) == 0, inlet.master.said()[-3000:]
    assert inlet.master.events("summary")[-1]["digest"] == quiet_digest(RUN)
    said = inlet.master.said()
    assert "Traceback" not in said and "\x1b[2J" not in said


def test_thousands_of_forged_answers_change_nothing(place: Arena) -> None:
    forge(place, 5000)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_hundred_thousand_forged_answers_change_nothing(place: Arena) -> None:
    forge(place, 100_000)


def test_each_well_formed_forgery_is_counted_under_its_own_reason(place: Arena) -> None:
    inlet = Inlet(place, "reasons")
    for reason, payloads in odd_answers(inlet.genuine, inlet.publication).items():
        before = inlet.refused()
        push(inlet, ({b"answer": payload} for payload in payloads))
        wait_for(partial(all_refused, inlet, before, len(payloads)), f"{reason} is refused")
        assert inlet.refused() - before == Counter({reason: len(payloads)})
    inlet.thaw()
    ended(inlet)


def test_a_burst_of_giant_entries_is_read_a_few_at_a_time(place: Arena) -> None:
    inlet = Inlet(place, "giants")
    before, memory = inlet.refused(), most_held(inlet.master)
    inlet.master.signal(signal.SIGSTOP)
    push(inlet, ({b"answer": b"\x9b" + b"\x80" * 2**20} for _ in range(100)))
    inlet.master.signal(signal.SIGCONT)
    wait_for(partial(all_refused, inlet, before, 100), "all are refused")
    growth = most_held(inlet.master) - memory
    print(f"100 entries of 1 MiB: master {growth:+.1f} MB at most")
    assert growth < MOST_GROWTH
    inlet.thaw()
    ended(inlet)


def test_deaths_and_workers_that_nobody_can_count_are_no_error(redis_client: redis.Redis) -> None:
    """A master reads them when it takes over; Python refuses to read a number of thousands of
    digits.
    """
    own, other = RunKeys("a-run"), RunKeys("other")
    many = b"9" * 5000
    redis_client.hset(
        own.attempts,
        mapping={
            b"train " + many + b" deaths": b"1",
            b"train 5 deaths": many,
            b"\xff": b"\xff",
            b"train 6 deaths": b"2",
            b"eval \xb2 deaths": b"1",
        },
    )
    redis_client.hset(other.progress, mapping={"state": "running", "workers": many})
    redis_client.set(other.master, "somebody")
    channel = RedisMasterChannel(redis_client, "a-run")
    assert channel.deaths() == {("train", 6): 2}
    assert channel.other_workers("other") == 0


def test_no_more_of_a_string_is_fetched_than_its_decoder_takes(redis_client: redis.Redis) -> None:
    own = RunKeys("a-run")
    for name in (own.config, own.task):
        redis_client.setrange(name, 2**24, b"x")
    assert [len(one or b"") for one in RedisMasterChannel(redis_client, "a-run").stored_run()] == [
        2**20 + 1,
        MAX_TASK + 1,
        0,
    ]
    worker = RedisWorkerChannel(redis_client, "a-run", "h-1-aaaaaa")
    assert (len(worker.config() or b""), len(worker.task() or b"")) == (2**20 + 1, MAX_TASK + 1)


def test_a_field_of_a_worker_that_is_larger_than_any_of_ours_is_not_taken(
    redis_client: redis.Redis,
) -> None:
    own, channel = RunKeys("a-run"), RedisMasterChannel(redis_client, "a-run")
    redis_client.sadd(own.workers, "small-1-aaaaaa", "large-1-aaaaaa", "gone-1-aaaaaa")
    redis_client.hset(own.worker("small-1-aaaaaa"), "host", "h")
    redis_client.hset(own.worker("large-1-aaaaaa"), "host", b"x" * 2**20)
    assert channel.workers() == {"small-1-aaaaaa": {"host": "h"}}


def test_forged_blocks_requests_workers_and_attempts_change_nothing(place: Arena) -> None:
    inlet = Inlet(place, "keys")
    client, own = inlet.client, inlet.seen.keys
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
    client.hset(
        own.attempts,
        mapping={
            b"train " + b"9" * 5000 + b" deaths": b"9" * 5000,
            b"\xff": b"\xff",
            b"train 99 deaths": b"1" * 5000,
        },
    )
    client.rpush(own.errors, *BLOCKS, b"[" * 10**5)
    wait_for(lambda: not client.llen(own.commands), "the requests are looked at")
    inlet.thaw()
    ended(inlet)
