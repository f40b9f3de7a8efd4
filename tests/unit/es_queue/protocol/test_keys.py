"""Keys: names that people read, and ids that are refused unless they can be nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rq.job import validate_job_id

from es_queue.errors import UsageError
from es_queue.protocol import keys
from es_queue.protocol.keys import RunKeys
from tests.cases import each_case

run_ids = st.from_regex(keys.RUN_ID, fullmatch=True)


def test_each_key_begins_with_its_run_and_is_what_people_type() -> None:
    own = RunKeys("walker-1")
    assert own.prefix == "es:walker-1:"
    assert (own.todo, own.epoch, own.master) == (
        "es:walker-1:todo",
        "es:walker-1:epoch",
        "es:walker-1:master",
    )
    assert own.parameters("3.1-0000000a") == "es:walker-1:parameters:3.1-0000000a"
    assert own.results("3.1-0000000a") == "es:walker-1:results:3.1-0000000a"
    assert own.claims("h-1-0a0b0c") == "es:walker-1:claims:h-1-0a0b0c"
    assert own.worker("h-1-0a0b0c") == "es:walker-1:worker:h-1-0a0b0c"
    assert keys.RUNS == "es:runs"


def test_the_keys_of_rq_are_those_that_rq_has() -> None:
    names = (
        keys.RQ_SUSPENDED,
        keys.rq_worker("w"),
        keys.rq_queue("q"),
        keys.rq_failed("q"),
        keys.rq_job("j"),
        keys.rq_results("j"),
    )
    assert names == (
        "rq:suspended",
        "rq:worker:w",
        "rq:queue:q",
        "rq:failed:q",
        "rq:job:j",
        "rq:results:j",
    )


def test_every_lasting_key_can_be_named_and_the_epoch_lasts_too() -> None:
    own = RunKeys("r")
    assert own.lasting_keys() == [
        getattr(own, suffix) for suffix in (*keys.RUN_LIFETIME_KEYS, "epoch")
    ]
    assert len(set(own.lasting_keys())) == len(own.lasting_keys())
    assert own.master not in own.lasting_keys(), "the lease has a time of its own"


def test_a_key_that_no_run_has_is_an_error() -> None:
    with pytest.raises(AttributeError, match="tdoo"):
        _ = RunKeys("r").tdoo


@each_case("run", ["", ".a", "..", "a/b", "a:b", "a b", "a*", "é", "a\n", "x" * 41])
def test_what_is_no_run_id_is_refused(run: str) -> None:
    with pytest.raises(UsageError, match="run"):
        RunKeys(run)


@settings(max_examples=100, deadline=None)
@given(run_ids, st.integers(0, 2**24 - 1), st.integers(0, 10**12 - 1))
def test_a_seat_id_tells_its_run_and_nonce(run: str, nonce: int, number: int) -> None:
    seat = keys.seat_id(run, f"{nonce:06x}", number)
    validate_job_id(seat)  # RQ's own rule, which allows no dot
    assert keys.parse_seat_id(seat) == (run, f"{nonce:06x}")


@each_case(
    "text",
    [
        "",
        "es-run",
        "es-run-0a0b0c",
        "es-run-0A0B0C-1",
        "es-run-0a0b0-1",
        "es--0a0b0c-",
        "es-run-0a0b0c-1\n",
        "es-run-0a0b0c-1234567890123",
        "job-run-0a0b0c-1",
        "es-.run-0a0b0c-1",
        "es_-run-0a0b0c-1",
        "es_-_drun-0a0b0c-1",
        "es_-a_d_-0a0b0c-1",
    ],
)
def test_what_is_no_seat_id_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="seat"):
        keys.parse_seat_id(text)


@settings(max_examples=100, deadline=None)
@given(st.lists(run_ids, min_size=2, max_size=2, unique=True))
def test_no_key_of_a_run_is_a_key_of_another(runs: list[str]) -> None:
    first, second = (RunKeys(run) for run in runs)
    assert not any(name.startswith(second.prefix) for name in first.lasting_keys())
