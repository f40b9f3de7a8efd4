"""Messages between master and workers: frozen dataclasses with encode and decode.

Others can write to Redis, so every byte from it is checked: sizes before decoding, then types,
ranges and finiteness. Every bad payload raises one DecodeError, whose text never repeats it.

An answer is one flat list; its numbers are in columns, byte strings of little-endian int64 and
float64:

    WIRE, publication, kind, worker, seconds, individuals,
    columns: slot, noise index, seed, number of moments [S]; steps, at limit, cut [S, individuals];
    fitness, returns [S, individuals], counts [M], means [M, d], M2s [M, d] of the moments, slot by
    slot; failed slots [F], and F reasons; if the strategy compares behaviours: those [S,
    individuals, b], little-endian float32
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from itertools import chain, islice
from typing import Any

import msgpack

from es_queue.errors import DecodeError
from es_queue.protocol.codec import (
    Reader,
    decode,
    validate_finite,
    validate_finite_bytes,
    validate_range,
)

# the version of what follows; workers of another refuse to join, and their answers are refused
WIRE = 2
MAX_ANSWER = 64 * 2**20
MAX_TASK = 4 * 2**20
MAX_SLOT = 2**31
MAX_BLOCK = 4096
MAX_INDIVIDUALS = 2
MAX_EPISODES = 2 * 1000
MAX_MOMENTS = 2**17
MAX_OBSERVATION = 2**18
MAX_REASON = 400
MAX_BEHAVIOUR = 4096  # bytes a slot
MOST_RETURN = 1e100  # squares and sums of returns up to this are finite
#: Numbers of a behaviour: both of a pair fit into a slot's share of an answer.
MAX_BEHAVIOUR_NUMBERS = MAX_BEHAVIOUR // (4 * MAX_INDIVIDUALS)
HOST_FAILURE = "host: "  # begins the reason of a failure that another host may not have
STRATEGY_FAILURE = "strategy: "  # begins the reason of a failure of the user's own strategy

TRAIN, CENTRE, ELITE, EVAL, CONFIRM, FINAL = "train", "centre", "elite", "eval", "confirm", "final"
KINDS = (TRAIN, CENTRE, ELITE, EVAL, CONFIRM, FINAL)
#: Kinds that are played under training's rules.
TRAINED = (TRAIN, CENTRE, ELITE)

PUBLICATION = re.compile(r"(0|[1-9][0-9]{0,9})\.([1-9][0-9]{0,9})-([0-9a-f]{8})")
TOKEN = re.compile(r"([1-9][0-9]{0,9})-([0-9a-f]{8})")
WORKER_ID = re.compile(r"[A-Za-z0-9._-]{1,120}-[0-9]{1,10}-[0-9a-f]{6}")


def token_number(token: str) -> int:
    """The number in a fencing token "<n>-<nonce>". Raises DecodeError."""
    match = TOKEN.fullmatch(token)
    if match is None:
        raise DecodeError("a fencing token is not <n>-<nonce>")
    return int(match[1])


def publication_generation(publication: str) -> int:
    """The generation in "<generation>.<token>". Raises DecodeError."""
    match = PUBLICATION.fullmatch(publication)
    if match is None:
        raise DecodeError("a publication is not <generation>.<token>")
    return int(match[1])


@dataclass(frozen=True, order=True)
class Block:
    """A contiguous range of slots of one publication, claimed and answered as one."""

    publication: str
    kind: str
    start: int
    stop: int

    def __str__(self) -> str:
        return f"{self.publication} {self.kind} {self.start} {self.stop}"

    @classmethod
    def decode(cls, data: bytes | str) -> Block:
        if len(data) > 120:
            raise DecodeError("a block's text is too long")
        try:
            text = data if isinstance(data, str) else data.decode("ascii")
        except UnicodeDecodeError:
            raise DecodeError("a block's text is not ASCII") from None
        parts = text.split(" ")
        if len(parts) != 4 or not PUBLICATION.fullmatch(parts[0]) or parts[1] not in KINDS:
            raise DecodeError("a block is not <publication> <kind> <start> <stop>")
        if not all(re.fullmatch(r"0|[1-9][0-9]{0,9}", number) for number in parts[2:]):
            raise DecodeError("a block's range is not two numbers")
        start, stop = int(parts[2]), int(parts[3])
        if not 0 <= start < stop <= MAX_SLOT or stop - start > MAX_BLOCK:
            raise DecodeError("a block's range is not possible")
        return cls(parts[0], parts[1], start, stop)

    @classmethod
    def decode_all(cls, entries: Iterable[bytes | str]) -> tuple[Block, ...]:
        blocks = []
        for entry in entries:
            with suppress(DecodeError):
                blocks.append(cls.decode(entry))
        return tuple(blocks)


@dataclass(frozen=True)
class Task:
    """The header of the open publication: what a worker needs in addition to the parameters and the
    config.

    sigma: deviation of the perturbations; step_limit: of training episodes; size: floats in the
    parameters key
    digest: BLAKE2b-128 of its bytes; obs_mean, obs_std: float32 bytes, frozen for the generation
    noise: digest of the noise table; poll: seconds between reads of the leave flags
    """

    publication: str
    sigma: float
    step_limit: int
    size: int
    digest: str
    obs_mean: bytes
    obs_std: bytes
    noise: str
    poll: float

    @property
    def generation(self) -> int:
        return publication_generation(self.publication)

    def encode(self) -> bytes:
        return bytes(
            msgpack.packb(
                {"wire": WIRE, **{field.name: getattr(self, field.name) for field in fields(self)}}
            )
        )

    @classmethod
    def decode(cls, data: bytes) -> Task:
        """Read what ``encode`` wrote. Raises DecodeError for anything else."""
        return decode(data, MAX_TASK, cls._read)

    @classmethod
    def _read(cls, reader: Reader) -> Task:
        pairs, values = reader.map(1, len(TASK_FIELDS) + 1), dict[str, Any]()
        for _ in range(pairs):
            name = reader.text(NAME)
            if name == "wire":
                _validate_wire(reader)
            elif name not in TASK_FIELDS:
                raise DecodeError("a task has the wrong fields")
            else:
                values[name] = TASK_FIELDS[name](reader)
        if len(values) != len(TASK_FIELDS) or pairs == len(values):
            raise DecodeError("a task lacks a field: it is of another version, or damaged")
        task = cls(**values)
        if len(task.obs_mean) != len(task.obs_std) or not 0 < task.poll <= 60 or task.sigma < 0:
            raise DecodeError("a task has impossible values")
        return task


def _validate_wire(reader: Reader) -> None:
    version = reader.integer(0, 2**31)
    if version != WIRE:
        raise DecodeError(f"it uses protocol {version}, but this es-queue uses {WIRE}")


NAME, DIGEST = re.compile(r"[a-z_]{1,20}"), re.compile(r"[0-9a-f]{32}")
TASK_FIELDS: dict[str, Callable[[Reader], Any]] = {
    "publication": lambda reader: reader.text(PUBLICATION),
    "sigma": Reader.real,
    "step_limit": lambda reader: reader.integer(1, 2**31),
    "size": lambda reader: reader.integer(1, 2**32),
    "digest": lambda reader: reader.text(DIGEST),
    "obs_mean": lambda reader: validate_finite_bytes(reader.blob(4 * MAX_OBSERVATION, 4), "<f4"),
    "obs_std": lambda reader: validate_finite_bytes(reader.blob(4 * MAX_OBSERVATION, 4), "<f4"),
    "noise": lambda reader: reader.text(DIGEST),
    "poll": Reader.real,
}


@dataclass(frozen=True)
class EpisodeMoments:
    """Observation moments of one episode: count, mean and M2 as little-endian float64 bytes; count
    0 for one left out.
    """

    count: int
    mean: bytes
    m2: bytes


@dataclass(frozen=True)
class SlotResult:
    """The result of one slot's episodes; tuples have one entry per individual (plus, minus).

    noise_index: -1 if the slot is not perturbed; seed: environment seed of its first episode
    fitness: what the strategy learns from; returns: the environment's own; both are means over the
    episodes
    steps: sum over the episodes; at_limit: episodes that reached the step limit; cut: episodes that
    training rules ended early; moments: one per episode of a sampled slot, individual by individual
    behaviour: little-endian float32 bytes [individuals, b], empty if the strategy compares none
    """

    slot: int
    noise_index: int
    seed: int
    fitness: tuple[float, ...]
    returns: tuple[float, ...]
    steps: tuple[int, ...]
    at_limit: tuple[int, ...]
    cut: tuple[int, ...]
    moments: tuple[EpisodeMoments, ...] = ()
    behaviour: bytes = b""


@dataclass(frozen=True)
class Answer:
    """A worker's answer to a block: results of slots, and the slots that failed with the reason.

    All results have as many individuals as the first, all moments as many columns, and all
    behaviours as many bytes.
    seconds: wall time of the block, used only to choose the size of blocks
    """

    publication: str
    kind: str
    worker: str
    seconds: float
    results: tuple[SlotResult, ...]
    failures: tuple[tuple[int, str], ...] = ()

    def encode(self) -> bytes:
        """Raises struct.error if results differ in shape, or a number does not fit its column."""
        results = self.results
        individuals = len(results[0].fitness) if results else 1
        numbers: list[float] = [
            *[result.slot for result in results],
            *[result.noise_index for result in results],
            *[result.seed for result in results],
            *[len(result.moments) for result in results],
        ]
        for name in ("steps", "at_limit", "cut", "fitness", "returns"):
            numbers += chain.from_iterable([getattr(result, name) for result in results])
        columns = struct.pack(
            f"<{len(results) * (4 + 3 * individuals)}q{len(results) * 2 * individuals}d", *numbers
        )
        moments = [episode for result in results for episode in result.moments]
        counts = struct.pack(f"<{len(moments)}q", *[episode.count for episode in moments])
        means = b"".join([episode.mean for episode in moments])
        m2s = b"".join([episode.m2 for episode in moments])
        failed = struct.pack(f"<{len(self.failures)}q", *[slot for slot, _ in self.failures])
        # An exception's text may hold half characters (surrogates), which cannot be packed.
        reasons = [
            reason[:MAX_REASON].encode("utf-8", "replace").decode() for _, reason in self.failures
        ]
        head = [WIRE, self.publication, self.kind, self.worker, self.seconds, individuals]
        behaviours = (
            [b"".join([result.behaviour for result in results])]
            if results and results[0].behaviour
            else []
        )
        return bytes(
            msgpack.packb([*head, columns, counts, means, m2s, failed, *reasons, *behaviours])
        )

    @classmethod
    def decode(cls, data: bytes, limit: int = MAX_ANSWER, slots: int = MAX_BLOCK) -> Answer:
        """Read what ``encode`` wrote; ``limit``, ``slots``: the most bytes and slots of a valid
        answer. Raises DecodeError for anything else.
        """
        return decode(data, limit, lambda reader: cls._read(reader, slots))

    @classmethod
    def _read(cls, reader: Reader, most: int) -> Answer:
        length = reader.array(FIXED_FIELDS, FIXED_FIELDS + most + 1)
        _validate_wire(reader)
        publication, kind = reader.text(PUBLICATION), reader.text(KIND)
        worker = reader.text(WORKER_ID)
        seconds, individuals = abs(reader.real()), reader.integer(1, MAX_INDIVIDUALS)
        results = _read_results(reader, individuals, most)
        failed = reader.blob(8 * most, 8)
        failures = len(failed) // 8
        if len(results) + failures > most:
            raise DecodeError("an answer has more slots than a block")
        if length not in (FIXED_FIELDS + failures, FIXED_FIELDS + failures + 1):
            raise DecodeError("an answer does not have one reason per failed slot")
        slots = validate_range(struct.unpack(f"<{failures}q", failed), 0, MAX_SLOT)
        reasons = tuple((slot, reader.short_text(MAX_REASON)) for slot in slots)
        if length > FIXED_FIELDS + failures:
            results = _with_behaviours(reader, results, individuals)
        return cls(publication, kind, worker, seconds, results, reasons)


FIXED_FIELDS = 11  # elements of an answer without failures and behaviours
KIND = re.compile("|".join(KINDS))


def max_answer_bytes(
    slots: int, individuals: int, moments: int, observation: int, behaviour: int = 0
) -> int:
    """Largest size of a valid answer with that many slots (results or failures), moments of that
    many episodes, and ``behaviour`` floats per individual.
    """
    head, failure = 512, 8 + 5 + 4 * MAX_REASON
    slot = max(_row_bytes(individuals) + 4 * individuals * behaviour, failure)
    return min(MAX_ANSWER, head + min(slots, MAX_BLOCK) * slot + moments * (8 + 16 * observation))


def _row_bytes(individuals: int) -> int:
    return 8 * (4 + 5 * individuals)


def _read_results(reader: Reader, each: int, most: int) -> tuple[SlotResult, ...]:
    """Read at most ``most`` slots' results, ``each`` individuals per slot, from the next
    columns.
    """
    columns = reader.blob(most * _row_bytes(each), _row_bytes(each))
    slots = len(columns) // _row_bytes(each)
    many = slots * each
    numbers = struct.unpack(f"<{4 * slots + 3 * many}q{2 * many}d", columns)
    slot, index = (
        validate_range(numbers[:slots], 0, MAX_SLOT),
        validate_range(numbers[slots : 2 * slots], -1, 2**32),
    )
    seed = validate_range(numbers[2 * slots : 3 * slots], 0, 2**31 - 1)
    sampled = validate_range(numbers[3 * slots : 4 * slots], 0, MAX_EPISODES)
    rest = numbers[4 * slots :]
    validate_range(rest[: 3 * many], 0, 2**40)
    validate_finite(rest[3 * many :])
    # One tuple per slot, five times.
    pairs = list(zip(*[rest[at::each] for at in range(each)], strict=True))
    parts = [pairs[at * slots : (at + 1) * slots] for at in (3, 4, 0, 1, 2)]
    return tuple(map(SlotResult, slot, index, seed, *parts, _read_moments(reader, sampled)))


def _with_behaviours(
    reader: Reader, results: tuple[SlotResult, ...], individuals: int
) -> tuple[SlotResult, ...]:
    """The results with the behaviours that follow, all of one length."""
    data = reader.blob(len(results) * MAX_BEHAVIOUR, 4 * individuals * len(results) or 1)
    if not data:
        raise DecodeError("an answer's behaviours have no numbers")
    validate_finite_bytes(data, "<f4")
    each = len(data) // len(results)
    return tuple(
        replace(result, behaviour=data[at * each : (at + 1) * each])
        for at, result in enumerate(results)
    )


def _read_moments(reader: Reader, sampled: tuple[int, ...]) -> list[tuple[EpisodeMoments, ...]]:
    total = sum(sampled)
    if total > MAX_MOMENTS:
        raise DecodeError("an answer has moments of more episodes than a block")
    counts = reader.fixed_bytes(8 * total)
    means = reader.blob(8 * total * MAX_OBSERVATION, 8 * total or 1)
    m2s = reader.fixed_bytes(len(means))
    if not total:
        return [()] * len(sampled)
    size = len(means) // total
    if not size:
        raise DecodeError("moments have no columns")
    validate_finite_bytes(means, "<f8")
    validate_finite_bytes(m2s, "<f8")
    whole = enumerate(validate_range(struct.unpack(f"<{total}q", counts), 0, 2**40))
    moments = iter(
        [
            EpisodeMoments(
                count, means[at * size : (at + 1) * size], m2s[at * size : (at + 1) * size]
            )
            for at, count in whole
        ]
    )
    return [tuple(islice(moments, count)) for count in sampled]
