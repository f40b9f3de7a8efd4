"""The store of each generation, in a run's folder.

The replay log has the results of every generation (``master.storage.replay``).
Records of individuals, with the parameters that they were perturbed from, exist for the newest
generations and for some older ones (``es_queue.slot_record``). ``es-master --replay`` reads
the log; es-play, ``es-plot --cloud`` and films read the records.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_queue.slot_record import MAX_PUBLISHED_BYTES, SlotRecord, record_path, recorded_generations
from master.display.video_jobs import VideoJobs
from master.loop.checkpoint import surplus_generations, write_atomically
from master.loop.learner import Chosen, Learner
from master.loop.listeners import Generation, Listener, Report, try_write
from master.storage.replay import LoggedGeneration, ReplayLog

MOST_RECORD_BYTES = 256 * 2**20


class GenerationStore(Listener):
    """Writes the store of one run: the log, and at most ``most`` records (0 for none), in addition
    to those that ``films`` are made of.

    The log is written at once. A record is kept in memory until the next generation is published,
    so that workers do not wait for a disk.
    """

    def __init__(
        self,
        run: str,
        run_dir: Path,
        most: int,
        films: VideoJobs | None = None,
    ) -> None:
        self._run, self._run_dir, self._most, self._films = run, run_dir, most, films
        self.log = ReplayLog(run_dir)
        self._pending: Callable[[], SlotRecord] | None = None

    @cached_property
    def _recorded(self) -> list[int]:
        """The generations that have a record, ascending; the folder is listed once."""
        return recorded_generations(self._run_dir)

    def on_published(self, generation: Generation) -> None:
        self.log.lead_to(generation.state.generation, generation.checkpoint)
        try_write(self._write_pending)

    def on_generation(self, report: Report) -> None:
        if self._most and any(map(len, report.chosen.trained)):
            self._pending = partial(make_record, self._run, report.generation, report.chosen)
        if report.has_learnt:
            self.log.append(LoggedGeneration.of(report))

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
        if self._films is not None:
            self._films.add(record.task.generation)

    def _remove_surplus(self, room: int) -> None:
        """Remove records beyond the limits; ``room`` is the number that the folder may have."""
        recorded = self._recorded
        needed = {number for number in recorded if self._films and self._films.needs(number)}
        if len(recorded) <= room:
            recorded = [number for number in recorded if number not in needed]
        for number in surplus_generations(recorded, max(2, min(self._most, room))):
            record_path(self._run_dir, number).unlink(missing_ok=True)
            self._recorded.remove(number)
            if self._films is not None and number in needed:
                self._films.drop(number)


def make_record(run: str, generation: Generation, chosen: Chosen) -> SlotRecord:
    small = 4 * len(generation.vector) <= MAX_PUBLISHED_BYTES
    return SlotRecord(
        run,
        generation.learner.requested,
        generation.task,
        generation.vector if small else np.empty(0, np.float32),
        slot_columns(generation.learner, chosen),
    )


def slot_columns(learner: Learner, chosen: Chosen) -> dict[str, NDArray[Any]]:
    """The columns of a record: a row for each individual of the counted slots."""
    per, answered = learner.strategy.per_slot, chosen.answered
    behaviour = chosen.column("behaviour")
    seeds = np.where(answered, chosen.column("seeds")[:, 0, 0], 0)
    signs = np.array([1, -1] if per == 2 else [0] * per, np.int8)
    return {
        "generation": np.repeat(chosen.generations(chosen.trained), per),
        "slot": np.repeat(chosen.column("number").astype(np.int64), per),
        "sign": np.tile(signs, len(answered)),
        "noise_index": np.repeat(np.where(answered, chosen.column("index"), 0), per),
        "seed": np.repeat(seeds.astype(np.int64), per),
        "fitness": learner.fitness(chosen).ravel(),
        "return": np.ascontiguousarray(chosen.column("returns")).ravel(),
        "length": np.ascontiguousarray(chosen.column("steps")).ravel(),
        "behaviour": behaviour.reshape(len(answered) * per, behaviour.shape[2]),
    }
