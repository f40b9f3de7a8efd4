"""The simulated cluster's pure parts: its bytes are a worker's, its answers count, its model is
sound.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import redis

from es_queue.config.resolution import resolve
from es_queue.config.run_config import ASYNC
from es_queue.numerics.slot_plan import max_slots
from es_queue.protocol import messages
from es_queue.protocol.messages import Block, Task
from es_queue.protocol.redis_channel import RedisWorkerChannel
from master.cli.options import parse_command_line
from master.collect.answer_check import ResultShape
from master.collect.ledger import AnswerChecker, Ledger
from tests.cases import each_case
from tests.ring import QUICK
from tools.benchmarks.cluster import advice, scale_table
from tools.benchmarks.cluster.live import WALKER, configuration, flags, population_for
from tools.benchmarks.cluster.services import Services, least_squares
from tools.benchmarks.cluster.simulation.connections import Loop
from tools.benchmarks.cluster.simulation.discrete_events import bound, simulated
from tools.benchmarks.cluster.simulation.durations import (
    CONSTANT,
    HEAVY,
    KINDS,
    RECORDED,
    SLOW_STEP,
    Durations,
    recorded_pairs,
    slow_pairs,
)
from tools.benchmarks.cluster.simulation.simulated_worker import Cost, Host, Shared, Worker
from tools.benchmarks.cluster.simulation.wire_format import (
    Commands,
    Incomplete,
    first_error,
    parsed,
)

PUBLICATION, NAME, RQ = "0.1-00000000", "host0-1-abcdef", "rq-name"
ABOUT = {"host": "host0", "pid": "1", "block": ""}
NOTHING = Services(
    0.0,
    0.0,
    0.0,
    0.0,
    0.0,
    0.0,
    0.0,
    0.0,
    (0, 0),
    (0, 0, 0),
    0.0,
    (0, 0, 0),
    (0, 0, 0),
    (0, 0, 0),
    (0, 0, 0),
    0.0,
    0.0,
    (0, 0),
    (0, 0, 0),
)
NOTHING_EACH = replace(NOTHING, read=(1e-9, 0, 0))


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
    """What a worker's channel sends in ``call``."""
    sent: list[bytes] = []
    pool = redis.ConnectionPool(connection_class=Told, sent=sent, answers=answers)
    call(RedisWorkerChannel(redis.Redis(connection_pool=pool), "run", NAME, RQ))
    assert not answers
    return b"".join(sent)


def commands() -> Commands:
    return Commands("run", NAME, RQ, ABOUT, 5.0)


BLOCK = Block(PUBLICATION, messages.TRAIN, 0, 3)
QUEUED = [b"OK", b"QUEUED", b"QUEUED", b"QUEUED"]
SAME: dict[str, tuple[tuple[bytes, int], Any, list[Any]]] = {
    "claimed": (commands().held_blocks, lambda channel: channel.held_blocks(), [[]]),
    "claim": (commands().claim(0.25), lambda channel: channel.claim(0.25), [str(BLOCK).encode()]),
    "task": (commands().task, lambda channel: channel.task(), [b"task"]),
    "orders": (
        commands().poll_flags(PUBLICATION),
        lambda channel: channel.poll_flags(PUBLICATION),
        [[None] * 3, 0, 0, 1, 1],
    ),
    "parameters": (
        commands().parameters(PUBLICATION, 0, 9),
        lambda channel: channel.parameters(PUBLICATION, 9),
        [b"x" * 9],
    ),
    "answer": (
        commands().answer(PUBLICATION, str(BLOCK), b"bytes"),
        lambda channel: channel.answer(BLOCK, b"bytes"),
        [*QUEUED, [b"1-0", 1, []]],
    ),
    "drop": (commands().drop(str(BLOCK)), lambda channel: channel.drop(BLOCK), [1]),
    "beat": (
        (commands().alive[0] + commands().beat[0], commands().alive[1] + commands().beat[1]),
        lambda channel: channel.beat(ABOUT, 5.0),
        [1, 1, b"OK", *[b"QUEUED"] * 4, [0, 1, 0, 1]],
    ),
}


@each_case("name", SAME)
def test_a_simulated_worker_sends_what_a_workers_channel_sends_and_awaits_as_many_replies(
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


def test_the_master_accepts_a_simulated_workers_answers() -> None:
    config = replace(configuration(20, 1, WALKER), noise_size=2**18)
    most = max_slots(config, 2)
    expectations = AnswerChecker(config, 0, ResultShape(100, 2, 24), most)
    ledger = Ledger(PUBLICATION, expectations, {messages.TRAIN: 10, messages.CENTRE: 1})
    shared = Shared(Loop(), QUICK, {}, Cost(), np.zeros(24, "<f8").tobytes())
    worker = Worker(shared, NAME, Host(), None, None, commands())  # type: ignore[arg-type]
    for kind, stop in ((messages.TRAIN, 10), (messages.CENTRE, 1)):
        assert ledger.accept(worker._make_answer(PUBLICATION, kind, 0, stop, 0.5, expectations)), (
            ledger.refused
        )
    assert ledger.is_complete()


def test_the_command_line_gives_the_configuration() -> None:
    config = configuration(128, 3, WALKER)
    values, launch = parse_command_line([*flags(config), "--redis-url", "redis://localhost"])
    found = resolve(values)
    assert {
        name: getattr(found, name)
        for name in (
            "env",
            "population",
            "generations",
            "policy",
            "strategy",
            "eval_every",
            "env_arg",
        )
    } == {
        name: getattr(config, name)
        for name in (
            "env",
            "population",
            "generations",
            "policy",
            "strategy",
            "eval_every",
            "env_arg",
        )
    }
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


def test_least_squares_finds_what_made_the_figures_and_nothing_below_zero() -> None:
    sizes = [[1.0, 10.0], [50.0, 5.0], [1000.0, 400.0], [7.0, 900.0]]
    exact = [2e-3 + 1e-5 * first + 3e-6 * second for first, second in sizes]
    assert least_squares(sizes, exact) == pytest.approx((2e-3, 1e-5, 3e-6))
    falling = least_squares([[1.0], [2.0], [3.0]], [3.0, 2.0, 1.0])
    assert min(falling) >= 0


def test_a_cluster_without_service_times_loses_the_end_of_a_generation_alone() -> None:
    found = simulated(
        20, Durations(RECORDED), population_for(20, Durations(RECORDED).mean()), NOTHING
    )
    assert 0.98 < found["efficiency"] <= 1.0


def test_no_simulated_cluster_is_more_efficient_than_its_bound() -> None:
    found = simulated(50, Durations(HEAVY), 1000, NOTHING)
    assert found["efficiency"] <= found["bound"] == bound(50, Durations(HEAVY), 1000, 3)


def test_a_slow_master_makes_a_simulated_cluster_wait() -> None:
    quick = simulated(20, Durations(CONSTANT), 2000, NOTHING)
    slow = simulated(20, Durations(CONSTANT), 2000, replace(NOTHING, close=(1.0, 0.0, 0.0)))
    assert slow["gap"] >= 1.0 > quick["gap"]
    assert slow["efficiency"] < quick["efficiency"]


def test_a_simulated_cluster_is_the_same_each_time() -> None:
    assert simulated(30, Durations(HEAVY), 400, scale_table.shipped()) == simulated(
        30, Durations(HEAVY), 400, scale_table.shipped()
    )


def test_advice_names_what_limits_the_workers() -> None:
    services = scale_table.shipped()
    assert advice.carried(advice.Case(1_000, 1_000, 0.02), services)[1] == advice.SHORT
    overrun = replace(services, read=(services.read[0], 0.01, 0.0))
    workers, why = advice.carried(advice.Case(1_000, 1_000_000, 1.0), overrun)
    assert why == advice.MASTER
    assert workers < advice.carried(advice.Case(1_000, 1_000_000, 1.0), services)[0]


def test_more_workers_than_a_population_has_pairs_are_no_advice() -> None:
    for seconds in advice.EPISODES:
        workers, why = advice.carried(advice.Case(1_000, 1_000, seconds), NOTHING_EACH, ASYNC)
        assert (workers, why) == (500, advice.FEW)


def test_the_advice_has_a_cell_for_each_kind_of_run() -> None:
    page = advice.page(scale_table.shipped())
    table = [line for line in page.splitlines() if line.startswith("| ")]
    assert len(table) == 2 * (1 + len(advice.PARAMETERS) * len(advice.POPULATIONS))
    assert all(line.count("|") == 3 + len(advice.EPISODES) for line in table)


class Heard(Worker):
    """A simulated worker whose requests are kept, to be answered by the test."""

    def __init__(self, host: Host, shared: Shared, asked: list[tuple[str, Any]]) -> None:
        super().__init__(shared, NAME, host, None, None, commands())  # type: ignore[arg-type]
        self.heard, self.played = asked, list[str]()

    def _ask(self, name: str, request: tuple[bytes, int], then: Any, link: Any = None) -> None:
        self.heard.append((name, then))

    def _checked(self, size: int, play: Any) -> None:
        play()

    def _play(self, block: str) -> None:
        self.played.append(block)


def test_large_parameters_and_their_header_are_asked_for_once_a_host() -> None:
    asked: list[tuple[str, Any]] = []
    host, shared = Host(), Shared(Loop(), QUICK, {}, Cost(), b"")
    four = [Heard(host, shared, asked) for _ in range(4)]
    for number, headers in (
        (1, 4),
        (2, 1),
    ):  # in the first publication nobody knows yet that they are large
        task = Task(f"{number}.1-00000000", 0.1, 10, 2**17, "0" * 32, b"", b"", "0" * 32, 0.3)
        names = []
        block, late = f"{task.publication} train 0 1", four[1:]
        four[0]._work(block)
        while asked:
            name, then = asked.pop(0)
            names.append(name)
            if (
                name == "parameters"
            ):  # the others come while the first one fetches, and get ahead of it
                for worker in late:
                    worker._work(block)
                late = []
                while asked and asked[0][0] == "task":
                    names.append("task")
                    asked.pop(0)[1]([task.encode()])
            then([task.encode()] if name == "task" else [b""])
        assert names.count("task") == headers and names.count("parameters") == 1
        assert [len(worker.played) for worker in four] == [number] * 4
