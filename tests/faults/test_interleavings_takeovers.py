"""Interleavings of a takeover: what the former master did last, and what the next one must know of
it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis

import master.run.run as run_module
import master.run.session as session_module
from es_queue.errors import FencedError
from es_queue.protocol import messages
from es_queue.protocol.channel import RUNNING, PublishRequest
from es_queue.protocol.messages import Answer, Block, token_number
from master.fleet.seat_manager import SeatManager
from master.run.launch import Launch
from master.run.lease import take_lease
from master.run.run import TrainingRun
from master.run.session import Session
from master.storage import checkpoint
from master.storage.checkpoint import Checkpoints
from tests.contract.places import P0, P2, RUN, TOKEN, RedisPlace
from tests.faults.bench import PUBLICATION, Bench
from tests.integration.processes import Heard
from tests.memory_channel import MemoryWorkerChannel
from tests.parts import setup_of, trained
from tests.ring import QUICK

SETUP = setup_of("pgpe")


def saved(generation: int, epoch: int = 1) -> bytes:
    state = replace(trained(SETUP), generation=generation, stage="training", epoch=epoch)
    return checkpoint.encode(
        SETUP.config,
        SETUP.spec,
        RUN,
        state,
        SETUP.strategy.centre(SETUP.strategy.published(state.strategy)),
    )


@pytest.fixture
def place(redis_client: redis.Redis) -> RedisPlace:
    return RedisPlace(redis_client)


def claimed(worker: MemoryWorkerChannel) -> Block:
    found = worker.claim(0.0)
    assert found is not None
    return found


# --- 1.11


def test_the_checkpoint_of_a_woken_master_hides_no_newer_one(tmp_path: Path) -> None:
    Checkpoints(tmp_path).save(9, saved(9))
    Checkpoints(tmp_path).save(5, saved(5))
    assert Checkpoints(tmp_path).read_newest() == saved(9)


# --- 1.12, 1.27


def resumed(monkeypatch: pytest.MonkeyPatch, url: str, folder: Path) -> int:
    """The generation that a session which resumes the run would publish first."""
    generations: list[int] = []

    def run(self: TrainingRun, state: Any, *_: object) -> dict[str, Any]:
        generations.append(state.generation)
        return {}

    monkeypatch.setattr(TrainingRun, "run", run)
    launch = Launch(url, 0, resume=RUN, run_dir=folder / RUN, noise_dir=folder / "noise")
    Session(launch, QUICK, lambda *_: Heard(), lambda: False).run(None, {})
    return generations[0]


def test_what_the_old_master_publishes_until_it_is_fenced_is_taken_over(
    monkeypatch: pytest.MonkeyPatch, place: RedisPlace, valkey_url: str, tmp_path: Path
) -> None:
    """It publishes between the new one's first look and the raising of the token; its next publish
    is refused.
    """
    old = place.publish(P0, checkpoint=saved(0, epoch=5))

    def late(*arguments: Any, **more: Any) -> str:
        old.stage(P2, b"12345678")
        old.publish(
            TOKEN,
            PublishRequest(P2, b"task", (), "{}", {"state": RUNNING}, checkpoint=saved(2, epoch=5)),
        )
        return take_lease(*arguments, **more)

    monkeypatch.setattr(session_module, "take_lease", late)
    assert resumed(monkeypatch, valkey_url, tmp_path) == 2
    with pytest.raises(FencedError):
        old.publish(TOKEN, PublishRequest(P2, b"task", (), "{}", {"state": RUNNING}))


def test_a_resumed_master_counts_on_from_the_token_of_its_checkpoint(
    monkeypatch: pytest.MonkeyPatch, place: RedisPlace, valkey_url: str, tmp_path: Path
) -> None:
    Checkpoints(tmp_path / RUN).save(4, saved(4, epoch=7))
    assert resumed(monkeypatch, valkey_url, tmp_path) == 4
    assert token_number(str(place.master().epoch())) == 8


def test_rq_does_not_end_a_seat_before_its_lease_and_its_longest_episode_are_over(
    monkeypatch: pytest.MonkeyPatch, place: RedisPlace, valkey_url: str, tmp_path: Path
) -> None:
    place.publish(P0, checkpoint=saved(0))
    timeouts: list[int] = []

    def make(
        client: redis.Redis, queue: str, run: str, nonce: str, timeout: int, *more: Any
    ) -> Any:
        timeouts.append(timeout)
        return SeatManager(client, queue, run, nonce, timeout, *more)

    monkeypatch.setattr(run_module, "SeatManager", make)
    resumed(monkeypatch, valkey_url, tmp_path)
    assert timeouts[0] >= QUICK.seat_lease + SETUP.config.wall_limit + QUICK.seat_margin


# --- 1.19, 1.21


def test_an_entry_that_is_read_again_is_neither_refused_nor_deleted() -> None:
    bench = Bench().open()
    worker = bench.worker()
    bench.answer(worker, claimed(worker))
    bench.collector.drain(bench.ledger, 0)
    worker.drop(claimed(worker))
    bench.tick()  # it owes, so the cursor goes back
    bench.collector.drain(bench.ledger, 0)
    assert bench.ledger.refused == {} and len(bench.server.results[PUBLICATION]) == 2


def fail(bench: Bench, attempt: int) -> None:
    """The slot is played and fails, as its worker reports."""
    worker = bench.worker()
    answer = Answer(
        PUBLICATION, messages.TRAIN, worker.worker, 0.1, (), ((0, f"attempt {attempt}"),)
    )
    assert worker.answer(Block(PUBLICATION, messages.TRAIN, 0, 1), answer.encode())
    bench.collector.drain(bench.ledger, 0)


def test_a_poisoned_slot_does_not_begin_anew_with_each_takeover() -> None:
    bench = Bench().open()
    for attempt in range(3):
        fail(bench, attempt)
        following = Bench(server=bench.server).open(adopted=True)
        following.collector.drain(following.ledger, 0)
        bench = following
    assert bench.ledger.failures.slots == {(messages.TRAIN, 0)}


def test_deaths_are_counted_on_by_the_master_that_takes_over() -> None:
    bench = Bench().open()
    for number in range(2):
        worker = bench.worker(f"victim{number}")
        one = claimed(worker)
        worker.depart()
        bench.tick()
    following = Bench(server=bench.server).open(adopted=True)
    assert (one.kind, one.start) in following.ledger.reconcile_request(4, False, []).suspects


# --- 1.35


def test_a_takeover_in_the_middle_of_an_extension_asks_for_what_is_missing_alone() -> None:
    first = Bench().open()
    first.work(first.worker())
    first.collector.collect(first.ledger)
    first.ledger.require(messages.TRAIN, 9)
    first.collector.extend(first.ledger)
    worker = first.worker()
    first.answer(worker, claimed(worker))
    second = Bench(server=first.server).open(adopted=True)
    second.collector.collect(second.ledger)
    second.ledger.require(messages.TRAIN, 9)
    second.collector.extend(second.ledger)
    assert second.todo() == ["train 8 9"]
