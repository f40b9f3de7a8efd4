"""The asynchronous schedule over the in-memory ring: nobody is waited for, nothing counts twice, a
replay repeats it.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from es_queue.config.parsing import config_from_values
from es_queue.config.run_config import RunConfig
from es_queue.errors import EnvironmentFailure, UsageError
from es_queue.numerics.noise_table import NoiseTable
from es_queue.protocol.messages import Answer, Block, Task
from master.collect.collector import Interrupted
from master.loop.listeners import Outcome
from master.loop.schedule import AsynchronousSchedule, ClosingSchedule, make_schedule
from master.loop.state import RunState
from master.run.setup import prepare_run
from master.storage import checkpoint, replay_log
from master.storage.checkpoint import Checkpoints
from master.storage.generation_store import GenerationStore
from master.storage.replay import replay_run
from master.storage.replay_log import ReplayStep, list_log_files, read_frames
from tests.cases import each_case
from tests.memory_channel import MemoryServer, MemoryWorkerChannel
from tests.ring import QUICK, Sink, collector_of, make_loop, quick_config, run_ring, workers
from tests.tiny import MOODY, QUAD, eventually
from workers.episode import EpisodeControl
from workers.join import join

TABLE = NoiseTable.in_memory(2**16)
PAIRS = 4
Use = tuple[str, int]


def config_of(**values: Any) -> RunConfig:
    plain = {
        "env": QUAD,
        "strategy": "pgpe",
        "population": 2 * PAIRS,
        "generations": 8,
        "eval_every": 3,
        "eval_episodes": 4,
        "final_episodes": 4,
        "target_reward": "none",
        "noise_size": TABLE.size,
        "schedule": "async",
    }
    return quick_config(**{**plain, **values})


def logged(folder: Path, config: RunConfig, count: int = 3, **more: Any) -> tuple[Outcome, Sink]:
    sink = Sink()
    store = GenerationStore("memory", folder, 0)
    more |= {"sink": sink, "store": store, "checkpoints": Checkpoints(folder)}
    outcome, _ = run_ring(config, count, **more)
    store.log.close()
    assert not any("replay log" in note for note in sink.notes)
    return outcome, sink


def steps_in(folder: Path) -> list[ReplayStep]:
    return [
        ReplayStep.decode(frame.payload)
        for path in list_log_files(folder / "replay")
        for frame in list(read_frames(path, strict=True))[1:]
    ]


def uses_in(folder: Path) -> list[Use]:
    return [
        (name, slot)
        for step in steps_in(folder)
        for name, slots in step.used
        for slot in slots.tolist()
    ]


def assert_each_once(folder: Path, generations: int) -> None:
    steps = steps_in(folder)
    assert [step.generation for step in steps] == list(range(generations))
    assert all(len(step.fitness) == PAIRS for step in steps)
    twice = [use for use, count in Counter(uses_in(folder)).items() if count > 1]
    assert not twice


@each_case("count", [1, 4])
def test_every_batch_has_a_population_of_slots_none_of_them_twice_and_no_bits_are_promised(
    count: int, tmp_path: Path
) -> None:
    outcome, sink = logged(tmp_path, config_of(), count)
    assert_each_once(tmp_path, 8)
    assert outcome.state.reason == "generations" and not outcome.state.reproducible
    assert [record["population"] for record in sink.records[:8]] == [2 * PAIRS] * 8
    assert outcome.state.counters.env_steps == sum(
        record["steps_generation"] for record in sink.records
    )
    assert all(record["lag_mean"] >= 0 for record in sink.records[:8])


def test_an_evaluation_is_of_the_parameters_that_its_generation_published(tmp_path: Path) -> None:
    _, sink = logged(tmp_path, config_of(), 3)
    assert [record["generation"] for record in sink.records if record["eval_mean"] is not None] == [
        0,
        3,
        6,
        8,
    ]


@each_case("strategy", ["ars", "openai_es", "pgpe", "snes"])
def test_a_replay_from_the_order_of_use_has_the_same_digest(strategy: str, tmp_path: Path) -> None:
    outcome, _ = logged(
        tmp_path, config_of(strategy=strategy, sigma_schedule="exponential:0.9", generations=12), 4
    )
    assert any(len(step.used) > 1 for step in steps_in(tmp_path)), (
        "no batch has more than one publication"
    )
    said: list[str] = []
    assert replay_run("memory", tmp_path, tmp_path / "noise", said.append) == 0
    assert outcome.digest in said[0]


def test_a_replay_that_begins_in_the_middle_knows_the_older_publications(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_log, "FILE_BYTES", 4000)
    outcome, _ = logged(tmp_path, config_of(generations=30), 4)
    found = list_log_files(tmp_path / "replay")
    assert len(found) > 2
    found[0].unlink()
    said: list[str] = []
    assert replay_run("memory", tmp_path, tmp_path / "noise", said.append) == 0
    assert outcome.digest in said[0]


# --- a worker that is held back


class Hand:
    """A worker by hand: it claims one block and answers it when it is told to."""

    def __init__(self, server: MemoryServer, config: RunConfig) -> None:
        self.channel = MemoryWorkerChannel(server, "hand-1-00000a")
        self.joined = join(config, EpisodeControl(), table=TABLE)
        self.about = {"host": "hand", "numerics": self.joined.numerics}
        self.channel.arrive(self.about, 60.0)

    def claim(self) -> Block:
        """A training block of the newest publication, with its answer ready."""
        found: list[Block] = []

        def one() -> bool:
            block = self.channel.claim(0.01)
            if block is not None and block.kind == "train":
                found.append(block)
            elif block is not None:
                self.channel.drop(block)
            return bool(found)

        assert eventually(one, 20)
        raw = self.channel.task()
        assert raw is not None
        task = Task.decode(raw)
        data = self.channel.parameters(task.publication, 4 * task.size)
        assert data is not None and task.publication == found[0].publication
        self.answered: Answer = self.joined.evaluator.evaluate(
            task, np.frombuffer(data, "<f4"), found[0], self.channel.worker, lambda failure: None
        )
        return found[0]

    def answer(self, block: Block) -> bool:
        return self.channel.answer(block, self.answered.encode())


@contextmanager
def held_back(folder: Path, config: RunConfig) -> Iterator[tuple[Hand, Block, MemoryServer, Sink]]:
    """A run with three workers, and a block of its first generation in the hand of a fourth."""
    server, sink = MemoryServer(), Sink()
    store = GenerationStore("memory", folder, 0)
    setup = prepare_run(config, table=TABLE)
    hand = Hand(server, setup.config)
    loop = make_loop(setup, server, sink, store=store)
    thread = threading.Thread(target=loop.run, args=(setup.initial_state(),), daemon=True)
    thread.start()
    block = hand.claim()
    with workers(server, setup.config, TABLE, 3):
        yield hand, block, server, sink
        thread.join(60)
    store.log.close()
    assert not thread.is_alive()


def test_an_answer_that_is_late_counts_for_what_it_is(tmp_path: Path) -> None:
    with held_back(tmp_path, config_of(generations=200, eval_every=0, max_lag=100)) as (
        hand,
        block,
        _,
        sink,
    ):
        assert eventually(lambda: len(sink.records) >= 3, 30), "the others went on without it"
        assert hand.answer(block)
    uses = uses_in(tmp_path)
    assert {(block.publication, slot) for slot in range(block.start, block.stop)} <= set(uses)
    assert max(record["lag_max"] for record in sink.records if "lag_max" in record) >= 3
    assert len(uses) == len(set(uses))


def test_an_answer_later_than_the_lag_does_not_count_and_its_publication_is_closed(
    tmp_path: Path,
) -> None:
    with held_back(tmp_path, config_of(generations=40, eval_every=0, max_lag=2)) as (
        hand,
        block,
        server,
        sink,
    ):
        assert eventually(lambda: len(sink.records) >= 4, 30)
        assert (
            block.publication not in server.results and block.publication not in server.parameters
        )
        assert not hand.answer(block)
    assert (block.publication, block.start) not in uses_in(tmp_path)
    assert max(record["lag_max"] for record in sink.records if "lag_max" in record) <= 2


def test_a_publication_that_nobody_holds_is_closed_before_its_lag_is_over(tmp_path: Path) -> None:
    with held_back(tmp_path, config_of(generations=200, eval_every=0, max_lag=100)) as (
        hand,
        block,
        server,
        sink,
    ):
        assert eventually(lambda: len(sink.records) >= 2, 30)
        assert block.publication in server.results
        hand.channel.drop(block)
        assert eventually(lambda: block.publication not in server.results, 30)
        assert len(sink.records) < 100


# --- a takeover


def resumed_state(server: MemoryServer) -> RunState:
    assert server.checkpoint is not None
    return checkpoint.decode(server.checkpoint)[1]


@each_case("adopt", [True, False])
def test_a_takeover_counts_nothing_twice_and_goes_on_with_what_is_there(
    adopt: bool, tmp_path: Path
) -> None:
    config = config_of(generations=16, eval_every=0)
    server, sink, setup = MemoryServer(), Sink(), prepare_run(config, table=TABLE)
    with workers(server, setup.config, TABLE, 4):
        state, adopted = setup.initial_state(), None
        for until in (3, 7, 11, 16):
            store = GenerationStore("memory", tmp_path, 0)
            loop = make_loop(
                setup,
                server,
                sink,
                Checkpoints(tmp_path),
                store=store,
                interrupted=lambda until=until: until < 16 and len(sink.records) >= until,
            )
            try:
                outcome = loop.run(state, adopted)
            except Interrupted:
                state = resumed_state(server)
                adopted = server.progress["publication"] if adopt else None
            store.log.close()
    assert_each_once(tmp_path, 16)
    assert outcome.state.generation == 16
    said: list[str] = []
    assert (
        replay_run("memory", tmp_path, tmp_path / "noise", said.append) == 0
        and outcome.digest in said[0]
    )


def test_the_checkpoint_published_with_the_next_parameters_holds_what_a_batch_used() -> None:
    server = MemoryServer()
    seen: list[RunState] = []

    def look() -> bool:
        if server.checkpoint is not None:
            seen.append(resumed_state(server))
        return False

    run_ring(config_of(eval_every=0, generations=6), 4, server=server, interrupted=look)
    later = [state for state in seen if state.generation and state.stage == "training"]
    assert any(state.open for state in later)
    for state in later:
        assert all(0 < state.generation - one.generation <= 8 for one in state.open)
        assert all(
            one.counted.shape[1] == 2 and len(one.spread) == len(state.strategy["sigma"])
            for one in state.open
        )


def test_a_checkpoint_with_open_publications_is_read_as_it_was_written() -> None:
    setup = prepare_run(config_of(), table=TABLE)
    server = MemoryServer()
    run_ring(config_of(eval_every=0, generations=3), 2, server=server)
    state = resumed_state(server)
    data = checkpoint.encode(setup.config, setup.spec, "memory", state, setup.first_parameters())
    again = checkpoint.decode(data)[1]
    assert [(one.publication, one.step_limit) for one in again.open] == [
        (one.publication, one.step_limit) for one in state.open
    ]
    for one, other in zip(again.open, state.open, strict=True):
        assert (one.spread == other.spread).all() and (one.counted == other.counted).all()


# --- what ends and what is refused


def test_a_run_whose_episodes_all_fail_ends_with_a_reason() -> None:
    with pytest.raises(EnvironmentFailure, match=r"every episode of a (batch|generation) failed"):
        run_ring(
            config_of(
                env=MOODY, env_arg=(("fault", "all"),), eval_every=0, allow_nondeterministic=True
            ),
            2,
        )


def test_slots_that_fail_everywhere_are_the_worst_of_their_batch_and_the_run_goes_on(
    tmp_path: Path,
) -> None:
    outcome, sink = logged(
        tmp_path,
        config_of(
            env=MOODY, env_arg=(("fault", "some"),), eval_every=0, generations=12, population=32
        ),
        2,
    )
    assert outcome.state.generation == 12
    assert sum(record["failed"] for record in sink.records) > 0
    said: list[str] = []
    assert replay_run("memory", tmp_path, tmp_path / "noise", said.append) == 0


def test_the_target_ends_the_run_with_the_parameters_that_were_confirmed() -> None:
    quickly = {
        "strategy": "ars",
        "learning_rate": 0.1,
        "sigma": 0.2,
        "obs_norm": False,
        "target_reward": "-1",
        "generations": 60,
        "eval_every": 2,
    }
    outcome, sink = run_ring(config_of(**quickly), 3)
    assert outcome.state.reason == "target" and outcome.best.confirmed
    assert (
        outcome.best.generation == sink.records[-1]["generation"]
        and outcome.evaluation is not None
        and outcome.evaluation.mean > -1.2
    )


def test_a_paused_run_issues_nothing_until_it_goes_on() -> None:
    setup, server = prepare_run(config_of(), table=TABLE), MemoryServer()
    sink = Sink()
    loop = make_loop(setup, server, sink)
    requests = collector_of(loop).inbox
    requests.paused_by = "ada"
    thread = threading.Thread(target=loop.run, args=(setup.initial_state(),), daemon=True)
    thread.start()
    with workers(server, setup.config, TABLE, 2):
        assert eventually(
            lambda: bool(server.results) and not server.todo and not any(server.claims.values()), 20
        )
        assert not sink.records
        requests.paused_by = ""
        thread.join(60)
    assert not thread.is_alive() and len(sink.records) == 9


def test_the_newest_publication_always_has_blocks() -> None:
    setup, server = prepare_run(config_of(eval_every=0), table=TABLE), MemoryServer()
    loop, hand = make_loop(setup, server, Sink()), Hand(server, setup.config)
    book = loop._publish(setup.initial_state(), {}, None).ledger
    for answered in range(1, PAIRS):
        assert hand.answer(hand.claim())
        collector_of(loop).drain(book, 0.0)
        assert book.answer_counts() == (answered, PAIRS)
        assert any(" train " in entry for entry in server.todo), (
            f"nothing to do after {answered} answers"
        )
    assert any(Block.decode(entry).start >= PAIRS for entry in server.todo)


def test_what_is_answered_in_a_pause_has_nothing_issued_in_its_place() -> None:
    setup = prepare_run(config_of(), table=TABLE)
    loop = make_loop(setup, MemoryServer(), Sink())
    book = loop._publish(setup.initial_state(), {}, None).ledger
    collector = collector_of(loop)
    book.require("train", 1)
    collector.inbox.paused_by = "ada"
    collector.drain(book, 0.0)
    assert book.required["train"] == 1
    collector.inbox.paused_by = ""
    collector.drain(book, 0.0)
    assert book.required["train"] > 1


@each_case(
    ("values", "named"),
    [
        ({"min_steps": 100}, "min_steps"),
        ({"audit": 0.1}, "audit"),
        ({"rollback": True, "eval_episodes": 50}, "rollback"),
        ({"step_limit": "adaptive:100,0.5,1.5"}, "step_limit"),
        ({"step_limit": "mean:2"}, "step_limit"),
    ],
)
def test_what_needs_a_closed_generation_is_refused_in_one_sentence(
    values: dict[str, Any], named: str
) -> None:
    with pytest.raises(UsageError, match=rf"schedule is async, but .*{named}.* the schedule sync"):
        config_from_values({"env": QUAD, "schedule": "async", **values}, "the settings")
    config_from_values({"env": QUAD, "schedule": "sync", **values}, "the settings")


def test_a_lag_without_the_schedule_is_refused() -> None:
    with pytest.raises(
        UsageError, match="max_lag is 3, but schedule is sync, which does not use it"
    ):
        config_from_values({"env": QUAD, "max_lag": 3}, "the settings")


def test_the_settings_choose_the_schedule() -> None:
    for schedule, kind in (("sync", ClosingSchedule), ("async", AsynchronousSchedule)):
        assert type(make_schedule(replace(config_of(), schedule=schedule))) is kind


assert QUICK.reconcile < 1, "the ring's clocks are short"
