"""What is lost, dead or overdue is issued again: the collector's second chances."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from es_queue.errors import FencedError
from es_queue.protocol.messages import Block
from master.collect import collector as module
from master.collect.blocks import stragglers
from master.collect.blocks.stragglers import (
    MOST_STRIKES,
    STRAGGLER_CHECK_SECONDS,
    DirectIssue,
)
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
    now[0] += (
        10 * QUICK.overdue
    )  # now the copies are overdue as well: the next ones are for an idle worker alone
    bench.server.lives = {
        name: (about, now[0] + 60) for name, (about, _) in bench.server.lives.items()
    }
    bench.tick()
    assert bench.todo() == [] and bench.ledger.tally.reissued == 4
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
        "train 2 4",
        "train 4 6",
    ]


@pytest.mark.parametrize("keeps", [False, True], ids=["drops them", "keeps them"])
def test_somebody_who_takes_every_block_costs_a_run_a_small_part_of_its_time(
    keeps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, now = Bench(), [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(stragglers, "DIRECT_TIMES", 5)
    honest, hoarder = bench.worker("honest"), bench.worker("hoarder")
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for generation in range(3, 603):
        publish_next(bench, generation)
        began, is_direct = now[0], bool(honest.held_blocks())
        assert (not bench.server.todo) == is_direct, "nothing is there to be taken"
        while not bench.ledger.is_complete():
            while (taken := bench.server.todo and hoarder.claim(0.0)) and not keeps:
                hoarder.drop(taken)
            for block in honest.held_blocks():
                bench.answer(honest, block)
            bench.tick()
            now[0] += QUICK.overdue
            bench.present({name: ({}, now[0] + 60) for name in (honest.worker, hoarder.worker)})
            assert now[0] < 100 + 1000 * QUICK.overdue
        seconds[is_direct].append(now[0] - began)
    tries = seconds[False][MOST_STRIKES - 1 :]
    assert len(tries) > 2 and sum(tries) < 1.2 * sum(seconds[True]) / 5
    assert max(seconds[True]) < min(tries) / 2


def begun(*answers: dict[str, int]) -> DirectIssue:
    """After publications of a second each, with the answers that counted before each of them."""
    direct = DirectIssue()
    for second, counts in enumerate(answers):
        direct.begin(counts, float(second))
    return direct


def hoarded(*answers: dict[str, int]) -> DirectIssue:
    """The same, and in the last but one of them somebody took a slot again and again."""
    direct = begun(*answers[:-1])
    for _ in range(3):
        direct.record_unclaimed([("train", 0)])
    direct.begin(answers[-1], float(len(answers)))
    return direct


@pytest.mark.parametrize("answers", [0, 1], ids=["none", "late"])
def test_who_holds_blocks_for_long_takes_them_from_others_only_if_it_never_answers(
    answers: int,
) -> None:
    direct, held = DirectIssue(), Block(PUBLICATION, "train", 0, 2)
    for number in range(MOST_STRIKES):
        direct.begin({"slow": answers * number, "quick": number}, float(number))
        assert not direct.is_on, "once is no habit"
        for _ in range(MOST_STRIKES):
            counts = {"slow": answers * number, "quick": number}
            direct.record_copies([("train", 1)], {"slow": (held,), "quick": ()}, counts)
    direct.begin({"slow": 9 * answers, "quick": 9}, 9.0)
    assert direct.is_on is (answers == 0)


def test_no_worker_is_given_more_blocks_at_once_than_reconcile_looks_at() -> None:
    direct = hoarded({"a": 1}, {"a": 2})
    blocks = iter([Block(PUBLICATION, "train", slot, slot + 1) for slot in range(500)])
    shares = direct.share_blocks(blocks, ["a"])
    assert 0 < len(shares["a"]) <= 100
    assert len(shares["a"]) + len(list(blocks)) == 500, "the others go to todo"


def test_slots_that_workers_lose_one_after_the_other_are_nobodys_doing() -> None:
    direct = begun({})
    for slot in range(9):
        direct.record_unclaimed([("train", slot), ("train", slot + 1)])
    direct.begin({"a": 1}, 1.0)
    assert not direct.is_on
    assert hoarded({"a": 1}, {"a": 2}).is_on


def test_where_somebody_takes_every_block_those_that_answer_share_them() -> None:
    direct = hoarded({"a": 1, "b": 1, "c": 1}, {"a": 2, "b": 2, "c": 1})
    blocks = [Block(PUBLICATION, "train", slot, slot + 1) for slot in range(5)]
    shares = direct.share_blocks(iter(blocks), ["a", "b", "c"])
    assert shares == {"a": blocks[0::2], "b": blocks[1::2]}
    assert direct.share_blocks(iter(blocks[:1]), ["a", "b"]) == {"b": blocks[:1]}, "in turn"
    assert direct.share_blocks(iter(blocks), ["c"]) == {}, "nobody who answers is there"


def test_where_blocks_go_by_name_each_newcomer_gets_one_within_a_few_publications(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stragglers, "MOST_GIVEN", 2)
    silent, newcomers = [f"a{number}" for number in range(4)], ["new", "newer"]
    count = 2
    direct = hoarded({"old": 1}, {"old": count})
    for number in range(3):
        present = ["old", *silent, *(newcomers if number > 1 else ())]
        blocks = [Block(PUBLICATION, "train", slot, slot + 1) for slot in range(3)]
        shares = direct.share_blocks(iter(blocks), present)
        assert shares == {"old": blocks}, "whatever the others do, nothing waits for them"
        copies = direct.share_copies(shares, present)
        assert len(copies) == 2 and set(copies.values()) == {blocks[-1]}
        if number == 2:
            assert set(copies) == set(newcomers)
        count += 1
        direct.begin({"old": count, **dict.fromkeys(copies.keys() & {"new"}, 1)}, 4.0 + number)
    assert "new" in direct.share_blocks(iter(blocks), ["old", "new"]), "it has answered"


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
    assert bench.silent_workers == {"slow-1-abcdef"}
    bench.tick()
    assert (
        not bench.server.claims.get("slow-1-abcdef")
        and bench.server.progress["give_way"] == "slow-1-abcdef"
    )
    bench.server.lives.pop("slow-1-abcdef")
    bench.tick()
    assert bench.server.attempts == {} and bench.ledger.tally.recovered == 0, (
        "that it has gone is no sign that a slot kills workers"
    )
    assert bench.silent_workers == set()


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
