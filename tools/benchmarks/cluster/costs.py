"""What a real worker spends beside its episodes, measured on the product's own code; simulated
workers wait so long.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from es_queue.config.run_config import RunConfig
from es_queue.numerics.fingerprint import bytes_digest
from es_queue.numerics.noise_table import NoiseTable
from es_queue.protocol import messages
from es_queue.protocol.connection import client_from_url
from es_queue.protocol.messages import Answer, Block, SlotResult, Task
from es_queue.protocol.redis_channel import RedisWorkerChannel
from master.run.setup import prepare_run
from tools.benchmarks.cluster.simulation.simulated_worker import Cost
from workers.slots import JobPlanner, RunParts

PUBLICATION, RUN = "0.1-00000000", "costs"
BYTES = 2**20


def cpu_of(call: Callable[[], object], times: int) -> float:
    """Median CPU seconds of one call."""
    found = []
    for _ in range(times):
        began = time.thread_time()
        call()
        found.append(time.thread_time() - began)
    return statistics.median(found)


def worker_cost(url: str, config: RunConfig) -> Cost:
    """Of this configuration's workers, on this machine now."""
    noise = bytes(BYTES)
    return Cost(
        channel_cost(url), plan_cost(config), cpu_of(lambda: bytes_digest(noise), 20) / BYTES
    )


def channel_cost(url: str) -> float:
    """CPU seconds of a block's three round trips in the worker's client library: look, claim,
    answer.
    """
    block = Block(PUBLICATION, messages.TRAIN, 0, 3)
    results = tuple(
        SlotResult(slot, 1, 1, (0.0, 0.0), (0.0, 0.0), (9, 9), (0, 0), (0, 0)) for slot in range(3)
    )
    with client_from_url(url) as client:
        channel = RedisWorkerChannel(client, RUN, "cost-1-abcdef")

        def turn() -> None:
            client.rpush(channel.keys.todo, str(block))
            began = time.thread_time()
            channel.held_blocks()
            channel.claim(0.25)
            channel.answer(
                block, Answer(PUBLICATION, messages.TRAIN, channel.worker, 0.5, results).encode()
            )
            spent.append(time.thread_time() - began)

        spent: list[float] = []
        for _ in range(100):
            turn()
    return statistics.median(spent)


def plan_cost(config: RunConfig) -> float:
    """CPU seconds of planning a block, a slot that stands before its end."""
    table = NoiseTable.in_memory(2**22)
    setup = prepare_run(replace(config, noise_size=2**22), table=table)
    parts = RunParts(setup.config, setup.spec, setup.policy, setup.strategy, None)  # type: ignore[arg-type]
    planner = JobPlanner(parts)
    last = config.population // setup.strategy.per_slot
    zeros = np.zeros(setup.spec.observation_size, "<f4").tobytes()
    task = Task(PUBLICATION, 0.1, 1000, 1, "0" * 32, zeros, zeros, table.digest, 1.0)
    block = Block(PUBLICATION, messages.TRAIN, last - 1, last)
    return (
        cpu_of(
            lambda: planner.training_jobs(task, block),
            5,
        )
        / last
    )
