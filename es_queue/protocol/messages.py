"""Messages between master and workers: frozen dataclasses with encode and decode.

Others can write to Redis, so every byte from it is checked: sizes before decoding, then types,
ranges and finiteness. Every bad payload raises one DecodeError, whose text never repeats it.
Results are records, see ``es_queue.slots``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any

import msgpack

from es_queue.errors import DecodeError
from es_queue.protocol.codec import (
    Reader,
    decode,
    validate_finite_bytes,
)

# the version of what follows; workers of another refuse to join, and their answers are refused
WIRE = 3
MAX_TASK = 4 * 2**20
MAX_SLOT = 2**31
MAX_BLOCK = 4096
MAX_INDIVIDUALS = 2
MAX_OBSERVATION = 2**18
MAX_REASON = 400
MAX_SPANS = 2**16
MAX_BEHAVIOUR = 4096  # bytes a slot
MOST_RETURN = 1e100  # squares and sums of returns up to this are finite
#: Numbers of a behaviour: both of a pair fit into a slot's share of an answer.
MAX_BEHAVIOUR_NUMBERS = MAX_BEHAVIOUR // (4 * MAX_INDIVIDUALS)

TRAIN, CENTRE, ELITE, EVAL, CONFIRM, FINAL = "train", "centre", "elite", "eval", "confirm", "final"
KINDS = (TRAIN, CENTRE, ELITE, EVAL, CONFIRM, FINAL)

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
    spans: int32 triples (kind, start, stop) of the slot table, see ``es_queue.slots``; row, moment:
    bytes of its records
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
    spans: bytes = b""
    row: int = 0
    moment: int = 0

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
    "spans": lambda reader: reader.blob(12 * MAX_SPANS, 12),
    "row": lambda reader: reader.integer(0, 2**31),
    "moment": lambda reader: reader.integer(0, 2**31),
}
