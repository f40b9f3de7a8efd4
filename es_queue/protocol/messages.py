"""What master and workers tell each other: frozen dataclasses with encode and decode.

Redis is someone else's machine, so every byte from it is checked: sizes before decoding, then types, ranges
and finiteness. Every bad payload raises one DecodeError, whose text never repeats the payload.

An answer is one flat list; its numbers stand in columns, byte strings of little-endian int64 and float64:

    WIRE, publication, kind, worker, seconds, individuals,
    columns: slot, noise index, seed, number of moments [S]; steps, at limit, cut [S, individuals]; fitness, returns [S, individuals],
    counts [M], means [M, d], M2s [M, d] of the moments, slot by slot; failed slots [F], and F reasons
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, fields
from itertools import chain, islice
from typing import Any

import msgpack

from es_queue.errors import DecodeError
from es_queue.protocol.codec import Reader, decoded, finite, finite_bytes, within

WIRE = 2  # the version of what follows; workers of another refuse to join, and their answers are refused
MAX_ANSWER = 64 * 2**20
MAX_TASK = 4 * 2**20
MAX_SLOT = 2**31
MAX_BLOCK = 4096
MAX_INDIVIDUALS = 2
MAX_EPISODES = 2 * 1000
MAX_MOMENTS = 2**17
MAX_OBSERVATION = 2**18
MAX_REASON = 400
HOST_FAILURE = "host: "  # begins the reason of a failure that another host may not have

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
        """Those of the entries that are blocks."""
        found = []
        for entry in entries:
            with suppress(DecodeError):
                found.append(cls.decode(entry))
        return tuple(found)


@dataclass(frozen=True)
class Task:
    """The header of the open publication: what a worker needs beside the parameters and the config.

    sigma: deviation of the perturbations; step_limit: of training episodes; size: floats in the parameters key;
    digest: BLAKE2b-128 of its bytes; obs_mean, obs_std: float32 bytes, frozen for the generation;
    noise: digest of the noise table; poll: seconds between looks at the leave flags.
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
        return bytes(msgpack.packb({"wire": WIRE, **{one.name: getattr(self, one.name) for one in fields(self)}}))

    @classmethod
    def decode(cls, data: bytes) -> Task:
        """Read what ``encode`` wrote. Raises DecodeError for anything else."""
        return decoded(data, MAX_TASK, cls._read)

    @classmethod
    def _read(cls, reader: Reader) -> Task:
        pairs, found = reader.map(1, len(TASK_FIELDS) + 1), dict[str, Any]()
        for _ in range(pairs):
            name = reader.text(NAME)
            if name == "wire":
                _same_wire(reader)
            elif name not in TASK_FIELDS:
                raise DecodeError("a task has other fields than it must have")
            else:
                found[name] = TASK_FIELDS[name](reader)
        if len(found) != len(TASK_FIELDS) or pairs == len(found):
            raise DecodeError("a task lacks a field: it is of another version, or damaged")
        task = cls(**found)
        if len(task.obs_mean) != len(task.obs_std) or not 0 < task.poll <= 60 or task.sigma < 0:
            raise DecodeError("a task's values are not possible")
        return task


def _same_wire(reader: Reader) -> None:
    version = reader.whole(0, 2**31)
    if version != WIRE:
        raise DecodeError(f"it is of protocol {version}, and this es-queue speaks {WIRE}")


NAME, DIGEST = re.compile(r"[a-z_]{1,20}"), re.compile(r"[0-9a-f]{32}")
TASK_FIELDS: dict[str, Callable[[Reader], Any]] = {
    "publication": lambda reader: reader.text(PUBLICATION),
    "sigma": Reader.real,
    "step_limit": lambda reader: reader.whole(1, 2**31),
    "size": lambda reader: reader.whole(1, 2**32),
    "digest": lambda reader: reader.text(DIGEST),
    "obs_mean": lambda reader: finite_bytes(reader.raw(4 * MAX_OBSERVATION, 4), "<f4"),
    "obs_std": lambda reader: finite_bytes(reader.raw(4 * MAX_OBSERVATION, 4), "<f4"),
    "noise": lambda reader: reader.text(DIGEST),
    "poll": Reader.real,
}


@dataclass(frozen=True)
class EpisodeMoments:
    """Observation moments of one episode: count, mean and M2 as little-endian float64 bytes; count 0 for one left out."""

    count: int
    mean: bytes
    m2: bytes


@dataclass(frozen=True)
class SlotResult:
    """What one slot's episodes gave; tuples have one entry an individual (plus, minus).

    noise_index: -1 where the slot is not perturbed; seed: environment seed of its first episode
    fitness: what the strategy sees; returns: the environment's own; both are means over the episodes
    steps: sum over the episodes; at_limit: episodes that reached the step limit; cut: episodes that training
    rules ended early; moments: one an episode of a sampled slot, individual by individual
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


@dataclass(frozen=True)
class Answer:
    """A worker's answer to a block: results of slots, and the slots that failed with the reason.

    All results have as many individuals as the first, all moments as many columns.
    seconds: wall time that the block took, an estimate for sizing blocks and nothing else.
    """

    publication: str
    kind: str
    worker: str
    seconds: float
    results: tuple[SlotResult, ...]
    failures: tuple[tuple[int, str], ...] = ()

    def encode(self) -> bytes:
        """Raises struct.error where results differ in shape, or a number does not fit into its column."""
        results = self.results
        individuals = len(results[0].fitness) if results else 1
        wholes = [*[one.slot for one in results], *[one.noise_index for one in results], *[one.seed for one in results]]
        wholes += [len(one.moments) for one in results]
        for name in ("steps", "at_limit", "cut"):
            wholes += chain.from_iterable([getattr(one, name) for one in results])
        reals = [*chain.from_iterable([one.fitness for one in results]), *chain.from_iterable([one.returns for one in results])]
        columns = struct.pack(f"<{len(results) * (4 + 3 * individuals)}q{len(results) * 2 * individuals}d", *wholes, *reals)
        moments = [one for result in results for one in result.moments]
        counts = struct.pack(f"<{len(moments)}q", *[one.count for one in moments])
        means, m2s = b"".join([one.mean for one in moments]), b"".join([one.m2 for one in moments])
        failed = struct.pack(f"<{len(self.failures)}q", *[slot for slot, _ in self.failures])
        # An exception's text may hold half characters (surrogates), which cannot be packed.
        reasons = [reason[:MAX_REASON].encode("utf-8", "replace").decode() for _, reason in self.failures]
        head = [WIRE, self.publication, self.kind, self.worker, self.seconds, individuals]
        return bytes(msgpack.packb([*head, columns, counts, means, m2s, failed, *reasons]))

    @classmethod
    def decode(cls, data: bytes, limit: int = MAX_ANSWER, slots: int = MAX_BLOCK) -> Answer:
        """Read what ``encode`` wrote; ``limit``, ``slots``: how many bytes and slots it can honestly have. Raises DecodeError for anything else."""
        return decoded(data, limit, lambda reader: cls._read(reader, slots))

    @classmethod
    def _read(cls, reader: Reader, most: int) -> Answer:
        length = reader.array(FIXED, FIXED + most)
        _same_wire(reader)
        publication, kind, worker = reader.text(PUBLICATION), reader.text(KIND), reader.text(WORKER_ID)
        seconds, individuals = abs(reader.real()), reader.whole(1, MAX_INDIVIDUALS)
        results = _results(reader, individuals, most)
        failures = length - FIXED
        if len(results) + failures > most:
            raise DecodeError("an answer has more slots than a block")
        failed = reader.exactly(8 * failures)
        if not failures:
            return cls(publication, kind, worker, seconds, results)
        slots = within(struct.unpack(f"<{failures}q", failed), 0, MAX_SLOT)
        return cls(publication, kind, worker, seconds, results, tuple((slot, reader.prose(MAX_REASON)) for slot in slots))


FIXED = 11  # elements of an answer without failures
KIND = re.compile("|".join(KINDS))


def answer_bytes(slots: int, individuals: int, moments: int, observation: int) -> int:
    """Bytes that an answer of so many slots can honestly have, results or failures, with so many episodes' moments."""
    head, failure = 512, 8 + 5 + 4 * MAX_REASON
    return min(MAX_ANSWER, head + min(slots, MAX_BLOCK) * max(_row(individuals), failure) + moments * (8 + 16 * observation))


def _row(individuals: int) -> int:
    return 8 * (4 + 5 * individuals)


def _results(reader: Reader, each: int, most: int) -> tuple[SlotResult, ...]:
    """Results of at most so many slots, ``each`` individuals a slot, from the columns that stand next."""
    columns = reader.raw(most * _row(each), _row(each))
    slots = len(columns) // _row(each)
    many = slots * each
    numbers = struct.unpack(f"<{4 * slots + 3 * many}q{2 * many}d", columns)
    slot, index = within(numbers[:slots], 0, MAX_SLOT), within(numbers[slots : 2 * slots], -1, 2**32)
    seed, sampled = within(numbers[2 * slots : 3 * slots], 0, 2**31 - 1), within(numbers[3 * slots : 4 * slots], 0, MAX_EPISODES)
    own = numbers[4 * slots :]
    within(own[: 3 * many], 0, 2**40)
    finite(own[3 * many :])
    pairs = list(zip(*[own[at::each] for at in range(each)], strict=True))  # one tuple a slot, five times
    parts = [pairs[at * slots : (at + 1) * slots] for at in (3, 4, 0, 1, 2)]
    return tuple(map(SlotResult, slot, index, seed, *parts, _moments(reader, sampled)))


def _moments(reader: Reader, sampled: tuple[int, ...]) -> list[tuple[EpisodeMoments, ...]]:
    """The moments of each slot, so many of it."""
    total = sum(sampled)
    if total > MAX_MOMENTS:
        raise DecodeError("an answer has moments of more episodes than a block")
    counts = reader.exactly(8 * total)
    means = reader.raw(8 * total * MAX_OBSERVATION, 8 * total or 1)
    m2s = reader.exactly(len(means))
    if not total:
        return [()] * len(sampled)
    size = len(means) // total
    if not size:
        raise DecodeError("moments have no columns")
    finite_bytes(means, "<f8")
    finite_bytes(m2s, "<f8")
    whole = enumerate(within(struct.unpack(f"<{total}q", counts), 0, 2**40))
    moments = iter([EpisodeMoments(count, means[at * size : (at + 1) * size], m2s[at * size : (at + 1) * size]) for at, count in whole])
    return [tuple(islice(moments, count)) for count in sampled]
