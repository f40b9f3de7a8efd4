"""Absolute rates, to compare two commits on one quiet machine: steps of one process, and what a
generation costs beside them.
"""

from __future__ import annotations

import time

import numpy as np

from es_queue.numerics.arrays import Floats
from es_queue.numerics.fingerprint import bytes_digest
from es_queue.numerics.noise_table import NoiseTable
from es_queue.protocol.messages import TRAIN, Block, Task
from es_queue.slots import Span, spans_to_bytes
from tests.memory import NOISE, quick_config, run_ring
from tools.benchmarks.figures import Row
from tools.benchmarks.runs import Bench
from workers.heartbeat import EpisodeControl
from workers.player import Player, join

ENVIRONMENTS = ("CartPole-v1", "Pendulum-v1", "LunarLanderContinuous-v3", "BipedalWalker-v3")
SLOTS, LIMIT, SIGMA = 16, 500, 0.1
PUBLICATION = "0.1-00000000"


def measured(bench: Bench) -> list[Row]:
    table = NoiseTable.in_memory(NOISE)
    rows = []
    for env in ENVIRONMENTS:
        values = tuple(
            steps_a_second(env, table, 1 if bench.quick else 8) for _ in range(bench.repeats)
        )
        text = f"steps per CPU-second of one worker, {env}, linear policy around zero"
        rows.append(Row(f"rate-{env}", text, values))
    generations = 10 if bench.quick else 200
    rows.append(
        Row(
            "ring",
            "a generation of the in-memory ring, 8 individuals of a step each",
            tuple(1000 * ring_seconds(generations) for _ in range(bench.repeats)),
            " ms",
        )
    )
    return rows


def steps_a_second(env: str, table: NoiseTable, blocks: int) -> float:
    """Of blocks of 32 individuals, 500 steps at most."""
    config = quick_config(env=env, strategy="ars", sigma=SIGMA, population=2 * SLOTS * blocks)
    player = join(config, EpisodeControl(), table=table)
    open_generation(player, np.zeros(player.policy.size, np.float32), SLOTS * blocks, SIGMA, LIMIT)
    return rate(player, 0, SLOTS * blocks)


def open_generation(
    player: Player, published: Floats, slots: int, sigma: float, limit: int
) -> None:
    """Let it play so many training slots around these parameters, without statistics."""
    size, digest = player.spec.observation_size, bytes_digest(published.tobytes())
    zeros, ones = (np.full(size, value, "<f4").tobytes() for value in (0, 1))
    spans = spans_to_bytes([Span(TRAIN, 0, slots)])
    sizes = player.shape.result.itemsize, player.shape.moments.itemsize
    player.open(
        Task(
            *(PUBLICATION, sigma, limit, len(published), digest, zeros, ones),
            *(player.noise.digest, 1.0, spans, *sizes),
        ),
        published,
    )


def rate(player: Player, first: int, stop: int, size: int = SLOTS) -> float:
    """Environment steps per CPU-second of these training slots, in blocks of ``size``."""
    before, began = player.control.steps, time.process_time()
    for start in range(first, stop, size):
        player.play(Block(PUBLICATION, TRAIN, start, min(stop, start + size)), 0)
    return (player.control.steps - before) / (time.process_time() - began)


def ring_seconds(generations: int) -> float:
    """Wall seconds that a generation costs if its episodes cost nothing."""
    config = quick_config(
        strategy="ars",
        population=8,
        step_limit="1",
        eval_every=0,
        final_episodes=0,
        generations=generations,
    )
    began = time.perf_counter()
    run_ring(config, 1)
    return (time.perf_counter() - began) / generations
