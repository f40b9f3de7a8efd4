"""Records of the individuals of a generation: ``slots/<generation>.npz`` in a run's folder.

One row per individual, in slot order: ``generation``, ``slot``, ``sign`` (+1 and -1 for halves of
a pair, else 0), ``noise_index``, ``seed`` (of the slot's first episode), ``fitness``, ``return``,
``length`` (steps of all its episodes), ``behaviour`` [rows, b]; NaN for a slot that failed.
``published`` is the vector that workers had (empty if it was too large), ``meta`` is JSON.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_queue.config.run_config import RunConfig
from es_queue.errors import EsQueueError, RunFolderError
from es_queue.files import FORMAT, npz_bytes, read_npz
from es_queue.numerics.arrays import Floats, typed_array
from es_queue.protocol.messages import Task

FOLDER = "slots"
COLUMNS = (
    "generation",
    "slot",
    "sign",
    "noise_index",
    "seed",
    "fitness",
    "return",
    "length",
    "behaviour",
)
#: Columns of floats; the others contain integers.
FLOATS = ("fitness", "return", "behaviour")
#: A longer published vector is not stored.
MAX_PUBLISHED_BYTES = 4 * 2**20


@dataclass(frozen=True)
class SlotRecord:
    """One generation. columns: by name, as in the module; published: float32 [task.size], or
    empty.
    """

    run: str
    config: RunConfig
    task: Task
    published: Floats
    columns: dict[str, NDArray[Any]]

    def encode(self) -> bytes:
        task = base64.b64encode(self.task.encode()).decode()
        meta = {
            "format": FORMAT,
            "run": self.run,
            "config": self.config.to_dict(),
            "publication": self.task.publication,
            "sigma": self.task.sigma,
            "step_limit": self.task.step_limit,
            "digest": self.task.digest,
            "task": task,
        }
        return npz_bytes({"published": self.published, **self.columns}, meta)

    def row(self, slot: int, individual: int) -> dict[str, Any] | None:
        """The record of an individual in this generation's own slots, or None."""
        matches = (self.columns["generation"] == self.task.generation) & (
            self.columns["slot"] == slot
        )
        rows = np.flatnonzero(matches)
        if individual >= len(rows):
            return None
        return {name: self.columns[name][rows[individual]].tolist() for name in COLUMNS}

    def format_extent(self) -> str:
        """Its own recorded slots, in a few words."""
        slots = self.columns["slot"][self.columns["generation"] == self.task.generation]
        each = "two individuals (+ and -)" if (self.columns["sign"] < 0).any() else "one individual"
        return (
            f"it has slots {slots.min()} to {slots.max()}, with {each} each"
            if len(slots)
            else "none of its own slots counted"
        )


def record_path(run_dir: Path, generation: int) -> Path:
    return run_dir / FOLDER / f"{generation:08d}.npz"


def recorded_generations(run_dir: Path) -> list[int]:
    return sorted(
        int(path.stem)
        for path in (run_dir / FOLDER).glob("*.npz")
        if path.stem.isascii() and path.stem.isdigit()
    )


def read_record(path: Path) -> SlotRecord:
    """Raises RunFolderError with one sentence if the file is missing, damaged or inconsistent."""
    try:
        arrays, meta = read_npz(path, ("published", *COLUMNS))
        task = Task.decode(base64.b64decode(str(meta["task"]), validate=True))
        published = typed_array(arrays, "published", np.float32, (None,))
        if len(published) not in (0, task.size):
            raise ValueError("its published vector has another length")
        columns = {name: arrays[name] for name in COLUMNS if name in arrays}
        if len(columns) < len(COLUMNS) or not all(map(is_valid_column, columns, columns.values())):
            raise ValueError("its columns are missing or not numeric")
        if len({len(column) for column in columns.values()}) > 1:
            raise ValueError("its columns have different lengths")
        config = RunConfig.of(meta["config"], "the record")
        return SlotRecord(str(meta["run"]), config, task, published, columns)
    except KeyError as error:
        raise RunFolderError(f"{path}: its meta has no {error}") from None
    except (ValueError, EsQueueError) as error:
        raise RunFolderError(f"{path}: {error}") from None


def is_valid_column(name: str, column: NDArray[Any]) -> bool:
    """Whether an array can be the column of that name: its dimensions, its kind, and no infinite
    number.
    """
    if column.ndim != (2 if name == "behaviour" else 1):
        return False
    return (
        column.dtype.kind == "f" and not np.isinf(column).any()
        if name in FLOATS
        else column.dtype.kind == "i"
    )
