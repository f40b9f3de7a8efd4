"""Messages between the master and its own process: msgpack after its length in four bytes."""

from __future__ import annotations

import struct
from typing import IO, Any

import msgpack

LENGTH = struct.Struct(">I")


def write_frame(stream: IO[bytes], frame: Any) -> None:
    data = msgpack.packb(frame)
    stream.write(LENGTH.pack(len(data)) + data)
    stream.flush()


def read_frame(stream: IO[bytes]) -> Any:
    """None at the end, also in the middle of a frame."""
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    size = LENGTH.unpack(head)[0]
    data = stream.read(size)
    return msgpack.unpackb(data, max_bin_len=size, max_str_len=size) if len(data) == size else None
