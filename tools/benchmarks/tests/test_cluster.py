"""The simulated cluster's pure parts: its bytes are a worker's, and its results count."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import redis

from es_queue.config.recipes import resolve
from es_queue.numerics.noise_table import NoiseTable
from es_queue.protocol.messages import CENTRE, TRAIN, Block
from es_queue.protocol.store import WorkerStore
from es_queue.slots import Slots, Span, worker_mark
from master.cli.options import parse_command_line
from master.run.setup import prepare_run
from tests.cases import each_case
from tools.benchmarks.cluster.__main__ import WALKER, configuration, flags
from tools.benchmarks.cluster.durations import (
    KINDS,
    SLOW_STEP,
    Durations,
    recorded_pairs,
    slow_pairs,
)
from tools.benchmarks.cluster.fleet import Publication
from tools.benchmarks.cluster.wire_format import Commands, Incomplete, first_error, parsed

PUBLICATION, NAME, RQ = "0.1-00000000", "host0-1-abcdef", "rq-name"
ABOUT = {"host": "host0", "pid": "1", "block": ""}


class Told(redis.connection.AbstractConnection):
    """A connection that keeps what is sent and answers from a list."""

    def __init__(self, sent: list[bytes], answers: list[Any], **more: Any) -> None:
        super().__init__(**more)
        self._sent, self._answers = sent, answers

    def connect(self, *_: Any, **__: Any) -> None: ...

    def _connect(self) -> None: ...

    def _host_error(self) -> str:
        return "nowhere"

    def repr_pieces(self) -> list[Any]:
        return []

    def can_read(self, timeout: float = 0) -> bool:
        return False

    def send_packed_command(
        self, command: bytes | Iterable[bytes], check_health: bool = True
    ) -> None:
        self._sent.append(command if isinstance(command, bytes) else b"".join(command))

    def read_response(self, *_: Any, **__: Any) -> Any:
        return self._answers.pop(0)


def sent_by(call: Any, answers: list[Any]) -> bytes:
    """What a worker's store sends in ``call``."""
    sent: list[bytes] = []
    pool = redis.ConnectionPool(connection_class=Told, sent=sent, answers=answers)
    call(WorkerStore(redis.Redis(connection_pool=pool), "run", NAME, RQ))
    assert not answers
    return b"".join(sent)


def commands() -> Commands:
    return Commands("run", NAME, RQ, ABOUT, 5.0)


BLOCK = Block(PUBLICATION, TRAIN, 0, 3)
SAME: dict[str, tuple[tuple[bytes, int], Any, list[Any]]] = {
    "held": (commands().held_blocks, lambda store: store.held_blocks(), [[]]),
    "claim": (commands().claim(0.25), lambda store: store.claim(0.25), [str(BLOCK).encode()]),
    "task": (commands().task, lambda store: store.task(), [b"task"]),
    "flags": (
        commands().poll_flags(PUBLICATION),
        lambda store: store.poll_flags(PUBLICATION),
        [[None] * 3, 0, 0, 1, 1],
    ),
    "parameters": (
        commands().parameters(PUBLICATION, 0, 9),
        lambda store: store.parameters(PUBLICATION, 9),
        [b"x" * 9],
    ),
    "answer": (
        commands().answer(BLOCK, b"results", b"moments"),
        lambda store: store.answer(BLOCK, b"results", b"moments"),
        [[1, []]],
    ),
    "drop": (commands().drop(BLOCK), lambda store: store.drop(BLOCK), [1]),
    "beat": (
        (commands().alive[0] + commands().beat[0], commands().alive[1] + commands().beat[1]),
        lambda store: store.beat(ABOUT, 5.0),
        [1, 1, b"OK", *[b"QUEUED"] * 4, [0, 1, 0, 1]],
    ),
}


@each_case("name", SAME)
def test_a_simulated_worker_sends_what_a_workers_store_sends_and_awaits_as_many_replies(
    name: str,
) -> None:
    (data, count), call, answers = SAME[name]
    awaited = len(answers)
    assert sent_by(call, list(answers)) == data
    assert count == awaited


def test_a_reply_is_the_same_wherever_it_is_cut() -> None:
    data = b"*4\r\n:-12\r\n$-1\r\n*1\r\n+OK\r\n$3\r\nabc\r\n"
    assert parsed(data, 0) == ([-12, None, [b"OK"], b"abc"], len(data))
    for end in range(len(data)):
        with pytest.raises(Incomplete):
            parsed(data[:end], 0)


def test_an_error_is_found_in_a_transactions_reply() -> None:
    reply, _ = parsed(b"*2\r\n:1\r\n-OOM no memory\r\n", 0)
    assert first_error([b"OK", reply]) == "OOM no memory"


def test_the_master_accepts_a_simulated_workers_results() -> None:
    config = replace(configuration(20, 1, WALKER), noise_size=2**18)
    setup = prepare_run(config, table=NoiseTable.in_memory(2**18))
    spans = [Span(CENTRE, 0, 1), Span(TRAIN, 0, 10)]
    slots = Slots(setup.config, setup.strategy, setup.spec, 0, spans)
    played = Publication(Slots(setup.config, setup.strategy, setup.spec, 0), np.ones(10))
    played.grow_to(spans[:1])
    played.grow_to(spans)
    for first, stop in ((0, 1), (1, 5), (5, 11)):
        results, moments = played.records(Block(PUBLICATION, TRAIN, first, stop), worker_mark(NAME))
        slots.accept(
            np.frombuffer(results, slots.shape.result), np.frombuffer(moments, slots.shape.moments)
        )
    assert slots.is_complete(), slots.tally.refused
    assert played.length(Block(PUBLICATION, TRAIN, 1, 5)) == 4


def test_the_command_line_gives_the_configuration() -> None:
    config = configuration(128, 3, WALKER)
    values, launch = parse_command_line([*flags(config), "--redis-url", "redis://localhost"])
    found, names = resolve(values), ("env", "population", "generations", "policy", "strategy")
    for name in (*names, "eval_every", "env_arg"):
        assert getattr(found, name) == getattr(config, name)
    assert launch.redis_url


@each_case("kind", KINDS)
def test_durations_are_a_function_of_seed_generation_and_slot(kind: str) -> None:
    one, other = Durations(kind, 3).slots(2, 4000), Durations(kind, 3).slots(2, 4000)
    assert (one == other).all()
    assert one.min() > 0
    assert abs(one.mean() / 2 - Durations(kind).mean()) < 0.1 * Durations(kind).mean()


def test_a_slower_physics_has_the_recorded_episodes_cut_at_twice_their_mean_length() -> None:
    slow, recorded = slow_pairs() / SLOW_STEP, recorded_pairs()
    steps = recorded / recorded.min() * slow.min()
    assert slow.max() == pytest.approx(2 * steps.mean())
    assert slow[steps < slow.max()] == pytest.approx(steps[steps < slow.max()])


def test_the_recorded_durations_are_pairs_of_whole_episodes() -> None:
    pairs = recorded_pairs()
    assert pairs.shape[1] == 2
    assert pairs.min() > 0
    assert pairs.max() < 60
