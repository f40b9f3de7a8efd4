"""What a block costs the master: results that wait in Redis, read and accounted.

The results of a whole table are there, block after block, as workers append them; nobody adds more.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import redis

from es_queue.environments.interface import ActionSpec, EnvironmentSpec
from es_queue.numerics.arrays import Integers
from es_queue.protocol.connection import client_from_url
from es_queue.protocol.messages import TRAIN
from es_queue.protocol.store import MasterStore
from es_queue.slots import Rows, Slots, Span, Table, worker_mark
from es_queue.strategies import make_strategy
from master.services.private_server import PrivateServer
from tests.memory import quick_config

TOKEN, PUBLICATION, RUN = "1-00000000", "0.1-00000000", "drain"
OBSERVATION, STEPS, WORKERS = 24, 400, 1440
#: Blocks of one write.
WRITTEN = 1000


def open_table(rows: int) -> Slots:
    """The table of so many mirrored pairs of BipedalWalker, every fourth of them sampled."""
    config = quick_config(
        env="BipedalWalker-v3", strategy="ars", population=min(1_000_000, 2 * rows)
    )
    action = ActionSpec("box", (4,), (-1.0,) * 4, (1.0,) * 4)
    spec = EnvironmentSpec(config.env, OBSERVATION, action, 1600, None, None, "stock")
    strategy = make_strategy(config, 100)
    return Slots(config, strategy, spec, 0, [Span(TRAIN, 0, rows)], publication=PUBLICATION)


def honest_results(slots: Slots, rows: Rows, workers: Integers) -> tuple[Table, Table]:
    """Results of the rows, by these workers (``worker_mark``), and their moments; scores differ
    from row to row.
    """
    results = np.zeros(len(rows), slots.shape.result)
    results["row"], results["worker"], results["seconds"] = rows, workers, 0.5
    scores = 100 * np.sin(7.0 * rows[:, np.newaxis] + np.arange(slots.shape.individuals))
    results["fitness"] = results["returns"] = scores
    results["steps"] = STEPS
    sampled = rows[slots.table["place"][rows] >= 0]
    each = slots.shape.individuals * slots.config.episodes
    moments = np.zeros(each * len(sampled), slots.shape.moments)
    moments["row"] = np.repeat(sampled, each)
    moments["episode"] = np.tile(np.arange(each), len(sampled))
    moments["count"] = STEPS
    mean = np.sin(moments["row"][:, np.newaxis] + np.arange(slots.shape.observation))
    moments["mean"], moments["m2"] = mean, STEPS * mean**2
    return results, moments


def load(client: redis.Redis, store: MasterStore, slots: Slots, size: int) -> int:
    """Append all results, of blocks of ``size`` rows; returns their bytes."""
    pipeline, written = client.pipeline(transaction=False), 0
    names = [worker_mark(f"host{number % 30}-{number}-abcdef") for number in range(WORKERS)]
    marks = np.array(names, np.int64)
    for start in range(0, len(slots), WRITTEN * size):
        rows = np.arange(start, min(len(slots), start + WRITTEN * size))
        parts = honest_results(slots, rows, marks[(rows // size) % WORKERS])
        keys = store.keys.results(PUBLICATION, 0), store.keys.moments(PUBLICATION, 0)
        for key, data in zip(keys, (part.tobytes() for part in parts), strict=True):
            pipeline.append(key, data)
            written += len(data)
        pipeline.execute()
    return written


def once(client: redis.Redis, blocks: int, size: int) -> dict[str, float]:
    client.flushall()
    slots, store = open_table(blocks * size), MasterStore(client, RUN)
    store.renew(TOKEN, "bench", 60.0)
    store.open(TOKEN, PUBLICATION, b"x" * 400, b"task", config="{}", progress={"state": "running"})
    written, arrived = load(client, store, slots, size), 0
    cpu, wall = time.process_time(), time.perf_counter()
    while not slots.is_complete():
        for _, results, moments in store.read(
            {PUBLICATION: (slots.shape.result, slots.shape.moments)}
        ):
            slots.accept(results, moments, arrived, WORKERS)
            arrived += len(results)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    assert arrived == len(slots) and not slots.tally.refused.total()
    return {"per CPU-second": blocks / cpu, "a second": blocks / wall, "bytes": written / blocks}


def drain(repeats: int, blocks: int = 200_000, size: int = 1) -> Iterator[dict[str, float]]:
    """Blocks per CPU-second of the master and per second, and bytes of a block."""
    with tempfile.TemporaryDirectory() as folder:
        server = PrivateServer(Path(folder))
        server.start()
        try:
            with client_from_url(server.url) as client:
                for _ in range(repeats):
                    yield once(client, blocks, size)
        finally:
            server.stop()


if __name__ == "__main__":
    for found in drain(3, *map(int, sys.argv[1:])):
        print(", ".join(f"{name} {value:,.0f}" for name, value in found.items()))
