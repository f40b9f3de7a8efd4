"""Local workers that write down when they claim and answer:
``RQ_WORKER_CLASS=tools.benchmarks.watched_worker.WatchedWorker``.

They are the workers that es-master starts, but for a line a block in a file of their own.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from rq import Worker

from es_queue.protocol.messages import Block
from es_queue.protocol.redis_channel import RedisWorkerChannel

#: Names the folder of those files.
FOLDER = "ES_QUEUE_BENCHMARK_EVENTS"


def note(event: str, block: Block, fresh: bool) -> None:
    """One line: who, what, when (monotonic seconds, the same clock in all processes of
    the host).
    """
    line = {
        "pid": os.getpid(),
        "event": event,
        "block": str(block),
        "fresh": fresh,
        "time": time.monotonic(),
    }
    with (Path(os.environ[FOLDER]) / f"worker-{os.getpid()}.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


class WatchedChannel(RedisWorkerChannel):
    def claim(self, wait: float) -> Block | None:
        block = super().claim(wait)
        if block is not None:
            note("claim", block, True)
        return block

    def answer(self, block: Block, payload: bytes) -> bool:
        fresh = super().answer(block, payload)
        note("answer", block, fresh)
        return fresh

    def drop(self, block: Block) -> None:
        super().drop(block)
        note("drop", block, False)


class WatchedWorker(Worker):
    def __init__(self, *given: Any, **options: Any) -> None:
        import es_queue.protocol.redis_channel as module

        module.RedisWorkerChannel = WatchedChannel  # type: ignore[misc]
        super().__init__(*given, **options)
