"""Bytes that somebody may put into Redis: genuine messages of each kind, and what can be made of
them.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import msgpack

from es_queue.config.run_config import RunConfig
from es_queue.errors import DecodeError, RunFolderError, UsageError
from es_queue.protocol import keys
from es_queue.protocol.control import ControlRequest
from es_queue.protocol.messages import TRAIN, Block, Task, publication_generation, token_number
from es_queue.slots import Span, spans_to_bytes
from master.loop import checkpoint
from tests.memory import quick_config

PUBLICATION = "7.3-0a1b2c3d"
TASK = Task(
    *(PUBLICATION, 0.02, 1600, 1000, "0" * 32, b"\0" * 96, b"\1" * 96, "f" * 32, 0.25),
    *(spans_to_bytes([Span(TRAIN, 0, 8)]), 100, 400),
)
BLOCK = Block(PUBLICATION, TRAIN, 8, 16)
REQUEST = ControlRequest(
    "0a1b2c3d", "set", "ada@host", 1795194000.0, {"sigma": 0.02, "target_reward": "none"}, 7
)


@dataclass(frozen=True)
class Decoder:
    """One reader of foreign bytes: how it reads and writes, what it may raise, and genuine messages
    for it.
    """

    read: Callable[[bytes], Any]
    write: Callable[[Any], bytes]
    raises: type[Exception]
    genuine: tuple[bytes, ...]
    weight: int = 4  # of its share among all executions


def saved_run() -> bytes:
    """A checkpoint's bytes."""
    from es_queue.numerics.noise_table import NoiseTable
    from master.run.setup import prepare_run

    setup = prepare_run(quick_config(), table=NoiseTable.in_memory(2**18))
    state = setup.initial_state()
    centre = setup.strategy.centre(setup.strategy.published(state.strategy))
    return checkpoint.encode(setup.config, setup.learner.spec, "a-run", state, centre)


def _token(data: bytes) -> str:
    text = data.decode("latin-1")
    token_number(text)
    return text


def _publication(data: bytes) -> str:
    text = data.decode("latin-1")
    publication_generation(text)
    return text


def _seat(data: bytes) -> str:
    text = data.decode("latin-1")
    keys.parse_seat_id(text)
    return text


def _checkpoint(data: bytes) -> tuple[RunConfig, str]:
    config, _, run = checkpoint.decode(data)
    return config, run


def decoders() -> dict[str, Decoder]:
    """Every decoder of what comes from Redis."""
    genuine = saved_run()
    return {
        "task": Decoder(
            Task.decode,
            Task.encode,
            DecodeError,
            (TASK.encode(), replace(TASK, obs_mean=b"", obs_std=b"", sigma=0).encode()),
            8,
        ),
        "block": Decoder(
            Block.decode,
            lambda block: str(block).encode(),
            DecodeError,
            (str(BLOCK).encode(), b"0.1-00000000 final 0 4096"),
        ),
        "token": Decoder(_token, str.encode, DecodeError, (b"3-0a1b2c3d",), 1),
        "publication": Decoder(_publication, str.encode, DecodeError, (PUBLICATION.encode(),), 1),
        "request": Decoder(
            ControlRequest.decode,
            ControlRequest.encode,
            DecodeError,
            (
                REQUEST.encode(),
                replace(REQUEST, verb="stop", settings={}, generation=None).encode(),
            ),
        ),
        "config": Decoder(
            RunConfig.from_json,
            lambda config: str(config.to_json()).encode(),
            UsageError,
            (
                quick_config().to_json().encode(),
                quick_config(env_arg=(("a", 1.5), ("b", "x"))).to_json().encode(),
            ),
            1,
        ),
        "seat": Decoder(
            _seat, str.encode, UsageError, (keys.seat_id("a-run", "0a1b2c", 7).encode(),), 1
        ),
        "checkpoint": Decoder(_checkpoint, lambda found: genuine, RunFolderError, (genuine,), 0),
    }


#: Heads of msgpack that promise much or stand for no number, and texts that JSON must not have.
PIECES = [
    bytes.fromhex(one)
    for one in [
        "",
        "00",
        "7f",
        "80",
        "90",
        "c0",
        "c1",
        "ff",
        "ca7fc00000",
        "cb7ff8000000000000",
        "cfffffffffffffffff",
        "d38000000000000000",
        "ddffffffff",
        "dfffffffff",
        "c6ffffffff",
        "dbffffffff",
        "c9ffffffff01",
        "d6ff00000000",
        "d7ff0000000000000000",
        "c700ff",
        "d40578",
    ]
]
PIECES += [b"\x91" * 2000, b"\x81\xa1a" * 500, b"\x80" * 300, b"[" * 3000, b'{"a":' * 1000]
PIECES += [b"9" * 5000, b'"\\ud800"', "²".encode(), b"\x1b[2J"]
PIECES += b"NaN Infinity 1e999 true null -1".split()
TYPES = bytes(range(0xC0, 0xE0)) + b"\x80\x8f\x90\x9f\xa0\xbf\x00\x7f\xe0\xff"


def mutated(data: bytes, other: bytes, dice: random.Random) -> bytes:
    """``data`` with a few random changes; ``other`` is a message to splice it with."""
    changed = bytearray(data)
    for _ in range(dice.choice((1, 1, 1, 2, 4, 8))):
        at, length = dice.randrange(len(changed) + 1), dice.randrange(9)
        match dice.randrange(8):
            case 0 if changed:
                changed[at % len(changed)] ^= 1 << dice.randrange(8)
            case 1 if changed:
                changed[at % len(changed)] = dice.choice(TYPES)
            case 2:
                del changed[at : at + length]
            case 3:
                del changed[at:]
            case 4:
                changed[at:at] = changed[max(0, at - length) : at]
            case 5:
                cut = dice.randrange(len(other) + 1)
                changed[at:] = other[cut:]
            case 6:
                changed[at : at + 4] = struct.pack(
                    dice.choice("<>") + "I", dice.choice((0, 1, 2**16, 2**31, 2**32 - 1))
                )
            case _:
                changed[at : at + dice.randrange(3)] = dice.choice(PIECES)
    return bytes(changed)


def nested(kind: bytes, depth: int) -> bytes:
    return kind * depth + b"\xc0"


def hostile() -> Iterator[tuple[str, bytes]]:
    """Malformed or oversized messages, each with its name."""
    for name, head in (
        ("str", b"\xdb"),
        ("bin", b"\xc6"),
        ("array", b"\xdd"),
        ("map", b"\xdf"),
        ("ext", b"\xc9"),
    ):
        yield f"a {name} of 4 GiB", head + b"\xff" * 4 + b"\x01"
    yield "a list of a million empty maps", b"\xdd" + struct.pack(">I", 2**20) + b"\x80" * 2**20
    yield "a list of a million empty lists", b"\xdd" + struct.pack(">I", 2**20) + b"\x90" * 2**20
    flood = b"\xdd" + struct.pack(">I", 2**20) + b"\x80" * 2**20
    for name, bad in (
        ("a million empty maps", flood),
        ("maps in each other", nested(b"\x81\xa1a", 900)),
        ("lists in each other", nested(b"\x91", 900)),
    ):
        yield f"a task with {name} for its sigma", b"\x8a" + msgpack.packb("sigma") + bad
    yield "a million empty maps, one behind the other", b"\x80" * 2**20
    yield "a million lists in each other", nested(b"\x91", 2**20)
    yield "maps in each other", nested(b"\x81\xa1a", 5000)
    yield "an unknown type", b"\xc1"
    yield "nothing", b""
    yield "a timestamp", bytes(msgpack.packb(msgpack.Timestamp(1, 5)))
    yield "a text that is no UTF-8", b"\xa4\xff\xfe\xfd\xfc"
    yield "NaN", bytes(msgpack.packb(float("nan")))
    yield "True in each place", bytes(msgpack.packb([True] * 11))
    yield "a text of a megabyte", bytes(msgpack.packb(["x" * 2**20] * 2))
    yield "extra bytes after the end", TASK.encode() + b"\0"
    yield "half a message", TASK.encode()[: len(TASK.encode()) // 2]
    yield "a number of 5,000 digits", b'{"time": ' + b"9" * 5000 + b"}"
    yield "JSON lists in each other", b"[" * 100_000
    yield "JSON of a million empty lists", b"[" + b"[]," * 300_000 + b"[]]"
    yield (
        "JSON of names that stand twice",
        json.dumps({"id": "0a1b2c3d"}).encode()[:-1] + b', "id": "0a1b2c3e"}',
    )


WORKER_FIELDS: dict[bytes, bytes] = {
    b"host": b"\xff\x1b[2J",
    b"pid": b"9" * 5000,
    b"numerics": b"\0" * 1000,
    b"steps_per_second": b"nan",
    b"block": b"[" * 5000,
    b"\xff": b"\xff" * 1000,
    b"late": b"-1",
}
BLOCKS: list[bytes] = [
    b"",
    b"garbage",
    b"\xff" * 50,
    b"1 2 3 4",
    b"0.1-00000000 train 0 1",
    b"0.1-00000000 train 5 4",
    b"train 0 1" * 100,
    b"\x1b[2J" * 10,
]
COMMANDS: list[bytes] = [
    b"",
    b"{}",
    b"[" * 5000,
    b"\xff",
    b'{"id": 1}',
    json.dumps({**vars(REQUEST), "time": 10**400}, default=dict).encode(),
]
