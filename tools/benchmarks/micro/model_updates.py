"""``python -m tools.benchmarks.micro.model_updates``: what a worker does with a model of 10 million
parameters and 64 pairs, beside a forward pass; for docs/large_models.md.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from es_queue.config.run_config import RunConfig
from es_queue.models.snapshots import Snapshots
from es_queue.models.weights import Model
from es_queue.strategies.model_es import HEAD, ModelES, Update
from examples.addition import LENGTH, Transformer, problems
from workers.heartbeat import resident_memory

PAIRS = 64


class Wide:
    """The transformer of ``examples/addition.py``, wider and deeper; a score is of 256 problems."""

    def load(self, device: str) -> Any:
        torch.manual_seed(0)
        return Transformer(width=320, layers=8, heads=8).to(device)

    def score(self, module: Any, seeds: list[int]) -> list[float]:
        return [float(module(problems(256, seed)[:, : LENGTH - 1]).mean()) for seed in seeds]


def seconds(work: Callable[[], object], times: int = 3) -> float:
    """CPU time of one thread; the shortest of several."""
    found = []
    for _ in range(times):
        began = time.process_time()
        work()
        found.append(time.process_time() - began)
    return min(found)


def measure(perturbation: str, momentum: float) -> None:
    config = RunConfig(
        model="tools.benchmarks.micro.model_updates:Wide",
        perturbation=perturbation,
        momentum=momentum,
        population=2 * PAIRS,
    )
    before, model = resident_memory(), Model(config, "cpu")
    count = sum(one.numel() for one in model.module.parameters())
    row = ModelES(config, HEAD).start(np.zeros(HEAD, np.float32))["log"][0]
    coefficients = np.linspace(-0.001, 0.001, PAIRS).astype(np.float32)
    update = Update.of(row)._replace(coefficients=coefficients, rate=0.1)
    keys, score = range(PAIRS), seconds(lambda: model.scores([1]))
    perturb = seconds(lambda: model.perturbed_scores(1, 0.01, [1])) - score
    apply = seconds(lambda: model.apply(update, keys), 1)
    memory = resident_memory() - before
    with tempfile.TemporaryDirectory() as folder:
        snapshots = Snapshots(folder)
        write = seconds(lambda: snapshots.write(model, row, model.digest()), 1)
        read = seconds(lambda: snapshots.read(0, model))
    joins = ", ".join(f"{read + k * apply:.1f} s" for k in (1, 10, 100))
    print(
        f"{perturbation}, momentum {momentum:g}: {count:,} parameters, row {4 * len(row)} bytes; "
        f"score {score:.3f} s, perturb {perturb:.3f} s, update {apply:.2f} s; "
        f"{memory / 4 / count:.1f} times the weights in memory; snapshot in {write:.2f} s; "
        f"joins after at most 1, 10, 100 updates in {joins}",
        flush=True,
    )


if __name__ == "__main__":
    if len(sys.argv) == 3:
        torch.set_num_threads(1)
        measure(sys.argv[1], float(sys.argv[2]))
    else:  # each in a process of its own, for its memory
        for words in (("full", "0"), ("full", "0.9"), ("rank:1", "0"), ("rank:4", "0")):
            subprocess.run([sys.executable, "-m", __spec__.name, *words], check=True)
