"""What master and workers tell each other: frozen dataclasses with encode and decode.

Redis is someone else's machine, so every byte from it is checked: sizes before decoding, then types, ranges
and finiteness. Every bad payload raises one DecodeError, whose text never repeats the payload.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields
from typing import Any

import msgpack

from es_queue.errors import DecodeError

MAX_ANSWER = 64 * 2**20
MAX_TASK = 4 * 2**20
MAX_SLOT = 2**31
MAX_BLOCK = 4096
MAX_INDIVIDUALS = 2
MAX_EPISODES = 2 * 1000
MAX_OBSERVATION = 2**18
MAX_REASON = 400
HOST_FAILURE = "host: "  # begins the reason of a failure that another host may not have

TRAIN, CENTRE, EVAL, CONFIRM, FINAL = "train", "centre", "eval", "confirm", "final"
KINDS = (TRAIN, CENTRE, EVAL, CONFIRM, FINAL)

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
        return bytes(msgpack.packb({one.name: getattr(self, one.name) for one in fields(self)}))

    @classmethod
    def decode(cls, data: bytes) -> Task:
        raw = unpack(data, MAX_TASK)
        if not isinstance(raw, dict) or set(raw) != {one.name for one in fields(cls)}:
            raise DecodeError("a task has other fields than it must have")
        task = cls(
            publication=_text(raw["publication"], PUBLICATION),
            sigma=_real(raw["sigma"]),
            step_limit=_whole(raw["step_limit"], 1, 2**31),
            size=_whole(raw["size"], 1, 2**32),
            digest=_text(raw["digest"], re.compile(r"[0-9a-f]{32}")),
            obs_mean=_floats32(raw["obs_mean"]),
            obs_std=_floats32(raw["obs_std"]),
            noise=_text(raw["noise"], re.compile(r"[0-9a-f]{32}")),
            poll=_real(raw["poll"]),
        )
        if len(task.obs_mean) != len(task.obs_std) or not 0 < task.poll <= 60 or task.sigma < 0:
            raise DecodeError("a task's values are not possible")
        return task


@dataclass(frozen=True)
class EpisodeMoments:
    """Observation moments of one episode: count, mean and M2 as little-endian float64 bytes."""

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

    def pack(self) -> list[Any]:
        moments = [[one.count, one.mean, one.m2] for one in self.moments]
        plain = [list(part) for part in (self.fitness, self.returns, self.steps, self.at_limit, self.cut)]
        return [self.slot, self.noise_index, self.seed, *plain, moments]

    @classmethod
    def unpack(cls, raw: Any) -> SlotResult:
        if not isinstance(raw, list) or len(raw) != 9:
            raise DecodeError("a slot's result is not a list of nine")
        individuals = len(raw[3]) if isinstance(raw[3], list) else 0
        if not 1 <= individuals <= MAX_INDIVIDUALS:
            raise DecodeError("a slot's result has an impossible number of individuals")
        fitness, returns = (tuple(_real(one) for one in _list(part, individuals)) for part in raw[3:5])
        steps, at_limit, cut = (tuple(_whole(one, 0, 2**40) for one in _list(part, individuals)) for part in raw[5:8])
        slot, index, seed = _whole(raw[0], 0, MAX_SLOT), _whole(raw[1], -1, 2**32), _whole(raw[2], 0, 2**31 - 1)
        return cls(slot, index, seed, fitness, returns, steps, at_limit, cut, _moments(raw[8]))


@dataclass(frozen=True)
class Answer:
    """A worker's answer to a block: results of slots, and the slots that failed with the reason.

    seconds: wall time that the block took, an estimate for sizing blocks and nothing else.
    """

    publication: str
    kind: str
    worker: str
    seconds: float
    results: tuple[SlotResult, ...]
    failures: tuple[tuple[int, str], ...] = ()

    def encode(self) -> bytes:
        results = [one.pack() for one in self.results]
        # An exception's text may hold half characters (surrogates), which cannot be packed.
        failures = [[slot, reason[:MAX_REASON].encode("utf-8", "replace").decode()] for slot, reason in self.failures]
        return bytes(msgpack.packb([self.publication, self.kind, self.worker, self.seconds, results, failures]))

    @classmethod
    def decode(cls, data: bytes) -> Answer:
        raw = unpack(data, MAX_ANSWER)
        if not isinstance(raw, list) or len(raw) != 6 or raw[1] not in KINDS:
            raise DecodeError("an answer is not a list of six with a known kind")
        results = tuple(SlotResult.unpack(one) for one in _list(raw[4]))
        failures = tuple(_failure(one) for one in _list(raw[5]))
        if len(results) + len(failures) > MAX_BLOCK:
            raise DecodeError("an answer has more slots than a block")
        return cls(_text(raw[0], PUBLICATION), raw[1], _text(raw[2], WORKER_ID), abs(_real(raw[3])), results, failures)


def unpack(data: bytes, limit: int) -> Any:
    """msgpack to plain values, nothing but lists, maps, text, bytes and numbers. Raises DecodeError."""
    if len(data) > limit:
        raise DecodeError(f"{len(data)} bytes where at most {limit} are possible")
    try:
        return msgpack.unpackb(
            data, max_array_len=2 * MAX_BLOCK, max_map_len=32, max_ext_len=0, max_bin_len=8 * MAX_OBSERVATION,
            max_str_len=4096, strict_map_key=True,
        )
    except (ValueError, TypeError, RecursionError):
        raise DecodeError(f"{len(data)} bytes that are not msgpack of ours") from None


def _failure(raw: Any) -> tuple[int, str]:
    slot, reason = _list(raw, 2)
    if not isinstance(reason, str) or len(reason) > MAX_REASON:
        raise DecodeError("a failure's reason is not a short text")
    return _whole(slot, 0, MAX_SLOT), reason


def _moments(raw: Any) -> tuple[EpisodeMoments, ...]:
    if not isinstance(raw, list) or len(raw) > MAX_EPISODES:
        raise DecodeError("a slot's moments are not a short list")
    found = []
    for one in raw:
        count, mean, m2 = _list(one, 3)
        if not isinstance(mean, bytes) or not isinstance(m2, bytes) or len(mean) != len(m2) or len(mean) % 8:
            raise DecodeError("moments are not two equal lengths of float64")
        found.append(EpisodeMoments(_whole(count, 1, 2**40), mean, m2))
    return tuple(found)


def _list(raw: Any, length: int | None = None) -> list[Any]:
    if not isinstance(raw, list) or (length is not None and len(raw) != length):
        raise DecodeError("a list is missing or has another length")
    return raw


def _whole(raw: Any, low: int, high: int) -> int:
    if type(raw) is not int or not low <= raw <= high:
        raise DecodeError("a whole number is missing or out of its range")
    return raw


def _real(raw: Any) -> float:
    if type(raw) not in (int, float) or not math.isfinite(raw):
        raise DecodeError("a finite number is missing")
    return float(raw)


def _text(raw: Any, pattern: re.Pattern[str]) -> str:
    if not isinstance(raw, str) or not pattern.fullmatch(raw):
        raise DecodeError("a text is missing or has another form")
    return raw


def _floats32(raw: Any) -> bytes:
    if not isinstance(raw, bytes) or len(raw) % 4 or len(raw) > 4 * MAX_OBSERVATION:
        raise DecodeError("float32 bytes are missing or too long")
    return raw
