"""How fast one process plays and the loop turns; run it by hand: ``python -m tests.benchmarks.speed``.

Prints steps a second of the evaluator for some environments, and seconds a generation of the in-memory ring
beyond what its episodes take. Nothing is asserted: compare two commits on one quiet machine.
"""

from __future__ import annotations

import time

import numpy as np

from es_queue.noise import NoiseTable
from es_queue.numerics import bytes_digest, single_threaded_blas
from es_queue.protocol.messages import Block, Task
from master.setup import prepare
from tests.ring import NOISE, quick_config, run_ring
from workers.join import join
from workers.rollout import Watch

PUBLICATION = "0.1-00000000"
ENVIRONMENTS = ("CartPole-v1", "Pendulum-v1", "LunarLanderContinuous-v3", "BipedalWalker-v3")


def evaluator_speed(env: str, seconds: float = 3.0) -> tuple[float, float]:
    """(environment steps, episodes) a second of one evaluator with perturbations around zero."""
    table = NoiseTable.in_memory(NOISE)
    config = prepare(quick_config(env=env, strategy="ars", sigma=0.1), table=table).config
    watch = Watch()
    evaluator = join(config, watch, table=table).evaluator
    setup = prepare(config, table=table)
    published = np.zeros(setup.policy.size, np.float32)
    zeros, ones = (np.full(setup.spec.observation_size, value, "<f4").tobytes() for value in (0, 1))
    task = Task(PUBLICATION, 0.1, 500, len(published), bytes_digest(published.tobytes()), zeros, ones, table.digest, 1.0)
    began, watch.steps, slot = time.perf_counter(), 0, 0
    while time.perf_counter() - began < seconds:
        evaluator.evaluate(task, published, Block(PUBLICATION, "train", slot, slot + 4), "bench-1-abcdef", lambda _: None)
        slot = (slot + 4) % 4096
    took = time.perf_counter() - began
    return watch.steps / took, slot * 2 / took


def loop_overhead(generations: int = 100) -> float:
    """Seconds that a generation costs beside its episodes: of eight individuals, one step each."""
    values = {"strategy": "ars", "population": 8, "step_limit": "1", "eval_every": 0, "final_episodes": 0}
    began = time.perf_counter()
    run_ring(quick_config(**values, generations=generations), 1)
    return (time.perf_counter() - began) / generations


def main() -> None:
    single_threaded_blas()
    for env in ENVIRONMENTS:
        steps, episodes = evaluator_speed(env)
        print(f"{env:28} {steps:10,.0f} steps/s {episodes:10,.1f} episodes/s")
    print(f"{'a generation of the ring':28} {1000 * loop_overhead():10.2f} ms")


if __name__ == "__main__":
    main()
