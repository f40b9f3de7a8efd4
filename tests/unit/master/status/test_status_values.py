"""Values of the keyspace decoded: each kind of ours, and whatever else may stand there."""

from __future__ import annotations

import io
import json
import re
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from es_queue.errors import UsageError
from es_queue.numerics.fingerprint import bytes_digest
from es_queue.protocol.messages import Answer, SlotResult, Task
from master.status.inspect import format_brief, validate_key, value_parts
from master.status.render import Page, format_plain
from master.status.values import (
    MOST_ITEMS,
    decode_element,
    decode_entry,
    decode_string,
    kind_of,
    run_of,
    to_plain_json,
)
from master.storage.checkpoint import pack
from tests.cases import each_case

PUBLICATION = "12.3-0000000a"
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u202e]")
TASK = Task(
    PUBLICATION,
    0.25,
    500,
    3,
    "0" * 32,
    np.zeros(2, "<f4").tobytes(),
    np.ones(2, "<f4").tobytes(),
    "f" * 32,
    0.2,
)


def key(what: str, run: str = "walker-1") -> str:
    return f"es:{run}:{what}"


def texts(value: object) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False)


# --- names


def test_a_key_tells_its_run_and_its_kind() -> None:
    assert (kind_of(key("task")), run_of(key("task"))) == ("task", "walker-1")
    assert kind_of(key(f"results:{PUBLICATION}")) == "results" and kind_of("es:runs") == "runs"
    assert (
        kind_of("es:.hidden:task")
        == kind_of("es:walker-1:")
        == kind_of("rq:workers")
        == ""
        == run_of("es:runs")
    )


@each_case(
    "name", ["rq:workers", "walker-1", "", "ES:runs", "es", "es:" + "x" * 300, "\x1bes:runs"]
)
def test_keys_of_others_are_refused_in_a_sentence(name: str) -> None:
    with pytest.raises(UsageError, match="begin with es:") as error:
        validate_key(name, None)
    assert not CONTROL.search(str(error.value)) and len(str(error.value)) < 300


def test_a_key_of_another_run_than_the_one_asked_for_is_refused() -> None:
    assert validate_key(key("task"), "walker-1") == key("task") == validate_key(key("task"), None)
    assert validate_key("task", "walker-1") == key("task"), "the run need not be repeated"
    with pytest.raises(UsageError, match="not a key of run b"):
        validate_key(key("task"), "b")


# --- kinds of ours


def test_a_task_is_decoded_with_its_statistics() -> None:
    found = decode_string(key("task"), TASK.encode())
    assert (found["publication"], found["sigma"], found["size"]) == (PUBLICATION, 0.25, 3)
    assert found["obs_std"] == {
        "count": 2,
        "norm": pytest.approx(2**0.5, rel=1e-5),
        "min": 1.0,
        "max": 1.0,
        "first": [1.0, 1.0],
    }


def test_parameters_are_described_by_figures_and_their_digest() -> None:
    data = np.arange(1, 11, dtype="<f4").tobytes()
    found = decode_string(key(f"parameters:{PUBLICATION}"), data)
    assert found == {
        "count": 10,
        "norm": pytest.approx(385**0.5, rel=1e-5),
        "min": 1.0,
        "max": 10.0,
        "first": [1.0, 2, 3, 4, 5, 6, 7, 8],
        "digest": bytes_digest(data),
    }


def test_a_checkpoint_is_described_by_its_shapes_and_its_meta_without_long_lists() -> None:
    data = pack(
        {"parameters": np.zeros(1000, np.float32), "m": np.zeros((2, 3))},
        {"format": 1, "run": "r\x1b", "long": list(range(1000)), "state": {"generation": 3}},
    )
    found = decode_string(key("checkpoint"), data)
    assert found["arrays"] == {
        "meta": found["arrays"]["meta"],
        "parameters": "float32[1000]",
        "m": "float64[2, 3]",
    }
    assert (
        found["meta"]["run"] == "r\\x1b"
        and found["meta"]["state"] == {"generation": 3}
        and found["meta"]["long"] == [*range(16), "… 984 more"]
    )


def test_a_block_and_an_answer_are_shown_with_their_slots() -> None:
    assert decode_element(key("todo"), b"12.3-0000000a train 0 4") == {
        "publication": PUBLICATION,
        "kind": "train",
        "slots": "0-3",
    }
    result = SlotResult(5, -1, 7, (1.0,), (2.5,), (10,), (0,), (0,))
    data = Answer(
        PUBLICATION, "eval", "h-1-abcdef", 0.5, (result,), ((6, "fell \x1bover"),)
    ).encode()
    found = decode_entry(key(f"results:{PUBLICATION}"), "1-0", {b"answer": data})
    assert found == {
        "id": "1-0",
        "worker": "h-1-abcdef",
        "kind": "eval",
        "slots": "5-6",
        "seconds": 0.5,
        "returns": [2.5],
        "failed": ["6: fell \\x1bover"],
    }


# --- whatever else may stand there


ALL_KINDS = [
    "config",
    "task",
    f"parameters:{PUBLICATION}",
    "checkpoint",
    "epoch",
    "todo",
    "claims:w",
    f"results:{PUBLICATION}",
    "errors",
    "commands",
    "workers",
    "x",
]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(ALL_KINDS), st.binary(max_size=300))
def test_no_bytes_crash_it_or_reach_the_terminal(what: str, data: bytes) -> None:
    found = [
        decode_string(key(what), data),
        decode_element(key(what), data),
        decode_entry(key(what), "1-0", {b"answer": data, data: data}),
    ]
    assert not CONTROL.search("".join(texts(one) for one in found))
    for one in found:
        assert not CONTROL.search(
            "".join(format_plain(Page({}, tuple(value_parts(one))))) + format_brief(one)
        )


def test_an_archive_that_unpacks_to_gigabytes_is_not_unpacked() -> None:
    buffer = io.BytesIO()
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<U500000000", "fortran_order": False, "shape": ()}
    )
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("meta.npy", header.getvalue() + bytes(50_000_000))
    found = decode_string(key("checkpoint"), buffer.getvalue())
    assert "it is compressed" in found["cannot be decoded"]


def test_deep_wide_and_huge_values_are_cut() -> None:
    assert "…" in texts(to_plain_json(json.loads("[" * 500 + "]" * 500)))
    assert len(to_plain_json(dict.fromkeys(map(str, range(10**4)), 1))) == MOST_ITEMS + 1
    assert (
        to_plain_json(10**5000) == "a number that is too large"
        and to_plain_json(float("nan")) == "nan"
    )
    assert decode_string(key("config"), b"[" * 100_000)["cannot be decoded"]
    assert decode_element(key("errors"), b"[" * 100_000)["no JSON"]
