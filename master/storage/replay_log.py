"""The replay log: the input of each generation's update, in the run's folder.

``replay/<generation>.log`` is a chain of frames: length (uint32, little-endian), BLAKE2b-128 of the
previous digest and of the payload, payload (msgpack). A file begins with the checkpoint of its
first generation. Then each closed generation has a frame: a ``ReplayStep``.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgpack
import numpy as np

from es_queue.config.run_config import check_changes
from es_queue.errors import EsQueueError, RunFolderError
from es_queue.files import open_file, unpack
from es_queue.numerics.arrays import Doubles, Floats, Integers
from es_queue.numerics.statistics import RunningMoments
from es_queue.private_files import no_link
from master.loop.state import Change

LOGGER = logging.getLogger("es_queue.storage")
REPLAY_FOLDER = "replay"
DIGEST_BYTES = 16
HEADER_BYTES = 4 + DIGEST_BYTES
MAX_FRAME = 2**31 - 1
#: Types of a step's fields, and of a change's; numbers are from 0 to LARGEST.
SCALARS: dict[str, tuple[type, ...]] = {
    "generation": (int,),
    "digest": (str,),
    "step_limit": (int,),
    "back": (int, type(None)),
    "anchored": (bool,),
}
SIZES: dict[str, tuple[type, ...]] = {"individuals": (int,), "numbers": (int,)}
MORE: dict[str, tuple[type, ...]] = {"changes": (list,), "count": (int, float)}
CHANGE: dict[str, tuple[type, ...]] = {
    "generation": (int,),
    "settings": (dict,),
    "by": (str,),
    "time": (int, float),
    "id": (str,),
}
LARGEST = 2**53
#: The arrays of a step: type, and size of each axis after the first.
ARRAYS: dict[str, tuple[Any, ...]] = {
    "fitness": ("<f8", "individuals"),
    "again": ("<f8",),
    "used": ("<i8", 2),
    "tried": ("<i8", 2),
    "behaviour": ("<f4", "individuals", "numbers"),
    "centre_fitness": ("<f8",),
    "centre_behaviour": ("<f4", "numbers"),
    "mean": ("<f8",),
    "m2": ("<f8",),
}
#: A file is closed at this size and the next one begun; the oldest go when all together are larger
#: than the whole.
FILE_BYTES = 64 * 2**20
MOST_LOG_BYTES = 512 * 2**20


@dataclass(frozen=True)
class ReplayStep:
    """One closed generation: how its state became the next one.

    digest: of the published parameters; moments, step_limit: after it
    fitness: float64 [S, per_slot], NaN if a slot failed everywhere; back: the generation that a
    rollback restored
    anchored: whether its search was kept for a rollback; changes: settings that were changed,
    including those for later generations
    again: float64 [k], fitness in repeated evaluations
    used, tried: int64 [S, 2] and [k, 2], generation and slot of the rows of fitness and of
    ``again``, in the asynchronous schedule
    behaviour, centre_fitness, centre_behaviour: as in ``strategies.base.Batch``, if behaviours or
    centres are compared
    """

    generation: int
    digest: str
    fitness: Doubles
    moments: RunningMoments
    step_limit: int
    back: int | None = None
    anchored: bool = False
    changes: tuple[Change, ...] = ()
    again: Doubles = field(default_factory=lambda: np.empty(0))
    used: Integers = field(default_factory=lambda: np.empty((0, 2), np.int64))
    tried: Integers = field(default_factory=lambda: np.empty((0, 2), np.int64))
    behaviour: Floats = field(default_factory=lambda: np.empty((0, 0, 0), np.float32))
    centre_fitness: Doubles = field(default_factory=lambda: np.empty(0))
    centre_behaviour: Floats = field(default_factory=lambda: np.empty((0, 0), np.float32))

    def encode(self) -> bytes:
        of = {**vars(self), "mean": self.moments.mean, "m2": self.moments.m2}
        packed: bytes = msgpack.packb(
            {name: of[name] for name in SCALARS}
            | {name: of[name].astype(ARRAYS[name][0]).tobytes() for name in ARRAYS}
            | {"individuals": self.fitness.shape[1], "numbers": self.behaviour.shape[-1]}
            | {"changes": [asdict(change) for change in self.changes], "count": self.moments.count}
        )
        return packed

    @classmethod
    def decode(cls, payload: bytes) -> ReplayStep:
        """Raises RunFolderError for an invalid step."""
        try:
            fields = unpack(payload)
            if not isinstance(fields, dict) or fields.keys() != {*SCALARS, *SIZES, *MORE, *ARRAYS}:
                raise RunFolderError("another version of es-queue wrote this replay log")
            validate_types("a generation", fields, {**SCALARS, **SIZES, **MORE})
            arrays: dict[str, Any] = {}
            for name, (dtype, *inner) in ARRAYS.items():
                flat, sizes = np.frombuffer(fields[name], dtype), [fields.get(n, n) for n in inner]
                arrays[name] = flat.reshape(flat.size // max(1, math.prod(sizes)), *sizes)
            moments = RunningMoments(fields["count"], arrays.pop("mean"), arrays.pop("m2"))
            changes = []
            for change in fields["changes"]:
                changes.append(Change(**change))
                validate_types("a change", vars(changes[-1]), CHANGE)
                check_changes(changes[-1].settings, "the replay log")
            scalars = {name: fields[name] for name in SCALARS}
            return cls(**scalars, **arrays, moments=moments, changes=tuple(changes))
        except RunFolderError:
            raise
        except Exception as error:  # whatever msgpack and numpy raise for forged data
            why = error if isinstance(error, EsQueueError) else type(error).__name__
            raise RunFolderError(f"a generation of the replay log cannot be read: {why}") from None


def validate_types(
    what: str, fields: Mapping[str, Any], types: Mapping[str, tuple[type, ...]]
) -> None:
    """Raises RunFolderError for a field of another type or range."""
    for name, kinds in types.items():
        value = fields[name]
        is_right = type(value) in kinds
        if is_right and type(value) in (int, float):
            is_right = 0 <= value <= LARGEST
        if not is_right:
            raise RunFolderError(
                f"{what} in the replay log has {name} {repr(value)[:60]}, which is impossible: "
                "restore the log from a copy"
            )


class ReplayLog:
    """Writes the log of one run. A failure of the disk is noted once and ends the log, not the
    run.
    """

    def __init__(self, run_dir: Path) -> None:
        self.folder = run_dir / REPLAY_FOLDER
        self._file: BinaryIO | None = None
        self._digest, self._size, self._has_begun = b"", 0, False

    def lead_to(self, generation: int, checkpoint: bytes) -> None:
        """Prepare the log for the published state of ``generation``. At first it continues after
        the generation before, if it can. Otherwise, and when a file is full, a new file begins with
        that state's checkpoint.
        """
        with self._ending_on_failure():
            if not self._has_begun:
                self._has_begun = True
                if not self._open_continuation(generation):
                    self._new_file(generation, checkpoint)
            elif self._file is not None and self._size > FILE_BYTES:
                self._new_file(generation, checkpoint)
                self._remove_old_files()

    def append(self, step: ReplayStep) -> None:
        with self._ending_on_failure():
            self._write(step.encode())

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    # --- files

    def _open_continuation(self, generation: int) -> bool:
        """Open the file that leads to ``generation``, cut after the generation before it; later
        ones belong to another past. Returns whether there is one.
        """
        paths = list_log_files(self.folder)
        while paths and int(paths[-1].stem) > generation:
            paths.pop().unlink()
        if not paths:
            return False
        path, last = paths[-1], -2
        try:
            for frame in read_frames(path):
                number = int(path.stem) - 1
                if frame.start:
                    number = ReplayStep.decode(frame.payload).generation
                if number >= generation:
                    break
                last, self._size, self._digest = number, frame.stop, frame.digest
        except RunFolderError:
            return False
        if last != generation - 1:
            return False
        self._file = open(path, "r+b", buffering=0, opener=no_link)  # noqa: SIM115 - closed by ``close``
        self._file.truncate(self._size)
        self._file.seek(self._size)
        return True

    def _new_file(self, generation: int, checkpoint: bytes) -> None:
        self.close()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._file = open(self.folder / f"{generation:08d}.log", "wb", buffering=0, opener=no_link)  # noqa: SIM115
        self._digest, self._size = b"", 0
        self._write(checkpoint)

    def _write(self, payload: bytes) -> None:
        if self._file is None:
            return
        self._digest = chain_digest(self._digest, payload)
        frame = len(payload).to_bytes(4, "little") + self._digest + payload
        if self._file.write(frame) != len(frame):
            raise OSError(0, "the disk is full")
        self._size += len(frame)

    def _remove_old_files(self) -> None:
        kept = 0
        for path in reversed(list_log_files(self.folder)):
            kept += path.stat().st_size
            if kept > MOST_LOG_BYTES:
                path.unlink()

    @contextmanager
    def _ending_on_failure(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.close()
            LOGGER.warning(
                f"the replay log in {self.folder} cannot be written ({error.strerror}); training "
                "continues without it"
            )


class LogFrame(NamedTuple):
    """One frame of a file: where it starts and stops, in bytes, its digest and its payload."""

    start: int
    stop: int
    digest: bytes
    payload: bytes


def read_frames(path: Path, *, strict: bool = False) -> Iterator[LogFrame]:
    """The frames of a file, up to the first that is damaged or torn; ``strict`` raises
    RunFolderError there.
    """
    digest, place = b"", 0
    try:
        opened = open_file(path)
    except OSError as error:
        raise RunFolderError(f"{path} cannot be read: {error.strerror}") from None
    with opened as file:
        size = os.fstat(file.fileno()).st_size
        while head := file.read(HEADER_BYTES):
            length = int.from_bytes(head[:4], "little")
            stop = place + HEADER_BYTES + length
            payload = file.read(length) if stop <= size and length <= MAX_FRAME else b""
            digest = chain_digest(digest, payload)
            if len(payload) < length or head[4:] != digest:
                if strict:
                    raise RunFolderError(f"{path} is damaged or incomplete from byte {place}")
                return
            yield LogFrame(place, stop, digest, payload)
            place = stop


def list_log_files(folder: Path) -> list[Path]:
    """The files of a log, oldest first."""
    return sorted(path for path in folder.glob("*.log") if path.stem.isdigit())


def chain_digest(before: bytes, payload: bytes) -> bytes:
    return hashlib.blake2b(before + payload, digest_size=DIGEST_BYTES).digest()
