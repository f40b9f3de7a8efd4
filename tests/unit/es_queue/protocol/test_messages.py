"""Messages: what is encoded comes back, and every other byte string raises DecodeError and nothing
else.
"""

from __future__ import annotations

import dataclasses
import math
import random
import struct
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from es_queue.errors import DecodeError
from es_queue.protocol import messages
from es_queue.protocol.messages import (
    Answer,
    Block,
    EpisodeMoments,
    SlotResult,
    Task,
    publication_generation,
    token_number,
)
from tests.cases import each_case

PUBLICATION = "7.3-0a1b2c3d"
WORKER = "host.example-4711-0a1b2c"
MOMENTS = EpisodeMoments(3, b"\0" * 16, b"\1" * 16)
RESULT = SlotResult(
    5, 11, 13, (1.5, -2.0), (1.0, 2.0), (10, 20), (0, 1), (1, 0), (MOMENTS, MOMENTS)
)
ANSWER = Answer(
    PUBLICATION,
    "train",
    WORKER,
    0.25,
    (RESULT, dataclasses.replace(RESULT, slot=6, moments=())),
    ((7, "ValueError: no"),),
)
TASK = Task(PUBLICATION, 0.02, 1600, 1000, "0" * 32, b"\0" * 96, b"\1" * 96, "f" * 32, 0.25)
BLOCK = Block(PUBLICATION, "train", 8, 16)

wholes = st.integers(0, 2**31)
reals = st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def publications(draw: st.DrawFn) -> str:
    token, generation = draw(st.integers(0, 10**10 - 1)), draw(st.integers(1, 10**10 - 1))
    return f"{token}.{generation}-{draw(st.integers(0, 2**32 - 1)):08x}"


@st.composite
def blocks(draw: st.DrawFn) -> Block:
    start = draw(st.integers(0, messages.MAX_SLOT - messages.MAX_BLOCK))
    return Block(
        draw(publications()),
        draw(st.sampled_from(messages.KINDS)),
        start,
        start + draw(st.integers(1, messages.MAX_BLOCK)),
    )


@st.composite
def moments(draw: st.DrawFn) -> EpisodeMoments:
    columns = [struct.pack("<3d", *draw(st.lists(reals, min_size=3, max_size=3))) for _ in range(2)]
    return EpisodeMoments(draw(st.integers(0, 2**40)), *columns)


@st.composite
def results(draw: st.DrawFn, count: int) -> SlotResult:
    some = [
        tuple(draw(st.lists(kind, min_size=count, max_size=count)))
        for kind in (reals, reals, *[st.integers(0, 2**40)] * 3)
    ]
    return SlotResult(
        draw(wholes),
        draw(st.integers(-1, 2**32)),
        draw(st.integers(0, 2**31 - 1)),
        *some,
        tuple(draw(st.lists(moments(), max_size=3))),
    )


@st.composite
def answers(draw: st.DrawFn) -> Answer:
    failures = st.tuples(
        wholes, st.text(st.characters(codec="utf-8"), max_size=messages.MAX_REASON)
    )
    return Answer(
        draw(publications()),
        draw(st.sampled_from(messages.KINDS)),
        WORKER,
        draw(st.floats(0, 1e9)),
        tuple(draw(st.lists(results(draw(st.integers(1, 2))), max_size=3))),
        tuple(draw(st.lists(failures, max_size=3))),
    )


@settings(max_examples=60, deadline=None)
@given(blocks())
def test_a_block_comes_back_from_its_text(block: Block) -> None:
    assert Block.decode(str(block)) == Block.decode(str(block).encode()) == block


@settings(max_examples=60, deadline=None)
@given(answers())
def test_an_answer_comes_back_from_its_bytes(answer: Answer) -> None:
    assert Answer.decode(answer.encode()) == answer


@settings(max_examples=60, deadline=None)
@given(
    publications(),
    reals.map(abs),
    st.integers(1, 2**31),
    st.integers(1, 2**32),
    st.integers(0, 30),
    st.floats(0.001, 60),
)
def test_a_task_comes_back_from_its_bytes(
    publication: str, sigma: float, limit: int, size: int, observed: int, poll: float
) -> None:
    task = Task(
        publication,
        sigma,
        limit,
        size,
        "ab" * 16,
        b"\2" * 4 * observed,
        b"\3" * 4 * observed,
        "cd" * 16,
        poll,
    )
    assert Task.decode(task.encode()) == task
    assert (
        task.generation == publication_generation(publication) == int(publication.partition(".")[0])
    )


def test_a_long_reason_is_cut_and_half_characters_in_it_do_not_matter() -> None:
    answer = dataclasses.replace(
        ANSWER, failures=((1, "x" * 10_000), (2, "bad \udc80 name"), (3, "😀" * 10_000))
    )
    reasons = [reason for _, reason in Answer.decode(answer.encode()).failures]
    assert reasons == ["x" * messages.MAX_REASON, "bad ? name", "😀" * messages.MAX_REASON]


@each_case(
    "text",
    [
        "",
        " ",
        "train 0 1",
        f"{PUBLICATION} train 0",
        f"{PUBLICATION} train 0 1 2",
        f"{PUBLICATION}  train 0 1",
        f"{PUBLICATION} train 0 1\n",
        f"{PUBLICATION} Train 0 1",
        f"{PUBLICATION} other 0 1",
        f"{PUBLICATION} train -1 1",
        f"{PUBLICATION} train +0 1",
        f"{PUBLICATION} train 00 1",
        f"{PUBLICATION} train 0 01",
        f"{PUBLICATION} train 0.0 1",
        f"{PUBLICATION} train 0 ²",
        f"{PUBLICATION} train ٠ 1",
        f"{PUBLICATION} train 1 1",
        f"{PUBLICATION} train 2 1",
        f"{PUBLICATION} train 0 4097",
        f"{PUBLICATION} train 0 99999999999",
        f"{PUBLICATION} train 2147483648 2147483649",
        "7.3-0A1B2C3D train 0 1",
        "7.3-0a1b2c3 train 0 1",
        "7.3-0a1b2c3d4 train 0 1",
        "07.3-0a1b2c3d train 0 1",
        "7.0-0a1b2c3d train 0 1",
        "7.3 train 0 1",
        "-7.3-0a1b2c3d train 0 1",
        "7-3-0a1b2c3d train 0 1",
        f"{PUBLICATION} train 0 1" + " " * 100,
        "é",
    ],
)
def test_a_text_that_is_no_block_is_refused(text: str) -> None:
    for data in (text, text.encode(), text.encode("latin-1", "replace")):
        with pytest.raises(DecodeError):
            Block.decode(data)


@each_case(
    "text",
    [
        "",
        "3",
        "-0a1b2c3d",
        "0-0a1b2c3d",
        "03-0a1b2c3d",
        "3-0a1b2c3",
        "3-0a1b2c3d\n",
        "3-0A1B2C3D",
        "99999999999-0a1b2c3d",
    ],
)
def test_a_text_that_is_no_token_is_refused(text: str) -> None:
    with pytest.raises(DecodeError):
        token_number(text)
    with pytest.raises(DecodeError):
        publication_generation(f"1.{text}")


def changed_task(**values: Any) -> bytes:
    return dataclasses.replace(TASK, **values).encode()


def changed_result(**values: Any) -> bytes:
    return dataclasses.replace(ANSWER, results=(dataclasses.replace(RESULT, **values),)).encode()


def changed_answer(place: int, value: Any) -> bytes:
    """With another element; see the places in the module's docstring."""
    raw = msgpack.unpackb(ANSWER.encode())
    raw[place] = value
    return bytes(msgpack.packb(raw))


def failed(*slots: int, reasons: list[Any] | None = None) -> bytes:
    raw = msgpack.unpackb(dataclasses.replace(ANSWER, failures=()).encode())
    reasons = ["a"] * len(slots) if reasons is None else reasons
    return bytes(msgpack.packb([*raw[:FAILED], struct.pack(f"<{len(slots)}q", *slots), *reasons]))


COLUMNS, COUNTS, MEANS, M2S, FAILED = range(6, 11)


WRONG_TASKS: dict[str, bytes] = {
    "another protocol": msgpack.packb(
        {**msgpack.unpackb(TASK.encode()), "wire": messages.WIRE + 1}
    ),
    "no protocol": msgpack.packb(
        {k: v for k, v in msgpack.unpackb(TASK.encode()).items() if k != "wire"}
    ),
    "a field twice": TASK.encode().replace(
        msgpack.packb("size") + msgpack.packb(1000), msgpack.packb("poll") + msgpack.packb(0.5)
    ),
    "mean not finite": changed_task(obs_mean=b"\0\0\xc0\x7f" * 24),
    "deviation not finite": changed_task(obs_std=b"\0\0\x80\x7f" * 24),
    "no map": msgpack.packb([1, 2]),
    "a field is missing": msgpack.packb({"publication": PUBLICATION}),
    "a field too many": msgpack.packb({**msgpack.unpackb(TASK.encode()), "more": 1}),
    "a field of another name": msgpack.packb(
        {**{k: v for k, v in msgpack.unpackb(TASK.encode()).items() if k != "poll"}, "pool": 1}
    ),
    **{
        f"sigma {value}": changed_task(sigma=value)
        for value in (-0.1, math.nan, math.inf, "0.1", None, True)
    },
    **{
        f"step limit {value}": changed_task(step_limit=value)
        for value in (0, -1, 2**31 + 1, 1.5, True)
    },
    **{f"size {value}": changed_task(size=value) for value in (0, 2**32 + 1, "1")},
    **{
        f"digest {value!r}"[:20]: changed_task(digest=value)
        for value in ("", "0" * 31, "0" * 33, "G" * 32, b"0" * 32)
    },
    **{f"noise {value!r}"[:20]: changed_task(noise=value) for value in ("", "F" * 32, None)},
    **{
        f"publication {value!r}": changed_task(publication=value)
        for value in ("", "7", 7, "7.3-0a1b2c3d ")
    },
    "mean of no floats": changed_task(obs_mean=b"abc"),
    "mean of text": changed_task(obs_mean="\0" * 96),
    "mean and std of different lengths": changed_task(obs_std=b"\0" * 92),
    "mean too long": changed_task(obs_mean=b"\0" * (4 * messages.MAX_OBSERVATION + 4)),
    **{f"poll {value}": changed_task(poll=value) for value in (0, -1.0, 61, math.nan)},
    "too long": b"\0" * (messages.MAX_TASK + 1),
}

WRONG_ANSWERS: dict[str, bytes] = {
    "no list": msgpack.packb({"a": 1}),
    "ten parts": msgpack.packb(msgpack.unpackb(ANSWER.encode())[:10]),
    "a list of a former version": msgpack.packb([PUBLICATION, "train", WORKER, 0.25, [], []]),
    **{
        f"protocol {value!r}": changed_answer(0, value)
        for value in (messages.WIRE - 1, messages.WIRE + 1, True, "2", None)
    },
    **{f"publication {value!r}": changed_answer(1, value) for value in ("", "7.3", 1, None)},
    **{f"kind {value!r}": changed_answer(2, value) for value in ("", "other", 1, None, [])},
    **{
        f"worker {value!r}"[:30]: changed_answer(3, value)
        for value in (
            "",
            "host",
            "a b-1-0a1b2c",
            "h-1-0A1B2C",
            "h-x-0a1b2c",
            "h" * 121 + "-1-0a1b2c",
            1,
        )
    },
    **{
        f"seconds {value!r}": changed_answer(4, value)
        for value in (math.nan, math.inf, "1", None, False)
    },
    **{
        f"individuals {value!r}": changed_answer(5, value)
        for value in (0, 1, 3, -1, 2.0, True, None)
    },
    **{
        f"columns {value!r:.20} of {len(repr(value))}": changed_answer(COLUMNS, value)
        for value in (
            1,
            None,
            {},
            [1],
            "",
            b"\0",
            b"\0" * 112,
            b"\0" * 8,
            b"\0" * (messages.MAX_BLOCK + 1) * 112,
        )
    },
    **{
        f"failed {slots!r} by {str(reasons)[:20]}": failed(*slots, reasons=reasons)
        for slots, reasons in (
            ((-1,), None),
            ((2**31 + 1,), None),
            ((1,), [2]),
            ((1,), [b"a"]),
            ((1,), ["a" * 401]),
            ((1,), [None]),
            ((1,), [[]]),
            ((1, 2), ["a"]),
            ((1,), ["a", "b"]),
        )
    },
    "failed slots that are no column": changed_answer(FAILED, [7]),
    "more slots than a block": failed(*[1] * messages.MAX_BLOCK),
    "a list that ends before its reasons": b"\x9b" + ANSWER.encode()[1:],
    "a list that announces more than its reasons": b"\x9d" + ANSWER.encode()[1:],
    "a reason that is no UTF-8": failed(1, reasons=[]).replace(b"\x9b", b"\x9c", 1) + b"\xa1\xff",
    **{f"slot {value!r}": changed_result(slot=value) for value in (-1, 2**31 + 1)},
    **{
        f"noise index {value!r}": changed_result(noise_index=value)
        for value in (-2, 2**32 + 1, 2**63 - 1)
    },
    **{f"seed {value!r}": changed_result(seed=value) for value in (-1, 2**31)},
    **{
        f"fitness {value!r}": changed_result(fitness=value)
        for value in ((1.0, math.nan), (1.0, math.inf))
    },
    **{
        f"returns {value!r}": changed_result(returns=value)
        for value in ((math.nan, 1.0), (1.0, -math.inf))
    },
    **{f"steps {value!r}": changed_result(steps=value) for value in ((1, -1), (1, 2**40 + 1))},
    **{f"at limit {value!r}": changed_result(at_limit=value) for value in ((1, -1), (-(2**63), 0))},
    **{f"cut {value!r}": changed_result(cut=value) for value in ((-1, 0),)},
    **{
        f"moments of {count} steps": changed_result(
            moments=(dataclasses.replace(MOMENTS, count=count),)
        )
        for count in (-1, 2**40 + 1)
    },
    "moments without numbers": changed_result(moments=(EpisodeMoments(1, b"", b""),)),
    "a mean of no float64": changed_result(moments=(EpisodeMoments(1, b"1234567", b"1234567"),)),
    "a mean without M2": changed_result(moments=(EpisodeMoments(1, b"12345678", b""),)),
    "a mean that is not finite": changed_result(
        moments=(EpisodeMoments(1, b"\0" * 6 + b"\xf0\x7f", b"\0" * 8),)
    ),
    "an M2 that is not finite": changed_result(
        moments=(EpisodeMoments(1, b"\0" * 8, b"\0" * 6 + b"\xf8\x7f"),)
    ),
    "one count of moments too many": changed_answer(COUNTS, b"\0" * 24),
    "moments of text": changed_answer(MEANS, "\0" * 32),
    "more moments than slots announce": changed_result(moments=()).replace(
        b"\xc4\x00\xc4\x00\xc4\x00", b"\xc4\x08" + b"\0" * 8 + (b"\xc4\x08" + b"\0" * 8) * 2
    ),
    "too many episodes in all": dataclasses.replace(
        ANSWER,
        results=(
            dataclasses.replace(
                RESULT, moments=(EpisodeMoments(1, b"\0" * 8, b"\0" * 8),) * messages.MAX_EPISODES
            ),
        )
        * 66,
    ).encode(),
    "too many episodes in a slot": changed_result(
        moments=(EpisodeMoments(1, b"\0" * 8, b"\0" * 8),) * (messages.MAX_EPISODES + 1)
    ),
    "too deep": b"\x91" * 5000 + b"\xc0",
    "extra bytes after the end": ANSWER.encode() + b"\0",
    "an extension": changed_answer(FAILED, msgpack.ExtType(5, b"x")),
    "a timestamp": changed_answer(4, msgpack.Timestamp(1)),
    "a map with a list as key": b"\x81\x90\xc0",
}


@each_case("data", WRONG_TASKS.values())
def test_a_task_that_cannot_be_is_refused(data: bytes) -> None:
    with pytest.raises(DecodeError):
        Task.decode(data)


@each_case("data", WRONG_ANSWERS.values())
def test_an_answer_that_cannot_be_is_refused(data: bytes) -> None:
    with pytest.raises(DecodeError):
        Answer.decode(data)


def test_an_answer_that_is_too_long_is_refused_by_its_length() -> None:
    data = ANSWER.encode()
    assert Answer.decode(data, len(data)) == ANSWER
    with pytest.raises(DecodeError, match="at most"):
        Answer.decode(data, len(data) - 1)


def test_an_error_never_repeats_the_payload() -> None:
    for data in (b"secret", msgpack.packb(["secret"] * 11), changed_answer(3, "secret secret")):
        with pytest.raises(DecodeError) as caught:
            Answer.decode(data)
        assert "secret" not in str(caught.value)
        assert (
            caught.value.__cause__ is None and caught.value.__suppress_context__
        ) or caught.value.__context__ is None


INTERESTING = [
    b"",
    b"\0",
    b"\x7f",
    b"\x80",
    b"\xc0",
    b"\xc1",
    b"\xff",
    b"\xca\x7f\xc0\0\0",
    b"\xcb\x7f\xf8\0\0\0\0\0\0",
    b"\xcf" + b"\xff" * 8,
]
INTERESTING += [
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff",
    b"\xdb\xff\xff\xff\xff",
    b"\xd6\xff\0\0\0\0",
    b"\xc7\0\xff",
    b"\x91" * 2000,
]


def mutated(data: bytes, dice: random.Random) -> bytes:
    """A few random changes: bits, bytes, cuts, repeats, interesting pieces."""
    changed = bytearray(data)
    for _ in range(dice.choice((1, 1, 1, 2, 4, 8))):
        at, length = dice.randrange(len(changed) + 1), dice.randrange(9)
        match dice.randrange(5):
            case 0 if changed:
                changed[at % len(changed)] ^= 1 << dice.randrange(8)
            case 1 if changed:
                changed[at % len(changed)] = dice.randrange(256)
            case 2:
                del changed[at : at + length]
            case 3:
                changed[at:at] = changed[max(0, at - length) : at]
            case _:
                changed[at : at + dice.randrange(3)] = dice.choice(INTERESTING)
    return bytes(changed)


@each_case(
    ("decode", "data", "count"),
    [
        (Answer.decode, ANSWER.encode(), 10_000),
        (Task.decode, TASK.encode(), 6_000),
        (Block.decode, str(BLOCK).encode(), 6_000),
    ],
)
def test_mutated_bytes_raise_a_decode_error_or_nothing(
    decode: Callable[[bytes], Any], data: bytes, count: int
) -> None:
    dice, refused = random.Random(20260101), 0
    for _ in range(count):
        payload = mutated(data, dice)
        try:
            found = decode(payload)
        except DecodeError:
            refused += 1
        else:
            again = str(found).encode() if isinstance(found, Block) else found.encode()
            assert decode(again) == found, "what is accepted is a message of ours"
    assert 0.3 * count < refused < count
