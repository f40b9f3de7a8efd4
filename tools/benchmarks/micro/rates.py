"""Absolute rates, to compare two commits on one quiet machine: steps of one process, and what a
generation costs beside them.
"""

from __future__ import annotations

import time

import numpy as np

from es_queue.numerics.fingerprint import bytes_digest
from es_queue.numerics.noise_table import NoiseTable
from es_queue.protocol.messages import Block, Task
from master.run.setup import prepare_run
from tests.ring import NOISE, quick_config, run_ring
from tools.benchmarks.figures import Row
from tools.benchmarks.runs import Bench
from workers.episode import EpisodeControl
from workers.join import join

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
        rows.append(
            Row(
                f"rate-{env}",
                f"steps per CPU-second of one evaluator, {env}, linear policy around zero",
                values,
            )
        )
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
    """Environment steps per CPU-second, blocks of 32 individuals, 500 steps at most."""
    config = prepare_run(
        quick_config(env=env, strategy="ars", sigma=SIGMA, population=2 * SLOTS * blocks),
        table=table,
    ).config
    setup, watch = prepare_run(config, table=table), EpisodeControl()
    evaluator = join(config, watch, table=table).evaluator
    published = np.zeros(setup.policy.size, np.float32)
    zeros, ones = (np.full(setup.spec.observation_size, value, "<f4").tobytes() for value in (0, 1))
    task = Task(
        PUBLICATION,
        SIGMA,
        LIMIT,
        len(published),
        bytes_digest(published.tobytes()),
        zeros,
        ones,
        table.digest,
        1.0,
    )
    before, began = watch.steps, time.process_time()
    for start in range(0, SLOTS * blocks, SLOTS):
        evaluator.evaluate(
            task,
            published,
            Block(PUBLICATION, "train", start, start + SLOTS),
            "bench-1-abcdef",
            lambda _: None,
        )
    return (watch.steps - before) / (time.process_time() - began)


def ring_seconds(generations: int) -> float:
    """Wall seconds that a generation costs where its episodes cost nothing."""
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
