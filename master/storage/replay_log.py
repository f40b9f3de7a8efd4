"""The replay log: the input of each generation's update, in the run's folder.

``replay/<generation>.log`` is a chain of frames: length (uint32, little-endian), BLAKE2b-128 of the
previous digest and of the payload, payload (msgpack). A file begins with the checkpoint of its
first generation. Then each closed generation has a frame: the digest of the published parameters,
the fitness of its slots, the observation statistics and step limit after it, and changed settings.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgpack
import numpy as np

from es_queue.config.changeable import validate_changes
from es_queue.errors import EsQueueError, RunFolderError
from es_queue.files import open_file, unpack
from es_queue.numerics.arrays import Doubles, Floats, Integers
from es_queue.numerics.statistics import RunningMoments
from es_queue.private_files import no_link
from es_queue.protocol.messages import publication_generation
from master.loop.state import Change

LOGGER = logging.getLogger("es_queue.storage")
REPLAY_FOLDER = "replay"
DIGEST_BYTES = 16
HEADER_BYTES = 4 + DIGEST_BYTES
MAX_FRAME = 2**31 - 1
#: Fields of a step: those that are stored as they are, and the types of its arrays, as bytes.
SCALARS = ("generation", "digest", "step_limit", "back", "anchored", "publication")
MOMENTS, SLOTS = ("mean", "m2"), ("used", "tried")
DTYPES = {
    "fitness": "<f8",
    "again": "<f8",
    "behaviour": "<f4",
    "centre_fitness": "<f8",
    "centre_behaviour": "<f4",
}
#: The lowest value of each field that is a whole number, and the largest of them all.
WHOLE = {"generation": 0, "step_limit": 0, "individuals": 1, "numbers": 0}
LARGEST = 2**53
FIELDS = {*SCALARS, *MOMENTS, *SLOTS, *DTYPES, *WHOLE, "changes", "count"}
#: A file is closed at this size and the next one begun; the oldest go when all together are larger
#: than the whole.
FILE_BYTES = 64 * 2**20
MOST_LOG_BYTES = 512 * 2**20


@dataclass(frozen=True)
class ReplayStep:
    """One closed generation: how its state became the next one.

    fitness: float64 [S, per_slot], NaN if a slot failed everywhere; back: the generation that a
    rollback restored
    anchored: whether its search was kept for a rollback; changes: settings that were changed,
    including those for later generations
    again: float64 [k], fitness in repeated evaluations
    behaviour, centre_fitness, centre_behaviour: as in ``strategies.base.Batch``, if behaviours or
    centres are compared
    publication: what was published; used, tried: in the asynchronous schedule, (publication, slots)
    of the rows of fitness and of ``again``
    """

    generation: int
    digest: str
    fitness: Doubles
    moments: RunningMoments
    step_limit: int
    back: int | None
    anchored: bool
    changes: tuple[Change, ...]
    again: Doubles
    publication: str
    used: tuple[tuple[str, Integers], ...]
    tried: tuple[tuple[str, Integers], ...]
    centre_fitness: Doubles
    behaviour: Floats = field(default_factory=lambda: np.empty((0, 0, 0), np.float32))
    centre_behaviour: Floats = field(default_factory=lambda: np.empty((0, 0), np.float32))

    def encode(self) -> bytes:
        fields: dict[str, Any] = {name: getattr(self, name) for name in SCALARS}
        fields |= {name: getattr(self.moments, name).astype("<f8").tobytes() for name in MOMENTS}
        fields |= {name: getattr(self, name).astype(DTYPES[name]).tobytes() for name in DTYPES}
        for name in SLOTS:
            fields[name] = [
                (of, slots.astype("<i8").tobytes()) for of, slots in getattr(self, name)
            ]
        fields["changes"] = [asdict(change) for change in self.changes]
        shapes = {"individuals": self.fitness.shape[1], "numbers": self.behaviour.shape[-1]}
        packed: bytes = msgpack.packb({**fields, **shapes, "count": self.moments.count})
        return packed

    @classmethod
    def decode(cls, payload: bytes) -> ReplayStep:
        """Raises RunFolderError for an invalid step."""
        try:
            fields = unpack(payload)
            if not isinstance(fields, dict) or fields.keys() != FIELDS:
                raise RunFolderError("another version of es-queue wrote this replay log")
            validate_fields(fields)
            fields["changes"] = tuple(change_of(change) for change in fields["changes"])
            for name in SLOTS:
                fields[name] = tuple((of, np.frombuffer(data, "<i8")) for of, data in fields[name])
            for name, dtype in DTYPES.items():
                fields[name] = np.frombuffer(fields[name], dtype)
            mean, m2 = (np.frombuffer(fields.pop(name), "<f8") for name in MOMENTS)
            moments = RunningMoments(fields.pop("count"), mean, m2)
            individuals, numbers = fields.pop("individuals"), fields.pop("numbers")
            fields["fitness"] = fields["fitness"].reshape(-1, individuals)
            rows = (len(fields["fitness"]), individuals) if numbers else (0, 0)
            fields["behaviour"] = fields["behaviour"].reshape(*rows, numbers)
            centres = len(fields["centre_behaviour"]) // max(1, numbers)
            fields["centre_behaviour"] = fields["centre_behaviour"].reshape(centres, numbers)
            return cls(**fields, moments=moments)
        except RunFolderError:
            raise
        except Exception as error:  # whatever msgpack and numpy raise for forged data
            why = error if isinstance(error, EsQueueError) else type(error).__name__
            raise RunFolderError(f"a generation of the replay log cannot be read: {why}") from None


def validate_fields(fields: dict[str, Any]) -> None:
    """Raises RunFolderError for fields of another type or range, DecodeError for a wrong
    publication.
    """
    for name, lowest in WHOLE.items():
        validate_number(name, fields[name], lowest, (int,))
    validate_number("count", fields["count"], 0)
    if fields["back"] is not None:
        validate_number("back", fields["back"], 0, (int,))
    for name, kind in (("digest", str), ("anchored", bool), ("changes", list)):
        validate_type(name, fields[name], kind)
    for publication in (*(of for name in SLOTS for of, _ in fields[name]), fields["publication"]):
        validate_type("publication", publication, str)
        publication_generation(publication)


def change_of(fields: Any) -> Change:
    """A change of settings. Raises RunFolderError or UsageError for an impossible one."""
    change = Change(**fields)
    validate_number("generation of a change", change.generation, 0, (int,))
    validate_number("time of a change", change.time, -LARGEST)
    for name, kind in (("settings", dict), ("by", str), ("id", str)):
        validate_type(f"{name} of a change", getattr(change, name), kind)
    validate_changes(change.settings, "the replay log")
    return change


def validate_number(
    name: str, value: Any, lowest: int, kinds: tuple[type, ...] = (int, float)
) -> None:
    is_right = type(value) in kinds and lowest <= value <= LARGEST
    whole = "" if float in kinds else "whole "
    require(is_right, name, value, f"a {whole}number from {lowest} to {LARGEST}")


def validate_type(name: str, value: Any, kind: type) -> None:
    require(type(value) is kind, name, value, f"of type {kind.__name__}")


def require(is_right: bool, name: str, value: Any, expected: str) -> None:
    if not is_right:
        raise RunFolderError(
            f"a generation of the replay log has {name} {repr(value)[:60]}, which must be "
            f"{expected}: restore the log from a copy"
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
