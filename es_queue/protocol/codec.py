"""Reads msgpack field by field, as a schema requires.

A general decoder builds whatever it receives: one megabyte of empty maps becomes 74. Here, the
sizes of containers are compared with the expected ones, and columns of numbers are byte strings of
a known length. Anything else raises one DecodeError, whose text never repeats the payload.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, TypeVar

import msgpack

from es_queue.errors import DecodeError

MAX_TEXT = 4096  # bytes
HASHED = 2**16
FEW = 64
FORMATS = {"<f4": "f", "<f8": "d"}
UNREADABLE = (
    ValueError,
    TypeError,
    OverflowError,
    RecursionError,
    struct.error,
    msgpack.exceptions.UnpackException,
)
Message = TypeVar("Message")


class Reader:
    """Reads one message by a schema. Use ``decode``."""

    def __init__(self, data: bytes) -> None:
        unpacker = msgpack.Unpacker(
            max_buffer_size=len(data) or 1,
            max_array_len=0,
            max_map_len=0,
            max_ext_len=0,
            max_str_len=MAX_TEXT,
        )
        unpacker.feed(data)
        self._next: Callable[[], Any] = unpacker.unpack
        self._map: Callable[[], int] = unpacker.read_map_header
        self.tell: Callable[[], int] = unpacker.tell

    def map(self, least: int, most: int) -> int:
        """Number of pairs of the next map."""
        return _validate_whole(self._map(), least, most)

    def integer(self, low: int, high: int) -> int:
        """An integer, but not a boolean."""
        return _validate_whole(self._next(), low, high)

    def real(self) -> float:
        """A finite number."""
        number = self._next()
        if type(number) not in (int, float) or not math.isfinite(number):
            raise DecodeError("a finite number is missing")
        return float(number)

    def text(self, pattern: re.Pattern[str]) -> str:
        """A text that the whole pattern matches."""
        value = self._next()
        if type(value) is not str or not pattern.fullmatch(value):
            raise DecodeError("a text is missing or has another form")
        return value

    def blob(self, most: int, multiple: int) -> bytes:
        """At most ``most`` bytes, a multiple of ``multiple``."""
        data = self._next()
        if type(data) is not bytes or len(data) > most or len(data) % multiple:
            raise DecodeError("bytes are missing or of another length")
        return data


def decode(data: bytes, limit: int, read: Callable[[Reader], Message]) -> Message:
    """Decode a message of at most ``limit`` bytes with ``read``, which must consume all of it.
    Raises only DecodeError.
    """
    if len(data) > limit:
        raise DecodeError(f"{len(data)} bytes, but at most {limit} are allowed")
    try:
        reader = Reader(data)
        message = read(reader)
        if reader.tell() != len(data):
            raise DecodeError("extra bytes after the end")
        return message
    except DecodeError as error:
        raise DecodeError(f"{error} ({describe_bytes(data)})") from None
    except UNREADABLE:
        raise DecodeError(f"not an es-queue message ({describe_bytes(data)})") from None


def describe_bytes(data: bytes) -> str:
    """Identifies bytes by their number and the digest of their beginning, without repeating any."""
    return f"{len(data)} bytes, BLAKE2b {blake2b(data[:HASHED], digest_size=8).hexdigest()}"


def _validate_whole(value: Any, low: int, high: int) -> int:
    if type(value) is not int or not low <= value <= high:
        raise DecodeError("a whole number is missing or out of its range")
    return value


def validate_finite_bytes(data: bytes, kind: str) -> bytes:
    """The bytes of an array of numpy type ``kind``, "<f4" or "<f8", if all its numbers are finite.
    Raises DecodeError.
    """
    count = len(data) // int(kind[-1])
    if count > FEW:
        # start-up: numpy, whose threads must be fixed before it loads
        import numpy as np

        sound = bool(np.isfinite(np.frombuffer(data, kind)).all())
    else:  # less than numpy takes to begin
        sound = all(map(math.isfinite, struct.unpack(f"<{count}{FORMATS[kind]}", data)))
    if not sound:
        raise DecodeError("an array holds a number that is not finite")
    return data


def is_count(text: str) -> bool:
    """Whether a text is a number of at most ten digits: Python refuses to read one of thousands."""
    return text.isascii() and text.isdigit() and len(text) <= 10
