"""No bytes from Redis do anything but become a message or the one error of their decoder, in little
memory.
"""

from __future__ import annotations

import io
import math
import random
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from es_queue.errors import DecodeError, RunFolderError
from es_queue.files import parse_json
from es_queue.policies.saved_policy import load_policy
from es_queue.protocol.control import ControlRequest
from es_queue.protocol.messages import Block, Task
from master.loop import checkpoint
from tests.abuse.forge import TASK, Decoder, decoders, hostile, mutated

MEGABYTE = 2**20
MOST_GROWTH = 32 * MEGABYTE
SEED = 20260101
DECODERS = decoders()
HOSTILE = dict(hostile())


def tried(name: str, decoder: Decoder, data: bytes) -> bool:
    """Whether the bytes were accepted; what is accepted comes back as it is from its own bytes."""
    try:
        found = decoder.read(data)
    except decoder.raises as error:
        assert type(error) is decoder.raises, f"{name}: {error!r}"
        return False
    assert name == "checkpoint" or decoder.read(decoder.write(found)) == found, (
        f"{name}: what is accepted is a message of ours"
    )
    return True


def fuzzed(executions: int, seed: int = SEED) -> dict[str, tuple[int, int, list[float]]]:
    """How many mutated messages each decoder was given and accepted, and the seconds of every
    tenth.
    """
    dice, told = random.Random(seed), {}
    total = sum(one.weight for one in DECODERS.values())
    pool = [message for one in DECODERS.values() if one.weight for message in one.genuine]
    for name, decoder in DECODERS.items():
        count, accepted, seconds = (
            executions * decoder.weight // total or min(500, executions // 100),
            0,
            [],
        )
        for number in range(count):
            data = mutated(
                dice.choice(decoder.genuine),
                dice.choice(pool if number % 3 else decoder.genuine),
                dice,
            )
            began = time.perf_counter()
            accepted += tried(name, decoder, data)
            if number % 10 == 0:
                seconds.append(time.perf_counter() - began)
        told[name] = count, accepted, seconds
    return told


def check(executions: int) -> None:
    """Fuzz, print what came of it, and assert that the memory is what it was."""
    fuzzed(1000, seed=1)  # whatever is imported or compiled at first use
    before = resident()
    told = fuzzed(executions)
    growth = resident() - before
    for name, (count, accepted, seconds) in told.items():
        print(
            f"{name:12s} {count:8,d} executions, {accepted:7,d} accepted, "
            f"{1e6 * median(seconds):7.1f} us median, {1e3 * max(seconds):6.2f} ms longest"
        )
        assert accepted < count
    print(
        f"{sum(count for count, _, _ in told.values()):,} executions, {growth / MEGABYTE:+.1f} MB"
    )
    assert growth < MOST_GROWTH


def resident(field: str = "VmRSS") -> int:
    """Bytes that this process holds now, or held at most (VmHWM)."""
    with open("/proc/self/status") as file:  # noqa: PTH123 - no path of ours
        return next(1024 * int(line.split()[1]) for line in file if line.startswith(field))


def test_mutated_messages_are_refused_or_are_messages() -> None:
    check(30_000)


@pytest.mark.parametrize("what", HOSTILE)
def test_every_decoder_refuses_it_quickly_and_builds_next_to_nothing(what: str) -> None:
    data = HOSTILE[what]
    for name, decoder in DECODERS.items():
        tracemalloc.start()
        began = time.perf_counter()
        accepted = tried(name, decoder, data)
        seconds, (_, peak) = time.perf_counter() - began, tracemalloc.get_traced_memory()
        tracemalloc.stop()
        print(f"{name:12s} {1e3 * seconds:6.2f} ms {peak / MEGABYTE:6.2f} MB")
        assert not accepted and peak < MOST_GROWTH, name


#: What msgpack itself lets pass, and a number of a message must not be.
ODD_NUMBERS: list[Any] = [
    math.nan,
    True,
    None,
    "1",
    b"1",
    [1],
    2**64 - 1,
    msgpack.Timestamp(1),
]


@pytest.mark.parametrize("value", ODD_NUMBERS, ids=repr)
def test_a_number_that_is_none_is_refused_wherever_one_stands(value: Any) -> None:
    task = msgpack.unpackb(TASK.encode())
    for name in ("wire", "sigma", "step_limit", "size", "poll", "row", "moment"):
        if (name, value) != ("sigma", 2**64 - 1):  # a large deviation is one
            with pytest.raises(DecodeError):
                Task.decode(msgpack.packb({**task, name: value}))


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.binary(max_size=100)
    | st.text(st.characters(codec="utf-8"), max_size=40),
    lambda inner: (
        st.lists(inner, max_size=12)
        | st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=8), inner, max_size=10)
    ),
    max_leaves=40,
)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(vars(TASK))), anything)
def test_any_value_in_a_field_of_a_task_is_refused_or_fits(name: str, value: Any) -> None:
    raw = msgpack.unpackb(TASK.encode())
    tried("task", DECODERS["task"], msgpack.packb({**raw, name: value}))


@pytest.mark.parametrize(
    "text",
    [
        "NaN",
        "1e999",
        "9" * 5000,
        '{"a": 1, "a": 1}',
        "[" * 10**5,
        '{"a":' * 10**5,
        "\ufeff{}",
    ],
)
def test_json_that_python_would_read_and_nobody_writes_is_refused(text: str) -> None:
    with pytest.raises(DecodeError) as caught:
        parse_json(text, 2**20)
    assert text[:5] not in str(caught.value) or len(text) < 6


def test_a_checkpoint_that_unpacks_to_more_than_its_bytes_is_refused_unread(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer,
        meta=np.array("{}"),
        **dict.fromkeys(("parameters", "obs_mean", "obs_std"), np.zeros(2**24, np.float32)),
    )
    assert len(buffer.getvalue()) < MEGABYTE
    (tmp_path / "bomb.npz").write_bytes(buffer.getvalue())
    tracemalloc.start()
    for read in (
        lambda: checkpoint.decode(buffer.getvalue()),
        lambda: load_policy(tmp_path / "bomb.npz"),
    ):
        with pytest.raises(RunFolderError, match="compressed"):
            read()
    assert tracemalloc.get_traced_memory()[1] < 4 * MEGABYTE
    tracemalloc.stop()


@pytest.mark.parametrize("decode", [Task.decode, Block.decode, ControlRequest.decode])
def test_the_error_says_how_many_bytes_they_were_and_none_of_them(
    decode: Callable[[bytes], Any],
) -> None:
    for data in (
        b"swordfish",
        b"\x9bswordfish" * 3,
        msgpack.packb(["swordfish"] * 11),
        b"swordfish" * 2**20,
    ):
        with pytest.raises(DecodeError) as caught:
            decode(data)
        assert "swordfish" not in str(caught.value) and len(str(caught.value)) < 200
        assert caught.value.__context__ is None or caught.value.__suppress_context__
