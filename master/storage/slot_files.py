"""Keeps who lived in a generation in the run's folder: ``slots/<generation>.npz`` (see
``es_queue.util.slot_record``).

Files are bounded, and written ten times a second at most, except for generations that are filmed.
The newest are kept one by one; of older ones every second, fourth, eighth … generation stays, so
that a long run keeps its whole life in view.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from es_queue.config.run_config import RunConfig
from es_queue.protocol.messages import Task
from es_queue.util.slot_record import (
    MAX_PUBLISHED_BYTES,
    SlotRecord,
    record_path,
    recorded_generations,
)
from master.loop.learner import ClosedGeneration, Learner, slot_plans
from master.storage.checkpoint import write_atomically

MOST_FOLDER_BYTES = 256 * 2**20
#: Between two files: a generation may take a hundredth of a second, and a file two of the master's
#: thousandths.
LEAST_PAUSE_SECONDS = 0.1


class RecordReader(Protocol):
    """What reads records of a run that is under way."""

    def needs(self, generation: int) -> bool:
        """Whether this generation must be recorded, or its record must stay."""

    def add(self, generation: int) -> None:
        """A generation's record has been written."""

    def drop(self, generation: int) -> None:
        """A record that is needed was removed, because the folder has reached its bound."""


class SlotFiles:
    """The files of one run; ``most`` of them at most, 0 for none, and those that ``reader`` needs.

    What a closed generation leaves is kept in hand until the next one is published: workers should
    not wait for a disk.
    """

    def __init__(
        self,
        run: str,
        run_dir: Path,
        most: int,
        pause: float = LEAST_PAUSE_SECONDS,
        reader: RecordReader | None = None,
    ) -> None:
        self._run, self._run_dir, self._most, self._pause = run, run_dir, most, pause
        self._reader = reader
        self._next_time = 0.0
        self._pending: Callable[[], SlotRecord] | None = None
        self._published: tuple[Task, NDArray[np.float32]] | None = None

    def record_closed(
        self, config: RunConfig, learner: Learner, closed_generation: ClosedGeneration
    ) -> None:
        """A generation has closed on these answers."""
        if not (self._most and closed_generation.counted) or self._published is None:
            return
        task, vector = self._published
        if time.monotonic() >= self._next_time or self._is_needed(task.generation):
            self._next_time = time.monotonic() + self._pause
            self._pending = lambda: SlotRecord(
                self._run,
                config,
                task,
                vector,
                slot_arrays(learner, task.generation, closed_generation),
            )

    def write_pending(self, task: Task, vector: NDArray[np.float32]) -> None:
        """Workers have ``vector`` from now on: write who lived before. Raises RunFolderError where
        the folder cannot be written.
        """
        pending, self._pending = self._pending, None
        small = 4 * len(vector) <= MAX_PUBLISHED_BYTES
        self._published = task, vector if small else np.empty(0, np.float32)
        if pending is not None:
            self._write(pending())

    def _write(self, record: SlotRecord) -> None:
        """And forget files beyond the bound."""
        data = record.encode()
        write_atomically(record_path(self._run_dir, record.task.generation), data, durable=False)
        room = max(2, MOST_FOLDER_BYTES // len(data))
        recorded = recorded_generations(self._run_dir)
        if len(recorded) <= room:
            recorded = [generation for generation in recorded if not self._is_needed(generation)]
        for generation in surplus_generations(recorded, max(2, min(self._most, room))):
            record_path(self._run_dir, generation).unlink(missing_ok=True)
            if self._reader is not None and self._is_needed(generation):
                self._reader.drop(generation)
        if self._reader is not None:
            self._reader.add(record.task.generation)

    def _is_needed(self, generation: int) -> bool:
        return self._reader is not None and self._reader.needs(generation)


def surplus_generations(generations: list[int], most: int) -> list[int]:
    """Which of the ascending ``generations`` go so that at most ``most`` stay: of the older half
    those that the largest power of two divides least often.
    """
    if len(generations) <= most:
        return []
    older = generations[: len(generations) - most // 2]
    step = 2
    while sum(generation % step == 0 for generation in older) > most - most // 2:
        step *= 2
    return [generation for generation in older if generation % step]


def slot_arrays(
    learner: Learner, generation: int, closed_generation: ClosedGeneration
) -> dict[str, NDArray[Any]]:
    """The rows of the counted slots, as ``es_queue.util.slot_record`` tells them."""
    arrays, per = closed_generation.arrays, learner.strategy.per_slot
    slots = len(arrays)
    plans = (
        slot_plans([(part.publication, part.slots) for part in closed_generation.used])
        if closed_generation.used
        else np.stack([np.full(slots, generation), np.arange(slots)], axis=1)
    )
    seeds = np.array(
        [0 if result is None else result.seed for result in closed_generation.counted], np.int64
    )
    behaviour = (
        learner.behaviour(closed_generation.counted, per)
        if learner.strategy.wants_behaviour
        else np.empty((slots, per, 0), np.float32)
    )
    signs = np.tile(np.array([1, -1] if per == 2 else [0] * per, np.int8), slots)
    fitness = learner.fitness(arrays)
    returns, steps = (
        (arrays.returns, arrays.steps)
        if arrays.valid.any()
        else (fitness, np.zeros((slots, per), np.int64))
    )
    return {
        "generation": np.repeat(plans[:, 0], per),
        "slot": np.repeat(plans[:, 1], per),
        "sign": signs,
        "noise_index": np.repeat(arrays.noise_indices, per),
        "seed": np.repeat(seeds, per),
        "fitness": fitness.ravel(),
        "return": returns.ravel(),
        "length": steps.ravel(),
        "behaviour": behaviour.reshape(slots * per, behaviour.shape[2]),
    }
