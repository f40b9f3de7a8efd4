"""Plays a list of blocks with the worker's own player and nothing around it: ``python -m
tools.benchmarks.micro.bare_worker FILE``.

No connection, no server: the CPU seconds that the episodes themselves take. Prints ``ready``, waits
for a line, plays, and prints one JSON object.
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

from es_queue.config.run_config import RunConfig  # noqa: E402
from es_queue.numerics.arrays import Floats  # noqa: E402
from es_queue.protocol.messages import Block, Task  # noqa: E402
from workers.heartbeat import EpisodeControl  # noqa: E402
from workers.player import Player, join  # noqa: E402

Published = dict[str, tuple[Task, Floats]]


def play(player: Player, published: Published, blocks: list[Block]) -> int:
    """Play the blocks in order; environment steps."""
    before = player.control.steps
    for block in blocks:
        if not player.has(block):
            player.open(*published[block.publication])
        for failure in player.play(block, 0).failures:
            print(failure.reason, file=sys.stderr)
    return player.control.steps - before


def main() -> None:
    limit_blas_threads()
    work = msgpack.unpackb(Path(sys.argv[1]).read_bytes())
    config = RunConfig.from_json(work["config"].encode())
    player = join(config, EpisodeControl(), Path(work["noise"]))
    published: Published = {
        name: (Task.decode(task), np.frombuffer(data, "<f4").astype(np.float32))
        for name, (task, data) in work["published"].items()
    }
    blocks = [Block.decode(text) for text in work["blocks"]]
    play(player, published, blocks[:1])  # a worker in the middle of a run is warm
    print("ready", flush=True)
    sys.stdin.readline()
    cpu, wall = time.process_time(), time.perf_counter()
    steps = play(player, published, blocks)
    spent = {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}
    print(json.dumps({**spent, "steps": steps}), flush=True)


if __name__ == "__main__":
    main()
