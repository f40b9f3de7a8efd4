"""Plays a list of blocks with the worker's own evaluator and nothing around it: ``python -m
tools.benchmarks.micro.bare_worker FILE``.

No connection, no server, no answers: the CPU seconds that the episodes themselves take. Says
``ready``, waits for a line, plays, prints one JSON object.
"""

from __future__ import annotations

from es_queue.numerics.fingerprint import fix_numeric_environment, limit_blas_threads

fix_numeric_environment()  # before numpy is loaded

import json  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402
from pathlib import Path  # noqa: E402

import msgpack  # noqa: E402
import numpy as np  # noqa: E402

from es_queue.config.parsing import config_from_json  # noqa: E402
from es_queue.numerics.arrays import Floats  # noqa: E402
from es_queue.protocol.messages import Block, Task  # noqa: E402
from workers.episode import EpisodeControl  # noqa: E402
from workers.join import join  # noqa: E402
from workers.slots import Evaluator  # noqa: E402

Published = dict[str, tuple[Task, Floats]]


def play(evaluator: Evaluator, published: Published, blocks: list[Block]) -> int:
    """Play the blocks in order; environment steps."""
    before = evaluator.control.steps
    for block in blocks:
        task, parameters = published[block.publication]
        evaluator.evaluate(
            task,
            parameters,
            block,
            "bench-1-abcdef",
            lambda failure: print(failure.reason, file=sys.stderr),
        )
    return evaluator.control.steps - before


def main() -> None:
    limit_blas_threads()
    work = msgpack.unpackb(Path(sys.argv[1]).read_bytes())
    evaluator = join(
        config_from_json(work["config"].encode()), EpisodeControl(), Path(work["noise"])
    ).evaluator
    published: Published = {
        name: (Task.decode(task), np.frombuffer(data, "<f4").astype(np.float32))
        for name, (task, data) in work["published"].items()
    }
    blocks = [Block.decode(text) for text in work["blocks"]]
    play(evaluator, published, blocks[:1])  # a worker in the middle of a run is warm
    print("ready", flush=True)
    sys.stdin.readline()
    cpu, wall = time.process_time(), time.perf_counter()
    steps = play(evaluator, published, blocks)
    print(
        json.dumps(
            {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall, "steps": steps}
        ),
        flush=True,
    )


if __name__ == "__main__":
    main()
