"""The replay log: what each generation learnt from, in the run's folder, so that its parameters can
be computed again.

``replay/<generation>.log`` is a chain of frames: length (uint32, little-endian), BLAKE2b-128 of the
digest before and of the payload, payload (msgpack). A file begins with the checkpoint of its first
generation; then comes a frame for each generation that was closed: the digest of what was
published, the fitness of its slots, the observation statistics and the step limit after it, and
what people changed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import msgpack
import numpy as np
from numpy.typing import NDArray

from es_queue.config.changeable import validate_changes
from es_queue.errors import EsQueueError, RunFolderError, UsageError
from es_queue.numerics.normalization import RunningMoments
from es_queue.protocol.messages import publication_generation
from es_queue.security.private_directory import no_link
from master.loop.state import Change, RunState

REPLAY_FOLDER = "replay"
DIGEST_BYTES = 16
HEADER_BYTES = 4 + DIGEST_BYTES
MAX_FRAME = 2**31 - 1
#: Numbers are bytes in bulk, so a generation has few elements of lists and maps: a thousand
#: publications are three thousand.
MOST_ELEMENTS, LONGEST_LIST, LONGEST_MAP, LONGEST_TEXT = 2**18, 2**16, 64, 2**16
#: The lowest value of each field that is a whole number, and the largest of them all.
WHOLE = {"generation": 0, "step_limit": 0, "individuals": 1, "numbers": 1}
LARGEST = 2**53
#: A file is closed at this size and the next one begun; the oldest go when all together are larger
#: than the whole.
FILE_BYTES = 64 * 2**20
MOST_LOG_BYTES = 512 * 2**20


@dataclass(frozen=True)
class ReplayStep:
    """One closed generation: how its state became the next one.

    fitness: float64 [S, per_slot], NaN where a slot failed everywhere; back: the generation that a
    rollback returned to;
    anchored: whether its search was kept to return to; changes: what people changed, for
    generations to come
    again: float64 [k], fitness of those that were evaluated again behaviour, centre_fitness,
    centre_behaviour: as in ``strategies.base.Batch``, where behaviours are compared publication,
    used, tried: in the asynchronous schedule, what was published, and (publication, slots) of the
    rows of fitness and of ``again``
    """

    generation: int
    digest: str
    fitness: NDArray[np.float64]
    moments: RunningMoments
    step_limit: int
    back: int | None
    anchored: bool
    changes: tuple[Change, ...]
    again: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    publication: str = ""
    used: tuple[tuple[str, NDArray[np.int64]], ...] = ()
    tried: tuple[tuple[str, NDArray[np.int64]], ...] = ()
    behaviour: NDArray[np.float32] = field(default_factory=lambda: np.empty((0, 0, 0), np.float32))
    centre_fitness: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    centre_behaviour: NDArray[np.float32] = field(
        default_factory=lambda: np.empty((0, 0), np.float32)
    )

    def encode(self) -> bytes:
        fields: dict[str, Any] = {
            name: getattr(self, name)
            for name in ("generation", "digest", "step_limit", "back", "anchored")
        }
        fields |= {
            "fitness": self.fitness.astype("<f8").tobytes(),
            "individuals": self.fitness.shape[1],
            "count": self.moments.count,
        }
        fields["again"] = self.again.astype("<f8").tobytes()
        fields |= {
            name: getattr(self.moments, name).astype("<f8").tobytes() for name in ("mean", "m2")
        }
        if self.used:
            fields |= {
                name: [
                    (publication, slots.astype("<i8").tobytes())
                    for publication, slots in getattr(self, name)
                ]
                for name in ("used", "tried")
            }
            fields["publication"] = self.publication
        if self.behaviour.size:
            fields |= {
                "behaviour": self.behaviour.astype("<f4").tobytes(),
                "numbers": self.behaviour.shape[2],
            }
            fields |= {
                "centre_fitness": self.centre_fitness.astype("<f8").tobytes(),
                "centre_behaviour": self.centre_behaviour.astype("<f4").tobytes(),
            }
        packed: bytes = msgpack.packb(
            {**fields, "changes": [asdict(change) for change in self.changes]}
        )
        return packed

    @classmethod
    def decode(cls, payload: bytes) -> ReplayStep:
        """Raises RunFolderError for what is no step."""
        try:
            fields = unpack_frame(payload)
            validate_fields(fields)
            fitness = np.frombuffer(fields.pop("fitness"), "<f8").reshape(
                -1, fields.pop("individuals")
            )
            again = np.frombuffer(
                fields.pop("again", b""), "<f8"
            )  # version 0.1.0 evaluated nobody again
            mean, m2 = (np.frombuffer(fields.pop(name), "<f8") for name in ("mean", "m2"))
            changes = tuple(change_of(change) for change in fields.pop("changes"))
            for name in ("used", "tried"):
                fields[name] = tuple(
                    (publication, np.frombuffer(slots, "<i8"))
                    for publication, slots in fields.pop(name, ())
                )
            if "behaviour" in fields:
                fields |= _decode_behaviours(fields, fields.pop("numbers"), fitness.shape)
            return cls(
                fitness=fitness,
                moments=RunningMoments(fields.pop("count"), mean, m2),
                changes=changes,
                again=again,
                **fields,
            )
        except RunFolderError:
            raise
        except (
            ValueError,
            TypeError,
            KeyError,
            AttributeError,
            EsQueueError,
            msgpack.exceptions.UnpackException,
        ) as error:
            raise RunFolderError(
                f"a generation of the replay log cannot be read: {type(error).__name__}"
            ) from None


def unpack_frame(payload: bytes) -> dict[str, Any]:
    """The map of a frame, whose lists and maps have few elements in all. Raises ValueError or
    msgpack's own errors.
    """
    elements = 0

    def counted(container: Any) -> Any:
        nonlocal elements
        elements += 1 + len(container)
        if elements > MOST_ELEMENTS:
            raise ValueError("it has too many elements")
        return container

    fields: dict[str, Any] = msgpack.unpackb(
        payload,
        strict_map_key=True,
        list_hook=counted,
        object_hook=counted,
        max_array_len=LONGEST_LIST,
        max_map_len=LONGEST_MAP,
        max_str_len=LONGEST_TEXT,
        max_ext_len=0,
    )
    return fields


def validate_fields(fields: dict[str, Any]) -> None:
    """Raises RunFolderError for fields of another type or range, DecodeError for a wrong
    publication.
    """
    if not isinstance(fields, dict):
        raise ValueError("it is no map")
    for name, lowest in WHOLE.items():
        if name in fields and not is_whole(fields[name], lowest):
            raise field_error(name, fields[name], f"a whole number from {lowest} to {LARGEST}")
    count = fields["count"]
    if type(count) not in (int, float) or not 0 <= count <= LARGEST:
        raise field_error("count", count, f"a number from 0 to {LARGEST}")
    if fields["back"] is not None and not is_whole(fields["back"], 0):
        raise field_error("back", fields["back"], "the number of a generation")
    for name, kind in (("digest", str), ("anchored", bool), ("changes", list)):
        if type(fields[name]) is not kind:
            raise field_error(name, fields[name], f"of type {kind.__name__}")
    if "publication" in fields:
        named = [
            publication for field in ("used", "tried") for publication, _ in fields.get(field, ())
        ]
        for publication in (fields["publication"], *named):
            if type(publication) is not str:
                raise field_error("publication", publication, "of type str")
            publication_generation(publication)


def change_of(fields: Any) -> Change:
    """What people changed. Raises RunFolderError or UsageError for what they cannot have
    changed.
    """
    change = Change(**fields)
    if not is_whole(change.generation, 0):
        raise field_error("generation of a change", change.generation, "the number of a generation")
    if type(change.settings) is not dict:
        raise field_error("settings of a change", change.settings, "of type dict")
    if type(change.by) is not str or type(change.id) is not str:
        raise field_error("author of a change", (change.by, change.id), "text")
    if type(change.time) not in (int, float):
        raise field_error("time of a change", change.time, "a number")
    try:
        validate_changes(change.settings, "the replay log")
    except UsageError as error:
        raise RunFolderError(f"a generation of the replay log cannot be read: {error}") from None
    return change


def is_whole(value: Any, lowest: int) -> bool:
    return type(value) is int and lowest <= value <= LARGEST


def field_error(name: str, value: Any, expected: str) -> RunFolderError:
    """The sentence about a field that cannot be."""
    return RunFolderError(
        f"a generation of the replay log has {name} {repr(value)[:60]}, which must be {expected}: "
        "restore the log from a copy"
    )


def _decode_behaviours(
    fields: dict[str, Any], numbers: int, slots: tuple[int, ...]
) -> dict[str, NDArray[Any]]:
    """The arrays of behaviours, of so many ``numbers`` each."""
    behaviour, centres = (
        np.frombuffer(fields[name], "<f4") for name in ("behaviour", "centre_behaviour")
    )
    return {
        "behaviour": behaviour.reshape(*slots, numbers),
        "centre_fitness": np.frombuffer(fields["centre_fitness"], "<f8"),
        "centre_behaviour": centres.reshape(-1, numbers),
    }


class ReplayLog:
    """Writes the log of one run. Trouble with the disk is said once and ends the log, not
    the run.
    """

    def __init__(self, run_dir: Path) -> None:
        self.folder = run_dir / REPLAY_FOLDER
        self._file: BinaryIO | None = None
        self._digest = b""
        self._size = 0
        self.trouble = ""

    def begin(self, state: RunState, checkpoint: bytes) -> None:
        """Go on after the generation before ``state``, or begin a file with its checkpoint where
        the log does not lead to it.
        """
        try:
            if not self._continue_if_possible(state.generation):
                self._new_file(state.generation, checkpoint)
        except OSError as error:
            self._fail(error)

    def append(self, step: ReplayStep) -> None:
        self._write(step.encode())

    @property
    def is_full(self) -> bool:
        """Whether the next generation should begin a new file."""
        return self._file is not None and self._size > FILE_BYTES

    def start_new_file(self, state: RunState, checkpoint: bytes) -> None:
        """Begin a new file with the state of the generation that is about to be published."""
        if self._file is None:
            return
        try:
            self._new_file(state.generation, checkpoint)
            self._remove_old_files()
        except OSError as error:
            self._fail(error)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    # --- files

    def _continue_if_possible(self, generation: int) -> bool:
        try:
            return self._open_continuation(generation)
        except (
            RunFolderError
        ):  # whole frames that are no generations of ours: another version wrote them
            return False

    def _open_continuation(self, generation: int) -> bool:
        """Open the file that leads to ``generation``, cut after the generation before it; later
        ones are another past.
        """
        for path in reversed(list_log_files(self.folder)):
            first = int(path.stem)
            if first > generation:
                path.unlink()
                continue
            last, end, digest = -2, 0, b""
            for frame in read_frames(path):
                number = ReplayStep.decode(frame.payload).generation if frame.start else first - 1
                if number >= generation:
                    break
                last, end, digest = number, frame.stop, frame.digest
            if last != generation - 1:
                return False
            self._file = open(path, "r+b", buffering=0, opener=no_link)  # noqa: SIM115 - closed by ``close``
            self._file.truncate(end)
            self._file.seek(end)
            self._digest, self._size = digest, end
            return True
        return False

    def _new_file(self, generation: int, checkpoint: bytes) -> None:
        self.close()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._file = open(self.folder / f"{generation:08d}.log", "wb", buffering=0, opener=no_link)  # noqa: SIM115
        self._digest, self._size = b"", 0
        self._write(checkpoint)

    def _write(self, payload: bytes) -> None:
        if self._file is None:
            return
        digest = chain_digest(self._digest, payload)
        try:
            written = self._file.write(len(payload).to_bytes(4, "little") + digest + payload)
        except OSError as error:
            self._fail(error)
            return
        if written != HEADER_BYTES + len(payload):
            self._fail(OSError(0, "the disk is full"))
            return
        self._digest = digest
        self._size += written

    def _remove_old_files(self) -> None:
        kept = 0
        for path in reversed(list_log_files(self.folder)):
            kept += path.stat().st_size
            if kept > MOST_LOG_BYTES:
                path.unlink()

    def _fail(self, error: OSError) -> None:
        self.close()
        self.trouble = (
            f"the replay log in {self.folder} cannot be written ({error.strerror}); training "
            "goes on without it"
        )


@dataclass(frozen=True)
class LogFrame:
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
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        while head := file.read(HEADER_BYTES):
            length = int.from_bytes(head[:4], "little")
            is_whole = len(head) == HEADER_BYTES and length <= min(
                MAX_FRAME, size - place - HEADER_BYTES
            )
            payload = file.read(length) if is_whole else b""
            computed = chain_digest(digest, payload)
            if len(head) < HEADER_BYTES or len(payload) < length or head[4:] != computed:
                if strict:
                    raise RunFolderError(f"{path} is damaged or torn from byte {place} on")
                return
            yield LogFrame(place, place + HEADER_BYTES + length, computed, payload)
            digest, place = computed, place + HEADER_BYTES + length


def list_log_files(folder: Path) -> list[Path]:
    """The files of a log, oldest first."""
    return sorted(path for path in folder.glob("*.log") if path.stem.isdigit())


def chain_digest(before: bytes, payload: bytes) -> bytes:
    return hashlib.blake2b(before + payload, digest_size=DIGEST_BYTES).digest()
