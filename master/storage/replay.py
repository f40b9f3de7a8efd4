"""The replay log, and ``--replay RUN``: learn again from it, without episodes, and compare digests.

``replay/<generation>.log`` in a run's folder is a chain of frames: length (uint32, little-endian),
128 bits of SHA-256 of the previous digest and of the payload, payload. A file begins with the
checkpoint of its first generation. Then each generation that was learnt from has a frame: the
results in its slot tables (msgpack). The learner gets them as in the run, so a changed byte
anywhere breaks the chain of digests, or gives other parameters.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgpack
import numpy as np

from es_queue.config.run_config import RunConfig, check_changes
from es_queue.errors import EXIT_DONE, EsQueueError, RunFolderError
from es_queue.files import open_file, unpack
from es_queue.numerics.arrays import NoiseRows
from es_queue.numerics.noise_table import NoiseTable
from es_queue.numerics.statistics import Moments
from es_queue.private_files import no_link
from es_queue.protocol.messages import ELITE, TRAIN
from es_queue.slot_plan import max_slots
from es_queue.slots import Slots, spans_from_bytes, spans_to_bytes
from es_queue.strategies import make_strategy
from es_queue.user_code import describe_error, named_modules, require_trust
from master.loop import checkpoint
from master.loop.checkpoint import Checkpoints
from master.loop.config_timeline import ConfigTimeline
from master.loop.learner import Chosen, Learner
from master.loop.listeners import Report
from master.loop.loop import run_digest
from master.loop.state import Change, RunState

LOGGER = logging.getLogger("es_queue.storage")
REPLAY_FOLDER = "replay"
DIGEST_BYTES = 16
HEADER_BYTES = 4 + DIGEST_BYTES
MAX_FRAME = 2**31 - 1
#: A file is closed at this size and the next one begun; the oldest go when all together are larger
#: than the whole.
FILE_BYTES = 64 * 2**20
MOST_LOG_BYTES = 512 * 2**20
#: A publication has at most so many slots, or eight times a population.
MOST_SLOTS = 2**20
#: What arrays and settings raise that do not fit each other.
MISMATCH = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, MemoryError)
#: What no digest of parameters covers.
UNCHECKED = "observation statistics and step limit"


@dataclass(frozen=True)
class LoggedGeneration:
    """What a generation learnt from.

    digest: of the published parameters; changes: settings that were changed in it, including those
    for later generations; moments: after it, because those of each episode would take too much room
    spans: of its slot table; results: (generation, ``Shape.result`` records) of each table whose
    rows it used, its own with those of all other kinds too
    """

    generation: int
    digest: str
    changes: Sequence[Change]
    moments: Moments
    spans: bytes
    results: Sequence[tuple[int, bytes | memoryview]]

    @classmethod
    def of(cls, report: Report) -> LoggedGeneration:
        generation, number = report.generation, report.generation.state.generation
        results = []
        for slots in report.chosen.tables:
            taken = slots.table["used"] == number
            if slots is generation.slots:
                taken |= ~slots.owed & ~np.isin(slots.table["kind"], (TRAIN, ELITE))
            if taken.any():
                results.append((slots.generation, slots.results(taken).view(np.uint8).data))
        return cls(
            generation=number,
            digest=generation.digest,
            changes=report.after.changes[len(generation.state.changes) :],
            moments=report.after.moments,
            spans=spans_to_bytes(generation.slots.spans),
            results=results,
        )

    def encode(self) -> bytes:
        moments = self.moments
        packed: bytes = msgpack.packb(
            {
                "generation": self.generation,
                "digest": self.digest,
                "changes": list(map(asdict, self.changes)),
                "count": moments.count,
                "mean": moments.mean.data.cast("B"),
                "m2": moments.m2.data.cast("B"),
                "spans": self.spans,
                "results": self.results,
            }
        )
        return packed

    @classmethod
    def decode(cls, payload: bytes) -> LoggedGeneration:
        """Raises RunFolderError for invalid fields."""
        try:
            fields = unpack(payload)
            changes = [
                Change(
                    generation=int(change["generation"]),
                    settings=check_changes(dict(change["settings"]), "the replay log"),
                    by=str(change["by"]),
                    time=float(change["time"]),
                    id=str(change["id"]),
                )
                for change in fields["changes"]
            ]
            mean, m2 = (np.frombuffer(fields[name], "<f8") for name in ("mean", "m2"))
            return cls(
                generation=int(fields["generation"]),
                digest=str(fields["digest"]),
                changes=changes,
                moments=Moments(int(fields["count"]), mean, m2),
                spans=bytes(fields["spans"]),
                results=[(int(number), bytes(data)) for number, data in fields["results"]],
            )
        except Exception as error:  # whatever msgpack and numpy raise for forged data
            why = error if isinstance(error, EsQueueError) else type(error).__name__
            raise RunFolderError(f"a generation of the replay log cannot be read: {why}") from None


# --- replay


def replay_run(
    run: str,
    run_dir: Path,
    noise_dir: Path | None,
    write: Callable[[str], None] = print,
    trust: bool = False,
) -> int:
    """Replay the whole log and compare its end with the newest checkpoint; returns 0.

    Raises RunFolderError with file and generation if anything differs or is missing.
    """
    began = time.monotonic()
    again = learn_again(run, run_dir, noise_dir, trust)
    first = next(again)
    timeline, state, _ = deque(chain([first], again), maxlen=1).pop()
    compared = compare_with_checkpoint(run_dir, timeline, state, trust)
    write(
        f"generations {first[1].generation} to {state.generation} of run {run} recomputed in "
        f"{time.monotonic() - began:.1f} s: every digest of the parameters agrees, the last is "
        f"{digest_of(timeline, state)}{compared}"
    )
    return EXIT_DONE


def learn_again(
    run: str, run_dir: Path, noise_dir: Path | None, trust: bool = False
) -> Iterator[tuple[ConfigTimeline, RunState, Chosen | None]]:
    """The first state of each file, and each following one with the rows that it was learnt from.
    Raises RunFolderError at the first that differs.
    """
    paths = list_log_files(run_dir / REPLAY_FOLDER)
    if not paths:
        raise RunFolderError(
            f"{run_dir / REPLAY_FOLDER} holds no replay log of {run}: give --run-dir of the run"
        )
    noise: NoiseTable | None = None
    state: RunState | None = None
    for path in paths:
        frames = read_frames(path, strict=True)
        first = next(frames, None)
        if first is None:
            raise RunFolderError(f"{path} is empty: the log has a gap there")
        config, start, logged_run = checkpoint.decode(first.payload)
        require_trust(str(path), named_modules(config), trust)
        if logged_run != run:
            raise RunFolderError(
                f"{path} belongs to run {logged_run[:40]!r}, not {run}: give the --run-dir of {run}"
            )
        noise = noise or NoiseTable.open(config.noise_size, noise_dir)
        if start.noise != noise.digest:
            raise RunFolderError(
                f"{path} was written with another version of the noise table: replay it with "
                "the es-queue that wrote it"
            )
        timeline = timeline_of(first.payload, config, start, noise)
        if state is not None:
            verify(path, timeline, state, start.generation, digest_of(timeline, start))
        state, tables = start, list(map(timeline.learner_at(start).reopen, start.open))
        yield timeline, state, None
        for frame in frames:
            logged = LoggedGeneration.decode(frame.payload)
            verify(path, timeline, state, logged.generation, logged.digest)
            try:
                state, chosen = learn_logged(logged, timeline, state, tables)
            except (*MISMATCH, EsQueueError) as error:
                raise RunFolderError(
                    f"{path}: its content for generation {logged.generation} does not match its "
                    f"settings ({describe_error(error)[:200]}): restore the log from a copy"
                ) from None
            yield timeline, state, chosen


def learn_logged(
    logged: LoggedGeneration, timeline: ConfigTimeline, state: RunState, tables: list[Slots]
) -> tuple[RunState, Chosen]:
    """The state after a generation, and the rows that it learnt from. ``tables``: those before,
    and from now on its own.
    """
    learner = timeline.learner_at(state)
    oldest = state.generation - learner.config.max_lag if learner.is_async else state.generation
    most = MOST_SLOTS + max_slots(learner.config, learner.strategy.per_slot)
    newest = learner.slots(state, state.generation, "", spans_from_bytes(logged.spans, most))
    tables[:] = [*(slots for slots in tables if slots.generation >= oldest), newest]
    known = {slots.generation: slots for slots in tables}
    for number, data in logged.results:
        if number not in known:
            raise RunFolderError(f"it learnt from generation {number}, which the log lacks")
        known[number].restore(np.frombuffer(data, known[number].shape.result))
    chosen = learner.choose(tables)
    after, _, returns_to = learner.learn(state, chosen)
    if after.generation == state.generation:
        raise ValueError("training was over")
    if {logged.moments.mean.shape, logged.moments.m2.shape} != {state.moments.mean.shape}:
        raise ValueError(f"moments of {logged.moments.mean.size} numbers")
    after = timeline.advance(after, logged.changes, learner, returns_to)
    return replace(after, moments=logged.moments), chosen


def timeline_of(
    data: bytes, config: RunConfig, state: RunState, noise: NoiseRows
) -> ConfigTimeline:
    """The learners of a run, from a checkpoint of it. Raises RunFolderError for the arrays of
    another strategy.
    """
    try:
        spec = checkpoint.decode_spec(data)
        strategy = make_strategy(config, len(state.strategy["parameters"]))
        strategy.validate_state(state.strategy, spec.behaviour_size)
        timeline = ConfigTimeline(Learner(config, spec, strategy, noise))
        digest_of(timeline, state)
    except (*MISMATCH, EsQueueError) as error:
        raise RunFolderError(
            f"the arrays of generation {state.generation} are not those of the strategy "
            f"{config.strategy} ({describe_error(error)[:200]}): restore the run's folder from a "
            "copy"
        ) from None
    return timeline


def digest_of(timeline: ConfigTimeline, state: RunState) -> str:
    return run_digest(state, timeline.learner_at(state).strategy)


def verify(
    path: Path, timeline: ConfigTimeline, state: RunState, generation: int, logged: str
) -> None:
    """Raise RunFolderError unless the state is that generation's and publishes the logged
    parameters.
    """
    if state.generation != generation:
        raise RunFolderError(
            f"{path} continues with generation {generation}, but {state.generation} is "
            "expected: the log has a gap"
        )
    computed = digest_of(timeline, state)
    if computed != logged:
        raise RunFolderError(
            f"{path}: the parameters of generation {generation} computed again have the "
            f"digest {computed}, but the run published {logged}"
        )


def compare_with_checkpoint(
    run_dir: Path, timeline: ConfigTimeline, state: RunState, trust: bool
) -> str:
    """Compare with the newest checkpoint of the folder. Returns words about it. Raises
    RunFolderError if it differs.
    """
    checkpoints, number = Checkpoints(run_dir), state.generation
    data = checkpoints.read_newest()
    if checkpoints.warnings:
        raise RunFolderError(
            f"the log is intact up to generation {number}, but {checkpoints.warnings[0]}"
        )
    if data is None:
        return f"; there is no checkpoint to compare with, so {UNCHECKED} were not checked"
    config, saved, _ = checkpoint.decode(data)
    require_trust(str(run_dir), named_modules(config), trust)
    newest = f"the newest checkpoint is of generation {saved.generation}"
    if saved.generation > number:
        raise RunFolderError(f"the replay log ends with generation {number}, but {newest}")
    if saved.generation < number:
        return f"; {newest}, so {UNCHECKED} were not checked"
    its_timeline = timeline_of(data, config, saved, timeline.base.noise)
    if digest_of(its_timeline, saved) != digest_of(timeline, state):
        raise RunFolderError(
            f"the parameters of generation {number} computed again differ from the newest "
            "checkpoint's"
        )
    computed, other = state.moments.to_arrays(), saved.moments.to_arrays()
    same = all(np.array_equal(computed[key], other[key], equal_nan=True) for key in computed)
    if not same or state.step_limit != saved.step_limit:
        name = "step limit" if same else "observation statistics"
        raise RunFolderError(
            f"the {name} of generation {number} in the replay log differs from the newest "
            "checkpoint's: restore the log and the checkpoint from one copy"
        )
    words = f", which the newest checkpoint has too, with the same {UNCHECKED}"
    if state.changes != saved.changes:  # after a --resume that set a changed setting again
        words += ", but the settings that were changed during the run differ"
    return words


# --- the log


class ReplayLog:
    """Writes the log of one run. A failure of the disk is noted once and ends the log, not the
    run.
    """

    def __init__(self, run_dir: Path) -> None:
        self.folder = run_dir / REPLAY_FOLDER
        self._file: BinaryIO | None = None
        self._digest, self._size, self._has_begun = b"", 0, False
        self._first = 0  # size of the checkpoint that the file begins with

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
            elif self._file is not None and self._size - self._first > FILE_BYTES:
                self._new_file(generation, checkpoint)
                self._remove_old_files()

    def append(self, generation: LoggedGeneration) -> None:
        with self._ending_on_failure():
            self._write(generation.encode())

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
                if not frame.start:
                    self._first = frame.stop
                else:
                    number = LoggedGeneration.decode(frame.payload).generation
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
        self._first = self._size

    def _write(self, payload: bytes) -> None:
        if self._file is None:
            return
        if len(payload) > MAX_FRAME:
            raise OSError(0, f"a frame of {len(payload):,} bytes is too large")
        self._digest = chain_digest(self._digest, payload)
        head = len(payload).to_bytes(4, "little") + self._digest
        if os.writev(self._file.fileno(), [head, payload]) != HEADER_BYTES + len(payload):
            raise OSError(0, "the disk is full")
        self._size += HEADER_BYTES + len(payload)

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
    chained = hashlib.sha256(before)  # where processors have it, faster than BLAKE2b
    chained.update(payload)
    return chained.digest()[:DIGEST_BYTES]
