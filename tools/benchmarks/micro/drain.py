"""What a block costs the master: answers that wait in Redis, drained, decoded and accounted,
producers off.

``drain(blocks)`` loads a publication's stream with one honest answer a block, then lets the real
collector empty it.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import redis

from es_queue.numerics.fingerprint import bytes_digest
from es_queue.protocol import messages
from es_queue.protocol.channel import PublishRequest
from es_queue.protocol.connection import client_from_url
from es_queue.protocol.keys import RunKeys
from es_queue.protocol.messages import Answer, EpisodeMoments, SlotResult, Task
from es_queue.protocol.redis_channel import RedisMasterChannel
from es_queue.protocol.timing import Clocks
from master.collect.answer_check import ResultShape
from master.collect.blocks.block_scheduler import BlockScheduler
from master.collect.collector import Collector
from master.collect.ledger import AnswerChecker, Ledger
from master.collect.worker_watch import MasterLease
from master.services.private_server import PrivateServer
from tests.ring import quick_config

TOKEN, PUBLICATION, RUN = "1-00000000", "0.1-00000000", "drain"
OBSERVATION = 24
WORKERS = 1440


def worker_of(block: int) -> str:
    return f"host{block % 30}-{block % WORKERS}-abcdef"


def answers(expectations: AnswerChecker, blocks: int, slots: int) -> Iterator[bytes]:
    """An honest answer for each block of so many slots, with the moments that its sampled slots
    owe.
    """
    numbers = np.linspace(-1, 1, OBSERVATION).astype("<f8")
    mean, m2 = numbers.tobytes(), (numbers**2).tobytes()
    for block in range(blocks):
        results = []
        for slot in range(block * slots, (block + 1) * slots):
            due = expectations.expected_answer(messages.TRAIN, slot)
            assert due is not None
            moments = (EpisodeMoments(400, mean, m2),) * due.moments
            results.append(
                SlotResult(
                    slot,
                    due.noise_index,
                    due.seed,
                    (slot / 7, -slot / 3),
                    (slot / 7, -slot / 3),
                    (500, 600),
                    (0, 0),
                    (0, 0),
                    moments,
                )
            )
        yield Answer(PUBLICATION, messages.TRAIN, worker_of(block), 0.5, tuple(results)).encode()


def load(client: redis.Redis, payloads: Iterator[bytes]) -> int:
    """Put them into the publication's stream, as workers do; how many bytes that were."""
    name, pipeline, size = RunKeys(RUN).results(PUBLICATION), client.pipeline(transaction=False), 0
    for count, payload in enumerate(payloads, 1):
        pipeline.xadd(name, {"answer": payload}, nomkstream=True)
        size += len(payload)
        if count % 1000 == 0:
            pipeline.execute()
    pipeline.execute()
    return size


def once(client: redis.Redis, blocks: int, slots: int, obs_norm: bool) -> dict[str, float]:
    """One drain: blocks a CPU-second of the master."""
    client.flushall()
    config = quick_config(
        env="BipedalWalker-v3",
        strategy="ars",
        population=min(1_000_000, 2 * blocks * slots),
        obs_norm=obs_norm,
    )
    channel = RedisMasterChannel(client, RUN)
    collector = Collector(MasterLease(channel, TOKEN, "bench", Clocks()), BlockScheduler(fixed=1))
    collector.fleet.update(
        {worker_of(number): {"host": f"host{number % 30}"} for number in range(WORKERS)}
    )
    expectations = AnswerChecker(
        config, 0, ResultShape(100, 2, OBSERVATION), {messages.TRAIN: blocks * slots}
    )
    ledger = Ledger(PUBLICATION, expectations, {messages.TRAIN: blocks * slots})
    zeros = np.zeros(OBSERVATION, "<f4").tobytes()
    task = Task(PUBLICATION, 0.1, 1600, 25, bytes_digest(b"x" * 100), zeros, zeros, "0" * 32, 1.0)
    channel.renew(TOKEN, "bench", 10.0, {}, {})
    channel.stage(PUBLICATION, b"x" * 100)
    channel.publish(
        TOKEN, PublishRequest(PUBLICATION, task.encode(), [], "{}", {"state": "running"})
    )
    size = load(client, answers(expectations, blocks, slots))
    cpu, wall = time.process_time(), time.perf_counter()
    while not ledger.is_complete():
        collector.drain(ledger, 0.5)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    assert not ledger.refused.total()
    return {
        "blocks_per_cpu_second": blocks / cpu,
        "blocks_per_second": blocks / wall,
        "bytes_per_block": size / blocks,
    }


def drain(
    repeats: int, blocks: int = 200_000, slots: int = 1, obs_norm: bool = True
) -> dict[str, Any]:
    """Median, least and greatest over the repeats."""
    with tempfile.TemporaryDirectory() as folder:
        server = PrivateServer(Path(folder))
        server.start()
        try:
            with client_from_url(server.url) as client:
                found = [once(client, blocks, slots, obs_norm) for _ in range(repeats)]
        finally:
            server.stop()
    each = [one["blocks_per_cpu_second"] for one in found]
    return {
        "blocks_per_cpu_second": {
            "median": statistics.median(each),
            "least": min(each),
            "greatest": max(each),
        },
        "blocks_per_second": statistics.median(one["blocks_per_second"] for one in found),
        "bytes_per_block": found[0]["bytes_per_block"],
        "blocks": blocks,
        "slots": slots,
        "repeats": repeats,
    }


if __name__ == "__main__":
    print(drain(1, 20_000))
