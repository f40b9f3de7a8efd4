"""What people ask of a run: the words, who may say what, and what a ring makes of it."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_queue.errors import DecodeError
from es_queue.protocol.channel import PAUSED, RUNNING
from es_queue.protocol.control_messages import CONTINUE, PAUSE, SET, STOP, ControlRequest
from master.collect.collector import Interrupted
from master.control.inbox import ControlInbox
from master.loop.config_timeline import ConfigTimeline
from master.loop.state import Change
from tests.cases import each_case
from tests.memory_channel import MemoryMasterChannel, MemoryServer
from tests.notes import collect_notes
from tests.parts import setup_of
from tests.ring import Sink, quick_config, run_ring
from tests.tiny import QUAD, eventually

ADA = ControlRequest("0a1b2c3d", SET, "ada@host", 1_795_194_000.0, {"learning_rate": 0.01}, 7)


def ask(verb: str, number: int = 1, **more: Any) -> ControlRequest:
    return ControlRequest(f"{number:08x}", verb, "ada@host", 0.0, **more)


# --- the words


@each_case(
    "change",
    [
        {"id": "x"},
        {"id": 3},
        {"verb": "purge"},
        {"verb": []},
        {"by": "a\x1b[2J"},
        {"by": "a" * 101},
        {"by": None},
        {"time": "now"},
        {"time": True},
        {"settings": []},
        {"settings": {"sigma": [1]}},
        {"settings": {str(n): 1 for n in range(21)}},
        {"generation": -1},
        {"generation": 1.5},
        {"generation": True},
        {"more": 1},
    ],
)
def test_a_request_with_a_field_that_cannot_be_is_no_request(change: dict[str, Any]) -> None:
    fields = json.loads(ADA.encode()) | change
    with pytest.raises(DecodeError):
        ControlRequest.decode(json.dumps(fields).encode())


@given(st.binary(max_size=200))
def test_bytes_that_are_no_request_raise_one_error(data: bytes) -> None:
    with pytest.raises(DecodeError):
        ControlRequest.decode(data)


def test_a_request_of_great_length_or_depth_is_not_parsed() -> None:
    for data in (
        b"[" * 8000,
        b"1" * 9000,
        json.dumps({**json.loads(ADA.encode()), "time": float("inf")}).encode(),
    ):
        with pytest.raises(DecodeError):
            ControlRequest.decode(data)


# --- the course


ADA_CHANGE = Change(7, {"learning_rate": 0.01}, "ada@host", 1_795_194_000.0, "0a1b2c3d")


@each_case(
    ("settings", "sentence"),
    [
        ({"population": 4}, "population cannot change during a run, but the request sets it"),
        ({"l2": 0.1}, "l2 is 0.1, but the strategy ars"),
        ({"sigma": -1}, "sigma is -1 in the request"),
    ],
)
def test_settings_that_the_run_cannot_have_are_refused(
    settings: dict[str, Any], sentence: str
) -> None:
    assert sentence in ConfigTimeline(setup_of("ars").learner).refusal((), settings, 1)


def test_changes_hold_by_their_generation_whatever_the_order_of_asking() -> None:
    course = ConfigTimeline(setup_of("ars").learner)
    planned, sooner = Change(250, {"sigma": 0.3}), Change(200, {"sigma": 0.2})
    for changes in ((planned, sooner), (sooner, planned)):
        assert [
            course.config_at(changes, generation).sigma for generation in (199, 200, 249, 250, 400)
        ] == [0.0, 0.2, 0.2, 0.3, 0.3]
    again = (planned, Change(250, {"sigma": 0.4}))
    assert course.config_at(again, 250).sigma == 0.4, (
        "of two for one generation the later request holds"
    )


def test_a_change_that_a_planned_one_would_make_impossible_is_refused() -> None:
    course = ConfigTimeline(setup_of("openai_es", decay_schedule="constant", l2=0.1).learner)
    planned = (Change(50, {"decay_schedule": "linear:0,9"}),)
    assert "l2 and weight_decay are 0" in course.refusal(planned, {"l2": 0.0}, 10)
    assert course.refusal((), {"l2": 0.0}, 10) == ""


# --- the master's side


def heard(
    server: MemoryServer,
    *requests: ControlRequest | bytes,
    judge: Any = lambda changes, settings, generation: "",
) -> tuple[ControlInbox, list[str]]:
    notes = collect_notes()
    found = ControlInbox(MemoryMasterChannel(server), judge)
    server.commands += [one if isinstance(one, bytes) else one.encode() for one in requests]
    return found, notes


def test_pause_and_continue_are_taken_up_once_and_answered() -> None:
    server = MemoryServer()
    requests, notes = heard(server, ask(PAUSE), b"rubbish")
    requests.poll(4)
    assert (requests.paused_by, requests.state, server.commands) == ("ada@host", PAUSED, [])
    assert "paused by ada@host" in notes[0]
    server.commands.append(ask(CONTINUE, 2).encode())
    requests.poll(4)
    assert (requests.paused_by, requests.state) == ("", RUNNING)
    assert json.loads(requests.progress_fields()["replies"]) == {
        "00000001": "paused",
        "00000002": "running",
    }


def test_a_change_stays_in_redis_until_it_is_published_and_counts_once() -> None:
    server = MemoryServer()
    requests, _ = heard(server, ADA)
    requests.poll(9)
    requests.poll(9)
    assert [(one.generation, one.settings) for one in requests.pending_changes] == [
        (10, {"learning_rate": 0.01})
    ], "generation 7 is over"
    assert server.commands == [ADA.encode()]
    assert requests.take_changes() and not requests.pending_changes
    requests.acknowledge_changes()
    assert server.commands == []
    assert "from generation 10" in json.loads(requests.progress_fields()["replies"])[ADA.id]


def test_a_change_that_a_former_master_published_is_not_made_again() -> None:
    server = MemoryServer()
    requests, _ = heard(server, ADA)
    requests.begin([ADA_CHANGE], RUNNING)
    requests.poll(8)
    assert (requests.pending_changes, server.commands) == ([], [])


def test_a_change_that_cannot_be_is_refused_with_the_reason() -> None:
    server = MemoryServer()
    requests, _ = heard(server, ADA, judge=lambda changes, settings, generation: "it is too late")
    requests.poll(3)
    assert (requests.pending_changes, server.commands) == ([], [])
    assert json.loads(requests.progress_fields()["replies"])[ADA.id] == "refused: it is too late"


def test_a_run_that_its_last_master_left_paused_stays_so() -> None:
    requests, notes = heard(MemoryServer())
    requests.begin([], PAUSED, "ada@host")
    assert (requests.state, requests.paused_by) == (PAUSED, "ada@host") and "--continue" in notes[0]


# --- a whole ring


QUAD_RUN = {
    "env": QUAD,
    "strategy": "openai_es",
    "population": 8,
    "generations": 8,
    "eval_every": 0,
    "target_reward": "none",
    "final_episodes": 0,
}


def asked(*requests: ControlRequest, workers: int = 1, **values: Any) -> tuple[Any, Sink]:
    """A ring that finds requests when it begins."""
    server = MemoryServer(commands=[one.encode() for one in requests])
    return run_ring(quick_config(**{**QUAD_RUN, **values}), workers, server=server)


def test_a_setting_changed_during_a_run_gives_a_repeatable_and_different_digest() -> None:
    request = ask(SET, settings={"learning_rate": 0.3, "sigma": 0.2}, generation=5)
    first, sink = asked(request)
    again, _ = asked(request, workers=2)
    without_it, _ = asked()
    assert first.digest == again.digest != without_it.digest
    told_in = [record["generation"] for record in sink.records if record["changed"]]
    assert told_in == [5], "the generation from which on it holds says so"
    assert [record["sigma"] for record in sink.records[3:7]] == [0.05, 0.05, 0.2, 0.2]
    assert any(
        "learning_rate=0.3, sigma=0.2 from generation 5, set by ada@host" in note
        for note in sink.notes
    )


def test_a_budget_can_be_shortened_while_the_run_goes_on() -> None:
    outcome, _ = asked(ask(SET, settings={"generations": 4}), generations=1000)
    assert outcome.state.generation == 4


def test_changes_survive_a_resume() -> None:
    request = ask(SET, settings={"learning_rate": 0.3}, generation=4)
    whole, _ = asked(request)
    half, _ = asked(request, generations=3)
    state = replace(half.state, stage="training", reason="")
    outcome, _ = run_ring(quick_config(**QUAD_RUN), state=state)
    assert outcome.digest == whole.digest


def test_a_paused_ring_stands_still_until_it_is_let_go_on() -> None:
    server, sink = MemoryServer(commands=[ask(PAUSE).encode()]), Sink()
    done: list[Any] = []
    ring = threading.Thread(
        target=lambda: done.append(
            run_ring(quick_config(**{**QUAD_RUN, "generations": 6}), server=server, sink=sink)[0]
        ),
        daemon=True,
    )
    ring.start()
    assert eventually(lambda: server.progress.get("state") == PAUSED)
    assert eventually(lambda: not server.todo), "nothing is left to claim"
    generations = len(sink.records)
    with server.changed:
        server.changed.wait_for(lambda: len(sink.records) > generations + 1, 0.5)
    assert len(sink.records) <= generations + 1 and not done
    server.commands.append(ask(CONTINUE, 2).encode())
    ring.join(20)
    assert done and done[0].digest == asked(generations=6)[0].digest
    assert done[0].state.counters.seconds < 20


def test_a_request_to_stop_interrupts_the_ring() -> None:
    with pytest.raises(Interrupted):
        asked(ask(STOP), generations=10**6)
