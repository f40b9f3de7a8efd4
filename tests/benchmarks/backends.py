"""How fast each back end plays BipedalWalker, 32 episodes at once; run it by hand: ``python -m tests.benchmarks.backends``.

One process plays the same individuals on the same seeds on each back end in turn, several times over; what counts are
the ratios within one run. Stock draws other terrains from a seed than lean and EnvPool do, and counts its own steps.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import numpy as np

from es_queue.environments.envpool_worlds import installed
from es_queue.noise import NoiseTable
from es_queue.numerics import bytes_digest, single_threaded_blas
from es_queue.protocol.messages import Block, Task
from master.setup import prepare
from tests.ring import NOISE, quick_config
from workers.evaluate import Evaluator
from workers.join import join
from workers.rollout import Watch

SLOTS = 16  # pairs: 32 episodes
SIGMA = 0.2


def evaluator(backend: str, table: NoiseTable) -> Evaluator:
    config = quick_config(env="BipedalWalker-v3", strategy="ars", policy="mlp", population=4096, backend=backend)
    return join(config, Watch(), table=table).evaluator


def rate(who: Evaluator, start: int, size: int) -> float:
    """Environment steps a CPU-second of the block that begins at slot ``start``."""
    published = np.random.default_rng(3).normal(0, 0.05, size).astype(np.float32)
    zeros, ones = (np.full(24, value, "<f4").tobytes() for value in (0, 1))
    task = Task("0.1-00000000", SIGMA, 1600, size, bytes_digest(published.tobytes()), zeros, ones, who.table.digest, 1.0)
    before, began = who.watch.steps, time.process_time()
    who.evaluate(task, published, Block(task.publication, "train", start, start + SLOTS), "bench-1-abcdef", lambda _: None)
    return (who.watch.steps - before) / (time.process_time() - began)


def measure(repeats: int) -> dict[str, Any]:
    table = NoiseTable.in_memory(NOISE)
    backends = ["stock", "lean", *(["envpool"] if installed() else [])]
    players = {backend: evaluator(backend, table) for backend in backends}
    size = prepare(players["lean"].config, table=table).policy.size
    rates = _in_turn(players, repeats, size)
    ratios = {}
    for backend in backends[1:]:
        each = [one / other for one, other in zip(rates[backend], rates["stock"], strict=True)]
        ratios[f"{backend} / stock"] = {"median": statistics.median(each), "least": min(each), "greatest": max(each)}
    return {"steps_per_cpu_second": {backend: statistics.median(found) for backend, found in rates.items()}, "ratios": ratios, "repeats": repeats}


def _in_turn(players: dict[str, Evaluator], repeats: int, size: int) -> dict[str, list[float]]:
    """Back end after back end within each repeat, so that a busy minute slows all of them."""
    rates: dict[str, list[float]] = {backend: [] for backend in players}
    for number in range(repeats):
        for backend, who in players.items():
            rates[backend].append(rate(who, SLOTS * number, size))
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the back ends of BipedalWalker.")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    single_threaded_blas()
    found = measure(given.repeats)
    if given.json:
        print(json.dumps(found))
        return
    for backend, speed in found["steps_per_cpu_second"].items():
        print(f"{backend:16} {speed:10,.0f} steps per CPU-second")
    for name, ratio in found["ratios"].items():
        print(f"{name:16} {ratio['median']:10.2f} ({ratio['least']:.2f} to {ratio['greatest']:.2f}, {given.repeats} repeats)")


if __name__ == "__main__":
    main()
