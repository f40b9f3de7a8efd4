"""What is lost, dead or overdue is issued again: the collector's second chances."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from es_queue.errors import FencedError
from es_queue.protocol.memory_channel import MemoryMasterChannel, MemoryWorkerChannel
from es_queue.protocol.messages import Block
from master.collect import collector as module
from master.collect.blocks.stragglers import STRAGGLER_CHECK_SECONDS, DirectIssue
from master.collect.ledger import Ledger
from tests.ring import QUICK
from tests.unit.master.collect.collector_bench import (
    ALL,
    PARAMETERS,
    PUBLICATION,
    Bench,
    all_but_one_block,
)

# --- loss


@pytest.mark.parametrize("lose", ["flush", "parameters", "stream", "task"])
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
    assert bench.server.claims["slow-1-abcdef"] and bench.ledger.recovered == 0


def test_a_dead_workers_blocks_are_issued_again() -> None:
    bench = Bench().open()
    worker = bench.worker()
    worker.claim(0), worker.claim(0)
    worker.depart()
    bench.tick()
    assert (
        bench.todo() == ALL[:2] + ALL[2:]
        and bench.ledger.recovered == 1
        and bench.ledger.reissued == 3
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
    assert bench.todo() == ["train 0 1", "train 1 2"] and bench.ledger.reissued == 2
    quick = MemoryWorkerChannel(bench.server, "quick-1-abcdef")
    assert quick.claim(0) and quick.claim(0)
    bench.server.lives["third-1-abcdef"] = ({}, now[0] + 60)  # idle, but the copy was made
    bench.server.workers.add("third-1-abcdef")
    bench.tick()
    assert bench.todo() == [] and bench.ledger.reissued == 2
    now[0] += (
        10 * QUICK.overdue
    )  # now the copies are overdue as well: the next ones are for an idle worker alone
    bench.server.lives = {
        name: (about, now[0] + 60) for name, (about, _) in bench.server.lives.items()
    }
    bench.tick()
    assert bench.todo() == [] and bench.ledger.reissued == 4
    assert bench.server.claims["third-1-abcdef"] == [f"{PUBLICATION} train 0 2"]


def test_copies_of_what_a_hoarder_takes_go_to_idle_workers_after_waits_that_double(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench().open()
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    all_but_one_block(bench)
    bench.tick()
    given: list[float] = []
    while len(given) < 4:
        now[0] += QUICK.overdue / 10
        hoard = [bench.server.todo.pop() for _ in bench.todo()]
        bench.server.claims["slow-1-abcdef"] += hoard
        bench.server.lives = {
            name: (about, now[0] + 60) for name, (about, _) in bench.server.lives.items()
        }
        bench.tick()
        if bench.server.claims.get("quick-1-abcdef"):
            given.append(now[0])
            bench.server.claims["slow-1-abcdef"] += bench.server.claims.pop("quick-1-abcdef")
        assert now[0] < 100 + 100 * QUICK.overdue, given
    waits = [after - before for before, after in pairwise(given)]
    assert [round(wait / waits[0]) for wait in waits] == [1, 2, 4]


def test_what_is_taken_from_todo_again_and_again_is_given_to_an_idle_worker() -> None:
    bench = Bench(strict=True)
    bench.collector.fleet.restore("1" * 32, None)
    bench.open()
    honest, other = (
        bench.worker("honest", numerics="1" * 32),
        bench.worker("other", numerics="2" * 32),
    )
    for _ in range(4):
        while other.claim(0.0) is not None:  # it is dismissed, and goes on claiming
            pass
        bench.tick()
    assert [str(block).removeprefix(PUBLICATION + " ") for block in honest.held_blocks()] == [
        "centre 0 1",
        "train 0 2",
        "train 2 3",
    ]


@pytest.mark.parametrize("keeps", [False, True], ids=["drops them", "keeps them"])
def test_where_somebody_takes_every_block_the_next_publication_is_given_by_name_at_once(
    keeps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, now = Bench(), [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    honest, hoarder = bench.worker("honest"), bench.worker("hoarder")
    seconds, todo = list[float](), list[int]()
    for generation in range(3, 9):
        publish_next(bench, generation)
        todo.append(len(bench.server.todo))
        began = now[0]
        while not bench.ledger.is_complete():
            while (taken := bench.server.todo and hoarder.claim(0.0)) and not keeps:
                hoarder.drop(taken)
            for block in honest.held_blocks():
                bench.answer(honest, block)
            bench.tick()
            now[0] += QUICK.overdue
            bench.present({name: ({}, now[0] + 60) for name in (honest.worker, hoarder.worker)})
            assert now[0] < 100 + 1000 * QUICK.overdue
        seconds.append(now[0] - began)
    assert [count == 0 for count in todo] == [False, True, False, True, True, False]
    assert max(seconds[1], *seconds[3:5]) < min(seconds[0], seconds[2], seconds[5]) / 2


@pytest.mark.parametrize("answered", [False, True])
def test_a_slow_worker_that_answers_is_nobody_who_takes_every_block(answered: bool) -> None:
    direct, held = DirectIssue(), Block(PUBLICATION, "train", 0, 2)
    for count in (0, 1, 1 + answered):
        direct.begin({"slow": count, "quick": 10 * count})
    direct.record_copies([("train", 1)], {"slow": (held,), "quick": ()}, {"slow": 1 + answered})
    direct.begin({"slow": 1 + answered, "quick": 99})
    assert direct.is_on is not answered


def test_no_worker_is_given_more_blocks_at_once_than_reconcile_looks_at() -> None:
    direct = DirectIssue()
    direct.begin({"a": 1})
    for _ in range(3):
        direct.record_unclaimed([("train", 0)])
    direct.begin({"a": 2})
    blocks = iter([Block(PUBLICATION, "train", slot, slot + 1) for slot in range(500)])
    shares = direct.share_blocks(blocks, ["a"])
    assert 0 < len(shares["a"]) <= 100
    assert len(shares["a"]) + len(list(blocks)) == 500, "the others go to todo"


def test_slots_that_workers_lose_one_after_the_other_are_nobodys_doing() -> None:
    direct = DirectIssue()
    for slot in range(9):
        direct.record_unclaimed([("train", slot), ("train", slot + 1)])
    direct.begin({"a": 1})
    assert not direct.is_on
    for _ in range(3):
        direct.record_unclaimed([("train", 0)])
    direct.begin({"a": 2})
    blocks = [Block(PUBLICATION, "train", slot, slot + 1) for slot in range(3)]
    assert direct.is_on and direct.share_blocks(blocks, ["a", "b"]) == {"a": blocks}
    assert direct.share_blocks(blocks, ["b"]) == {}, "of those that answer nobody is there"


def publish_next(bench: Bench, generation: int) -> None:
    """Another publication of the bench's run."""
    publication = f"{generation}.1-00000000"
    bench.ledger = Ledger(
        publication, bench.ledger.checker, bench.ledger.required, bench.collector.context
    )
    bench.what = replace(bench.what, publication=publication)
    bench.open()


def test_a_worker_that_holds_blocks_for_longer_than_any_may_and_answers_none_gets_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench().open()
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    all_but_one_block(bench)
    bench.worker("busy").claim(0)
    bench.server.claims["busy-1-abcdef"] = [f"{PUBLICATION} train 0 2"]
    late = bench.scheduler.patience(Block(PUBLICATION, "train", 0, 2)) + 1
    for wait in (0.0, late - 2, 2.0):
        now[0] += wait
        bench.server.lives = {
            name: (about, now[0] + 60) for name, (about, _) in bench.server.lives.items()
        }
        assert bench.notes == []
        if wait == late - 2:  # what counts says that it works
            bench.collector.context.answers["busy-1-abcdef"] += 1
        bench.tick()
    assert len(bench.notes) == 1 and bench.notes[0].startswith(
        "worker slow-1-abcdef has held blocks for "
    )
    assert bench.collector._reissuer._silent.names == {"slow-1-abcdef"}
    bench.tick()
    assert (
        not bench.server.claims.get("slow-1-abcdef")
        and bench.server.progress["give_way"] == "slow-1-abcdef"
    )
    bench.server.lives.pop("slow-1-abcdef")
    bench.tick()
    assert bench.server.attempts == {} and bench.ledger.recovered == 0, (
        "that it has gone is no sign that a slot kills workers"
    )
    assert bench.collector._reissuer._silent.names == set()


def test_a_generations_end_is_looked_at_more_often_once_somebody_is_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(clocks=replace(QUICK, renew=1.0, reconcile=1.0, overdue=0.5)).open()
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    bench.tick()
    assert bench.collector._next_tick == now[0] + 1.0
    all_but_one_block(bench)
    bench.tick()
    assert bench.collector._next_tick == now[0] + STRAGGLER_CHECK_SECONDS


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
