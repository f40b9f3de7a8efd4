"""Messages between master and workers: frozen dataclasses with encode and decode.

Others can write to Redis, so every byte from it is checked: sizes before decoding, then types,
ranges and finiteness. Every bad payload raises one DecodeError, whose text never repeats it.
Results are records, see ``es_queue.slots``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, fields
from hashlib import blake2b
from typing import Any

import msgpack

from es_queue.errors import DecodeError

#: The version of these messages. A worker with another one refuses to join.
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

#: What a slot is played for: its name, in blocks and for people, and its number, in tables.
KINDS = ("train", "centre", "elite", "eval", "confirm", "final")
TRAIN, CENTRE, ELITE, EVAL, CONFIRM, FINAL = range(len(KINDS))

#: With this begins a worker's report about the process before it, which a fatal signal ended.
CRASH_REPORT = "the seat before this one crashed on this worker"

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
    kind: int
    start: int
    stop: int

    def __str__(self) -> str:
        return f"{self.publication} {KINDS[self.kind]} {self.start} {self.stop}"

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
        return cls(parts[0], KINDS.index(parts[1]), start, stop)

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
        try:
            values = _unpack(data)
            if (version := _whole(values.pop("wire", None), 0, 2**31)) != WIRE:
                raise DecodeError(f"it uses protocol {version}, but this es-queue uses {WIRE}")
            if values.keys() != TASK_FIELDS.keys():
                raise DecodeError("a task lacks a field: it is of another version, or damaged")
            task = cls(**{name: check(values[name]) for name, check in TASK_FIELDS.items()})
            if len(task.obs_mean) != len(task.obs_std) or not 0 < task.poll <= 60 or task.sigma < 0:
                raise DecodeError("a task has impossible values")
        except DecodeError as error:
            # The bytes are identified by their number and the digest of their beginning.
            digest = blake2b(data[:HASHED], digest_size=8).hexdigest()
            raise DecodeError(f"{error} ({len(data)} bytes, BLAKE2b {digest})") from None
        return task


def _unpack(data: bytes) -> dict[str, Any]:
    """The map in ``data``, whose values are no containers: msgpack builds whatever it receives, and
    one megabyte of empty maps becomes 74.
    """
    maps = list[None]()

    def build(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        maps.append(None)
        if len(maps) > 1 or len({name for name, _ in pairs}) < len(pairs):
            raise ValueError("a map in a map, or a name twice")
        return dict(pairs)

    if len(data) > MAX_TASK:
        raise DecodeError("it is too long")
    limits = {"max_map_len": len(TASK_FIELDS) + 1, "max_array_len": 0, "max_ext_len": 0}
    try:
        found = msgpack.unpackb(data, object_pairs_hook=build, max_str_len=120, **limits)
    except UNREADABLE:
        found = None
    if type(found) is not dict:
        raise DecodeError("not an es-queue message")
    return found


def _whole(value: Any, low: int, high: int) -> int:
    if type(value) is not int or not low <= value <= high:
        raise DecodeError("a whole number is missing or out of its range")
    return value


def _real(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise DecodeError("a finite number is missing")
    return float(value)


def _text(pattern: re.Pattern[str]) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        if type(value) is not str or not pattern.fullmatch(value):
            raise DecodeError("a text is missing or has another form")
        return value

    return check


def _blob(value: Any, most: int, multiple: int) -> bytes:
    if type(value) is not bytes or len(value) > most or len(value) % multiple:
        raise DecodeError("bytes are missing or of another length")
    return value


def _floats(value: Any) -> bytes:
    """Bytes of finite float32, for each number of an observation."""
    # start-up: numpy, whose threads must be fixed before it loads
    import numpy as np

    data = _blob(value, 4 * MAX_OBSERVATION, 4)
    if not np.isfinite(np.frombuffer(data, "<f4")).all():
        raise DecodeError("an array holds a number that is not finite")
    return data


DIGEST, HASHED = re.compile(r"[0-9a-f]{32}"), 2**16
UNREADABLE = (
    *(ValueError, TypeError, OverflowError, RecursionError),
    msgpack.exceptions.UnpackException,
)
TASK_FIELDS: dict[str, Callable[[Any], Any]] = {
    "publication": _text(PUBLICATION),
    "sigma": _real,
    "step_limit": lambda value: _whole(value, 1, 2**31),
    "size": lambda value: _whole(value, 1, 2**32),
    "digest": _text(DIGEST),
    "obs_mean": _floats,
    "obs_std": _floats,
    "noise": _text(DIGEST),
    "poll": _real,
    "spans": lambda value: _blob(value, 12 * MAX_SPANS, 12),
    "row": lambda value: _whole(value, 0, 2**31),
    "moment": lambda value: _whole(value, 0, 2**31),
}
