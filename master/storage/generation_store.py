"""The store of each generation, in a run's folder.

The replay log has every generation: the input of its update (``master.storage.replay_log``).
Records of individuals, with the parameters that they were perturbed from, exist for the newest
generations and for some older ones (``es_queue.util.slot_record``). ``es-master --replay`` reads
the log; es-play, ``es-plot --cloud`` and films read the records.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from es_queue.util.slot_record import (
    MAX_PUBLISHED_BYTES,
    SlotRecord,
    record_path,
    recorded_generations,
)
from master.collect.publication.closed_generation import ClosedGeneration
from master.loop.learner import Learner, slot_plans
from master.loop.listeners import GenerationListener, GenerationReport, try_write
from master.loop.publisher import OpenGeneration
from master.storage.checkpoint import surplus_generations, write_atomically
from master.storage.replay_log import ReplayLog, ReplayStep

MOST_RECORD_BYTES = 256 * 2**20


class RecordReader(Protocol):
    """A reader of records during the run."""

    def needs(self, generation: int) -> bool:
        """Whether this generation's record must stay."""

    def add(self, generation: int) -> None:
        """A generation's record has been written."""

    def drop(self, generation: int) -> None:
        """A required record was removed, because the folder has reached its limit."""


class GenerationStore(GenerationListener):
    """Writes the store of one run: the log, and at most ``most`` records (0 for none), in addition
    to those that ``reader`` needs.

    The log is written at once. A record is kept in memory until the next generation is published,
    so that workers do not wait for a disk.
    """

    def __init__(
        self,
        run: str,
        run_dir: Path,
        most: int,
        reader: RecordReader | None = None,
    ) -> None:
        self._run, self._run_dir, self._most, self._reader = run, run_dir, most, reader
        self.log = ReplayLog(run_dir)
        self._pending: Callable[[], SlotRecord] | None = None

    @cached_property
    def _recorded(self) -> list[int]:
        """The generations that have a record, ascending; the folder is listed once."""
        return recorded_generations(self._run_dir)

    def on_published(self, generation: OpenGeneration) -> None:
        self.log.lead_to(generation.state.generation, generation.checkpoint)
        try_write(self._write_pending)

    def on_generation(self, report: GenerationReport) -> None:
        if self._most and report.closed.counted:
            self._pending = partial(make_record, self._run, report.generation, report.closed)
        if report.has_learnt:
            self.log.append(replay_step(report))

    def _write_pending(self) -> None:
        """Write the record that is in memory. Raises RunFolderError if the folder cannot be
        written.
        """
        pending, self._pending = self._pending, None
        if pending is None:
            return
        record = pending()
        data = record.encode()
        write_atomically(record_path(self._run_dir, record.task.generation), data, durable=False)
        if record.task.generation not in self._recorded:
            insort(self._recorded, record.task.generation)
        self._remove_surplus(max(2, MOST_RECORD_BYTES // len(data)))
        if self._reader is not None:
            self._reader.add(record.task.generation)

    def _remove_surplus(self, room: int) -> None:
        """Remove records beyond the limits; ``room`` is the number that the folder may have."""
        recorded = self._recorded
        needed = {number for number in recorded if self._reader and self._reader.needs(number)}
        if len(recorded) <= room:
            recorded = [number for number in recorded if number not in needed]
        for number in surplus_generations(recorded, max(2, min(self._most, room))):
            record_path(self._run_dir, number).unlink(missing_ok=True)
            self._recorded.remove(number)
            if self._reader is not None and number in needed:
                self._reader.drop(number)


def replay_step(report: GenerationReport) -> ReplayStep:
    generation, closed, after = report.generation, report.closed, report.after
    state, learner = generation.state, generation.learner
    return ReplayStep(
        state.generation,
        generation.digest,
        learner.fitness(closed.arrays),
        after.moments,
        after.step_limit,
        report.rolled_back_to,
        after.anchor is not state.anchor,
        after.changes[len(state.changes) :],
        learner.reevaluated_fitness(closed.reevaluations),
        generation.ledger.publication,
        tuple((part.publication, part.slots) for part in closed.used),
        tuple(closed.tried),
        **learner.behaviour_arrays(closed),
    )


def make_record(run: str, generation: OpenGeneration, closed: ClosedGeneration) -> SlotRecord:
    small = 4 * len(generation.vector) <= MAX_PUBLISHED_BYTES
    return SlotRecord(
        run,
        generation.learner.requested,
        generation.task,
        generation.vector if small else np.empty(0, np.float32),
        slot_arrays(generation.learner, generation.task.generation, closed),
    )


def slot_arrays(
    learner: Learner, generation: int, closed: ClosedGeneration
) -> dict[str, NDArray[Any]]:
    """The columns of a record: a row for each individual of the counted slots."""
    arrays, per = closed.arrays, learner.strategy.per_slot
    slots = len(arrays)
    plans = (
        slot_plans([(part.publication, part.slots) for part in closed.used])
        if closed.used
        else np.stack([np.full(slots, generation), np.arange(slots)], axis=1)
    )
    behaviour = (
        learner.behaviour(closed.counted, per)
        if learner.strategy.wants_behaviour
        else np.empty((slots, per, 0), np.float32)
    )
    fitness = learner.fitness(arrays)
    returns, steps = (
        (arrays.returns, arrays.steps)
        if arrays.valid.any()
        else (fitness, np.zeros((slots, per), np.int64))
    )
    seeds = [0 if result is None else result.seed for result in closed.counted]
    return {
        "generation": np.repeat(plans[:, 0], per),
        "slot": np.repeat(plans[:, 1], per),
        "sign": np.tile(np.array([1, -1] if per == 2 else [0] * per, np.int8), slots),
        "noise_index": np.repeat(arrays.noise_indices, per),
        "seed": np.repeat(np.array(seeds, np.int64), per),
        "fitness": fitness.ravel(),
        "return": returns.ravel(),
        "length": steps.ravel(),
        "behaviour": behaviour.reshape(slots * per, behaviour.shape[2]),
    }
