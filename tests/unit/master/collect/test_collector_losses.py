"""What is lost, dead or overdue is issued again: the collector's second chances."""

from __future__ import annotations

from dataclasses import replace

import pytest

from es_queue.errors import FencedError
from master.collect import collector as module
from master.collect.blocks.stragglers import STRAGGLER_CHECK_SECONDS
from master.collect.ledger import Ledger
from tests.cases import each_case
from tests.memory_channel import MemoryMasterChannel, MemoryWorkerChannel
from tests.ring import QUICK
from tests.unit.master.collect.collector_bench import (
    ALL,
    PARAMETERS,
    PUBLICATION,
    Bench,
    all_but_one_block,
)

# --- loss


@each_case("lose", ["flush", "parameters", "stream", "task"])
def test_what_redis_lost_is_published_again_without_what_is_answered(lose: str) -> None:
    bench = Bench().open()
    worker = bench.worker()
    worker.claim(0), bench.answer(worker, worker.claim(0))  # train 0 2 is answered
    bench.collector.drain(bench.ledger, 0)
    {
        "flush": bench.server.flush,
        "parameters": bench.server.parameters.clear,
        "stream": bench.server.results.clear,
        "task": lambda: setattr(bench.server, "task", None),
    }[lose]()
    bench.tick()
    held = (
        ["centre 0 1"] if lose != "parameters" else []
    )  # its worker still holds it when only the parameters went
    assert bench.todo() == [*held, "train 2 4", "train 4 6"]
    assert bench.server.parameters == {PUBLICATION: PARAMETERS} and bench.server.task == b"task"
    assert len(bench.notes) == 1 and "published again" in bench.notes[0]
    for block in worker.held_blocks():
        bench.answer(worker, block)
    bench.work(bench.worker())
    bench.collector.collect(bench.ledger)
    assert bench.ledger.is_complete()


def test_after_a_loss_nobody_is_declared_dead_at_once() -> None:
    bench = Bench().open()
    bench.server.flush()
    bench.tick()
    bench.server.workers.add("slow-1-abcdef")  # it claimed, but has not beaten since
    bench.server.claims["slow-1-abcdef"] = [bench.server.todo.pop()]
    bench.tick()
    assert bench.server.claims["slow-1-abcdef"] and bench.ledger.tally.recovered == 0


def test_a_dead_workers_blocks_are_issued_again() -> None:
    bench = Bench().open()
    worker = bench.worker()
    worker.claim(0), worker.claim(0)
    worker.depart()
    bench.tick()
    assert (
        bench.todo() == ALL[:2] + ALL[2:]
        and bench.ledger.tally.recovered == 1
        and bench.ledger.tally.reissued == 3
    )


def test_another_master_ends_this_one() -> None:
    bench = Bench().open()
    MemoryMasterChannel(bench.server).renew("2-11111111", "other", 10, {}, {})
    with pytest.raises(FencedError):
        bench.collector.collect(bench.ledger)


# --- stragglers


def test_an_overdue_block_is_issued_once_more_slot_by_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench().open()
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    all_but_one_block(bench)
    bench.tick()
    now[0] += QUICK.overdue * 0.9
    bench.tick()
    assert bench.todo() == []
    now[0] += QUICK.overdue * 0.2
    bench.server.lives = {
        name: (about, now[0] + 60) for name, (about, _) in bench.server.lives.items()
    }
    bench.tick()
    assert bench.todo() == ["train 0 1", "train 1 2"] and bench.ledger.tally.reissued == 2
    quick = MemoryWorkerChannel(bench.server, "quick-1-abcdef")
    assert quick.claim(0) and quick.claim(0)
    bench.server.lives["third-1-abcdef"] = ({}, now[0] + 60)  # idle, but the copy was made
    bench.server.workers.add("third-1-abcdef")
    bench.tick()
    assert bench.todo() == [] and bench.ledger.tally.reissued == 2
    now[0] += 10 * QUICK.overdue  # now the copies are overdue as well
    bench.server.lives = {
        name: (about, now[0] + 60) for name, (about, _) in bench.server.lives.items()
    }
    bench.tick()
    assert bench.todo() == [] and bench.ledger.tally.reissued == 2


def publish_next(bench: Bench, generation: int) -> None:
    """Another publication of the bench's run."""
    publication = f"{generation}.1-00000000"
    bench.ledger = Ledger(
        publication, bench.ledger.checker, bench.ledger.required, bench.collector.context
    )
    bench.what = replace(bench.what, publication=publication)
    bench.open()


def test_a_generations_end_is_looked_at_more_often_once_somebody_is_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(clocks=replace(QUICK, renew=1.0, reconcile=1.0, overdue=0.5)).open()
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    bench.tick()
    assert bench.next_tick == now[0] + 1.0
    all_but_one_block(bench)
    bench.tick()
    assert bench.next_tick == now[0] + STRAGGLER_CHECK_SECONDS


def test_nothing_is_issued_twice_while_nobody_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench().open()
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    all_but_one_block(bench)
    MemoryWorkerChannel(bench.server, "quick-1-abcdef").depart()
    bench.tick()
    now[0] += 50
    bench.tick()
    assert bench.todo() == []
