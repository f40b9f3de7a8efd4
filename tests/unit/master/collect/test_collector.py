"""Collecting: what the master does each second so that a publication stays alive and closes."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

from es_queue.protocol import messages
from es_queue.protocol.messages import Answer, Block
from master.collect import collector as module
from master.collect import ledger as ledger_module
from master.collect.ledger import Ledger
from tests.ring import QUICK
from tests.tiny import eventually
from tests.unit.master.collect.collector_bench import (
    ALL,
    PARAMETERS,
    PUBLICATION,
    Bench,
    all_but_one_block,
)


def test_opening_publishes_what_is_owed_in_blocks() -> None:
    bench = Bench().open()
    assert bench.todo() == ALL and bench.server.parameters == {PUBLICATION: PARAMETERS}


def test_collecting_ends_with_every_slot_and_knows_who_helped() -> None:
    bench = Bench().open()
    bench.work(bench.worker("a"))
    bench.worker("idle")
    bench.collector.collect(bench.ledger)
    assert bench.ledger.is_complete() and bench.ledger.tally.contributors == {"a-1-abcdef"}


def test_a_pause_takes_what_nobody_holds_out_of_todo_and_continue_puts_it_back() -> None:
    bench = Bench().open()
    worker = bench.worker()
    held = worker.claim(0.0)
    assert held is not None
    bench.collector.inbox.paused_by = "ada"
    bench.tick()
    assert bench.todo() == [] and worker.claim(0.0) is None
    assert (
        bench.server.progress["state"] == "paused" and bench.shown[-1]["waiting"] == "paused by ada"
    )
    assert bench.answer(worker, held), "what it holds it may finish"
    bench.collector.inbox.paused_by = ""
    bench.tick()
    assert (
        bench.todo() == ["train 0 2", "train 2 4", "train 4 6"]
        or sum(int(one.split()[2]) - int(one.split()[1]) for one in bench.todo()) == 6
    )


def test_a_pause_issues_nothing_twice_and_looks_no_oftener(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(clocks=replace(QUICK, renew=1.0, reconcile=1.0, overdue=0.5)).open()
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    all_but_one_block(bench)
    bench.collector.inbox.paused_by = "ada"
    for _ in range(3):
        bench.tick()
        assert bench.todo() == [] and bench.next_tick == now[0] + 1.0
        now[0] += 60.0
        bench.server.lives = {
            name: (about, now[0] + 60) for name, (about, _) in bench.server.lives.items()
        }


def test_reconcile_waits_until_all_answers_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "MOST_READ", 2)
    bench = Bench(block=1, slots=12).open()
    bench.work(bench.worker())
    bench.tick()
    assert bench.ledger.is_complete() and bench.ledger.tally.reissued == 0 and bench.todo() == []


def test_an_answer_that_comes_just_before_reconcile_is_neither_issued_again_nor_read_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench().open()
    bench.tick()
    worker, reconcile = bench.worker(), bench.channel.reconcile
    held = worker.claim(0.0)
    assert held is not None
    waiting = bench.todo()

    def late(token: str, owed: Any) -> Any:
        if not bench.ledger.has_answers(
            held.kind, held.start, held.stop
        ) and bench.server.claims.get(worker.worker):
            bench.answer(worker, held)
        return reconcile(token, owed)

    monkeypatch.setattr(bench.channel, "reconcile", late)
    monkeypatch.setattr(bench.parts.reader, "rewind", lambda: pytest.fail("all is read again"))
    bench.tick()
    assert (
        bench.todo() == waiting
        and bench.ledger.has_answers(held.kind, held.start, held.stop)
        and bench.ledger.tally.reissued == 0
    )


def test_an_outage_within_a_tick_kills_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(clocks=replace(QUICK, beat_ttl=60.0)).open()
    bench.tick()
    worker = bench.worker()
    held, drained, outages = (
        worker.claim(0.0),
        bench.parts.reader.drain_fully,
        [bench.channel.outages],
    )

    def away(ledger: Ledger, workers: int) -> bool:
        bench.server.lives.clear()
        outages[0] += 1
        return drained(ledger, workers)

    monkeypatch.setattr(type(bench.channel), "outages", property(lambda _: outages[0]))
    monkeypatch.setattr(bench.parts.reader, "drain_fully", away)
    bench.tick()
    assert bench.server.claims[worker.worker] == [str(held)] and bench.server.attempts == {}


def test_who_dies_between_the_look_and_the_issue_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench().open()
    bench.tick()
    worker, reconcile, calls = bench.worker(), bench.channel.reconcile, [0]
    worker.claim(0.0)
    bench.server.todo.clear()  # something to be issued again

    def second(token: str, owed: Any) -> Any:
        calls[0] += 1
        if calls[0] == 2:
            bench.server.lives.clear()
        return reconcile(token, owed)

    monkeypatch.setattr(bench.channel, "reconcile", second)
    bench.tick()
    assert calls[0] == 2 and bench.ledger.tally.recovered == 1


def test_what_was_lost_is_issued_again_at_once() -> None:
    bench = Bench().open()
    bench.server.todo.clear()
    bench.tick()
    assert bench.todo() == ALL and bench.ledger.tally.reissued == 7


def test_a_flood_that_does_not_end_puts_reconcile_off_for_a_while_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench().open()
    monkeypatch.setattr(bench.parts.reader, "drain", lambda ledger, wait, workers: False)
    seen = [0]
    reconcile = bench.channel.reconcile
    monkeypatch.setattr(
        bench.channel,
        "reconcile",
        lambda *given: seen.__setitem__(0, seen[0] + 1) or reconcile(*given),
    )
    for _ in range(ledger_module.MOST_POSTPONED_TICKS):
        bench.tick()
    assert seen == [0]
    bench.tick()
    assert seen == [1]


def test_many_entries_are_seldom_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench().open()
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    reader, name = bench.parts.reader, bench.ledger.publication
    reader.seen[name].update(map(str, range(10 * ledger_module.MOST_REREAD_PER_SECOND)))
    for later, cursor in ((0.0, "0"), (9.0, "7-0"), (1.1, "0")):
        now[0] += later
        reader.cursors[name] = "7-0"
        reader.reread()
        assert reader.cursors[name] == cursor


def test_a_complete_generation_does_not_close_during_a_pause_whose_time_does_not_count() -> None:
    bench = Bench().open()
    bench.work(bench.worker())
    bench.collector.inbox.paused_by = "ada"
    closing = threading.Thread(target=bench.collector.collect, args=(bench.ledger,), daemon=True)
    closing.start()
    assert eventually(bench.ledger.is_complete) and eventually(
        lambda: sum("waiting" in one for one in bench.shown) > 3
    )
    assert closing.is_alive()
    bench.collector.inbox.paused_by = ""
    closing.join(10)
    assert not closing.is_alive()
    assert (
        bench.collector.pauses.take_seconds() > 0.1 and bench.collector.pauses.take_seconds() == 0.0
    )


def test_an_adopted_publication_is_read_and_not_published_again() -> None:
    first = Bench().open()
    first.work(first.worker("a"))
    second = Bench(server=first.server)
    second.channel.publish = lambda *_: pytest.fail("it was published again")  # type: ignore[method-assign]
    second.open(adopted=True)
    second.collector.collect(second.ledger)
    assert second.ledger.is_complete() and second.ledger.tally.contributors == {"a-1-abcdef"}


def test_what_was_refused_is_deleted_and_counted() -> None:
    bench = Bench().open()
    worker = bench.worker()
    held = Block(PUBLICATION, "train", 0, 1)
    for payload in (
        b"garbage",
        Answer("2.1-00000000", "train", worker.worker, 0.1, (bench.result("train", 0),)).encode(),
    ):
        worker.answer(held, payload)
    bench.answer(worker, held)
    bench.answer(worker, held)
    bench.collector.drain(bench.ledger, 0)
    assert bench.ledger.refused == {"undecodable": 1, "wrong-publication": 1, "duplicate": 1}
    assert [bool(entry.payload) for entry in bench.server.results[PUBLICATION]] == [False, True]
    bench.tick()
    assert bench.server.refused == bench.ledger.refused


def test_more_slots_are_added_to_the_same_publication() -> None:
    bench = Bench().open()
    bench.work(bench.worker())
    bench.collector.collect(bench.ledger)
    bench.collector.extend(bench.ledger)
    assert bench.todo() == []
    bench.ledger.require(messages.TRAIN, 9)
    bench.collector.extend(bench.ledger)
    assert bench.todo() == ["train 6 8", "train 8 9"]
