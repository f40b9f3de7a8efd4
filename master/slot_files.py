"""Keeps who lived in a generation in the run's folder: ``slots/<generation>.npz`` (see ``es_queue.slot_record``).

Files are bounded, and written ten times a second at most. The newest are kept one by one; of older ones every second,
fourth, eighth … generation stays, so that a long run keeps its whole life in view.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_queue.config import RunConfig
from es_queue.protocol.messages import Task
from es_queue.slot_record import MOST_PUBLISHED_BYTES, SlotRecord, file_of, generations_in
from master.checkpoint import write_atomically
from master.learn import Closed, Learner, plans_of

MOST_BYTES = 256 * 2**20
#: Between two files: a generation may take a hundredth of a second, and a file two of the master's thousandths.
PAUSE = 0.1


class SlotFiles:
    """The files of one run; ``most`` of them at most, 0 for none. ``then`` hears of each generation that was written.

    What a closed generation leaves is kept in hand until the next one is published: workers should not wait for a disk.
    """

    def __init__(self, run: str, run_dir: Path, most: int, pause: float = PAUSE, then: Callable[[int], None] = lambda _: None) -> None:
        self._run, self._run_dir, self._most, self._pause, self._then = run, run_dir, most, pause, then
        self._next = 0.0
        self._due: Callable[[], SlotRecord] | None = None
        self._published: tuple[Task, NDArray[np.float32]] | None = None

    def closed(self, config: RunConfig, learner: Learner, done: Closed) -> None:
        """A generation has closed on these answers."""
        if self._most and done.counted and self._published is not None and time.monotonic() >= self._next:
            self._next = time.monotonic() + self._pause
            task, vector = self._published
            self._due = lambda: SlotRecord(self._run, config, task, vector, columns_of(learner, task.generation, done))

    def follow(self, task: Task, vector: NDArray[np.float32]) -> None:
        """Workers have ``vector`` from now on: write who lived before. Raises RunFolderError where the folder cannot be written."""
        due, self._due = self._due, None
        small = 4 * len(vector) <= MOST_PUBLISHED_BYTES
        self._published = task, vector if small else np.empty(0, np.float32)
        if due is not None:
            self._write(due())

    def _write(self, record: SlotRecord) -> None:
        """And forget files beyond the bound."""
        data = record.encode()
        write_atomically(file_of(self._run_dir, record.task.generation), data, durable=False)
        most = max(2, min(self._most, MOST_BYTES // len(data)))
        for generation in superfluous(generations_in(self._run_dir), most):
            file_of(self._run_dir, generation).unlink(missing_ok=True)
        self._then(record.task.generation)


def superfluous(generations: list[int], most: int) -> list[int]:
    """Which of the ascending ``generations`` go so that at most ``most`` stay: of the older half those that the largest
    power of two divides least often."""
    if len(generations) <= most:
        return []
    older = generations[: len(generations) - most // 2]
    step = 2
    while sum(one % step == 0 for one in older) > most - most // 2:
        step *= 2
    return [one for one in older if one % step]


def columns_of(learner: Learner, generation: int, done: Closed) -> dict[str, NDArray[Any]]:
    """The rows of the counted slots, as ``es_queue.slot_record`` tells them."""
    columns, per = done.columns, learner.strategy.per_slot
    slots = len(columns)
    plans = plans_of([(one.publication, one.slots) for one in done.used]) if done.used else np.stack([np.full(slots, generation), np.arange(slots)], axis=1)
    seeds = np.array([0 if one is None else one.seed for one in done.counted], np.int64)
    behaviour = learner.behaviour(done.counted, per) if learner.strategy.wants_behaviour else np.empty((slots, per, 0), np.float32)
    signs = np.tile(np.array([1, -1] if per == 2 else [0] * per, np.int8), slots)
    fitness = learner.fitness(columns)
    returns, steps = (columns.returns, columns.steps) if columns.there.any() else (fitness, np.zeros((slots, per), np.int64))
    return {
        "generation": np.repeat(plans[:, 0], per), "slot": np.repeat(plans[:, 1], per), "sign": signs, "noise_index": np.repeat(columns.noise_indices, per),
        "seed": np.repeat(seeds, per), "fitness": fitness.ravel(), "return": returns.ravel(),
        "length": steps.ravel(), "behaviour": behaviour.reshape(slots * per, behaviour.shape[2]),
    }  # fmt: skip

