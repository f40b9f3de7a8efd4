"""Collecting: what the master does each second so that a publication stays alive and closes."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from es_queue.errors import EnvironmentFailure, FencedError
from es_queue.protocol import messages
from es_queue.protocol.channel import Publish
from es_queue.protocol.memory_channel import MemoryMasterChannel, MemoryServer, MemoryWorkerChannel
from es_queue.protocol.messages import Answer, Block, SlotResult
from master import collector as module
from master import company
from master.collect import Expectations, Ledger
from master.collector import Collector, Interrupted
from tests.ring import QUICK, quick_config
from tests.tiny import eventually

TOKEN, PUBLICATION = "1-00000000", "3.1-00000000"
CONFIG = quick_config(strategy="ars", obs_norm=False)
PARAMETERS = b"parameters"


@dataclass
class Bench:
    """A collector over a memory server, with hands to play its workers."""

    block: int = 2
    slots: int = 6
    interrupted: Any = lambda: False
    housekeeper: Any = None
    notes: list[str] = field(default_factory=list)
    shown: list[dict[str, Any]] = field(default_factory=list)
    server: MemoryServer = field(default_factory=MemoryServer)

    audit: float = 0.0
    strict: bool = False

    def __post_init__(self) -> None:
        self.channel = MemoryMasterChannel(self.server)
        self.channel.renew(TOKEN, "me", 10, {}, {})
        self.collector = Collector(
            self.channel, TOKEN, "me", QUICK, self.block, self.housekeeper, self.shown.append, self.notes.append, self.interrupted,
            audit=self.audit, strict=self.strict,
        )  # fmt: skip
        expectations = Expectations(CONFIG, 3, 8, 2, 4, {messages.TRAIN: 12, messages.CENTRE: 1})
        self.ledger = Ledger(PUBLICATION, expectations, {messages.CENTRE: 1, messages.TRAIN: self.slots})
        self.what = Publish(PUBLICATION, b"task", (), "{}", {"state": "running"})

    def open(self, *, adopted: bool = False) -> Bench:
        self.collector.open(self.ledger, self.what, PARAMETERS, adopted=adopted)
        return self

    def worker(self, name: str = "a", **about: str) -> MemoryWorkerChannel:
        channel = MemoryWorkerChannel(self.server, f"{name}-1-abcdef")
        channel.arrive({"host": name, **about}, 60)
        return channel

    def there(self, lives: dict[str, Any]) -> None:
        """Exactly these workers, by id: what they say, and until when."""
        self.server.lives, self.server.workers = lives, set(lives)

    def result(self, kind: str, slot: int) -> SlotResult:
        expected = self.ledger.expectations.of(kind, slot)
        each = (1,) * expected.individuals
        return SlotResult(slot, expected.noise_index, expected.seed, tuple(map(float, each)), tuple(map(float, each)), each, (0,) * len(each), (0,) * len(each))

    def answer(self, worker: MemoryWorkerChannel, block: Block, seconds: float = 0.1) -> bool:
        results = tuple(self.result(block.kind, slot) for slot in range(block.start, block.stop))
        return worker.answer(block, Answer(block.publication, block.kind, worker.worker, seconds, results).encode())

    def work(self, worker: MemoryWorkerChannel) -> None:
        while (block := worker.claim(0.0)) is not None:
            self.answer(worker, block)

    def tick(self) -> None:
        self.collector.tick(self.ledger)

    def todo(self) -> list[str]:
        return [entry.removeprefix(PUBLICATION + " ") for entry in self.server.todo]


ALL = ["centre 0 1", "train 0 2", "train 2 4", "train 4 6"]


def test_opening_publishes_what_is_owed_in_blocks() -> None:
    bench = Bench().open()
    assert bench.todo() == ALL and bench.server.parameters == {PUBLICATION: PARAMETERS}


def test_collecting_ends_with_every_slot_and_knows_who_helped() -> None:
    bench = Bench().open()
    bench.work(bench.worker("a"))
    bench.worker("idle")
    bench.collector.collect(bench.ledger)
    assert bench.ledger.complete() and bench.collector.contributors == {"a-1-abcdef"}


def test_a_pause_takes_what_nobody_holds_out_of_todo_and_continue_puts_it_back() -> None:
    bench = Bench().open()
    worker = bench.worker()
    held = worker.claim(0.0)
    assert held is not None
    bench.collector.requests.paused = "ada"
    bench.tick()
    assert bench.todo() == [] and worker.claim(0.0) is None
    assert bench.server.progress["state"] == "paused" and bench.shown[-1]["waiting"] == "paused by ada"
    assert bench.answer(worker, held), "what it holds it may finish"
    bench.collector.requests.paused = ""
    bench.tick()
    assert bench.todo() == ["train 0 2", "train 2 4", "train 4 6"] or sum(int(one.split()[2]) - int(one.split()[1]) for one in bench.todo()) == 6


def test_a_pause_issues_nothing_twice_and_looks_no_oftener(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench().open()
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(bench.collector, "_clocks", replace(QUICK, renew=1.0, reconcile=1.0, overdue=0.5))
    all_but_one_block(bench)
    bench.collector.requests.paused = "ada"
    for _ in range(3):
        bench.tick()
        assert bench.todo() == [] and bench.collector._next == now[0] + 1.0
        now[0] += 60.0
        bench.server.lives = {name: (about, now[0] + 60) for name, (about, _) in bench.server.lives.items()}


def test_reconcile_waits_until_all_answers_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "READ_AT_ONCE", 2)
    bench = Bench(block=1, slots=12).open()
    bench.work(bench.worker())
    bench.tick()
    assert bench.ledger.complete() and bench.ledger.reissued == 0 and bench.todo() == []


def test_an_answer_that_comes_just_before_reconcile_is_neither_issued_again_nor_read_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench().open()
    bench.tick()
    worker, reconcile = bench.worker(), bench.channel.reconcile
    held = worker.claim(0.0)
    assert held is not None
    waiting = bench.todo()

    def late(token: str, owed: Any) -> Any:
        if not bench.ledger.has(held.kind, held.start, held.stop) and bench.server.claims.get(worker.worker):
            bench.answer(worker, held)
        return reconcile(token, owed)

    monkeypatch.setattr(bench.channel, "reconcile", late)
    monkeypatch.setattr(bench.collector, "_rewind", lambda: pytest.fail("everything is read again"))
    bench.tick()
    assert bench.todo() == waiting and bench.ledger.has(held.kind, held.start, held.stop) and bench.ledger.reissued == 0


def test_an_outage_within_a_tick_kills_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench().open()
    bench.tick()
    worker = bench.worker()
    held, drained, outages = worker.claim(0.0), bench.collector._drained, [bench.channel.outages]

    def away(ledger: Ledger) -> bool:
        bench.server.lives.clear()
        outages[0] += 1
        return drained(ledger)

    monkeypatch.setattr(type(bench.channel), "outages", property(lambda _: outages[0]))
    monkeypatch.setattr(bench.collector, "_drained", away)
    monkeypatch.setattr(bench.collector, "_clocks", replace(QUICK, beat_ttl=60.0))
    bench.tick()
    assert bench.server.claims[worker.worker] == [str(held)] and bench.server.attempts == {}


def test_who_dies_between_the_look_and_the_issue_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert calls[0] == 2 and bench.ledger.recovered == 1


def test_what_was_lost_is_issued_again_at_once() -> None:
    bench = Bench().open()
    bench.server.todo.clear()
    bench.tick()
    assert bench.todo() == ALL and bench.ledger.reissued == 7


def test_a_flood_that_does_not_end_puts_reconcile_off_for_a_while_only(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench().open()
    monkeypatch.setattr(bench.collector, "read", lambda ledger, wait: False)
    seen = [0]
    reconcile = bench.channel.reconcile
    monkeypatch.setattr(bench.channel, "reconcile", lambda *given: seen.__setitem__(0, seen[0] + 1) or reconcile(*given))
    for _ in range(module.PUT_OFF_AT_MOST):
        bench.tick()
    assert seen == [0]
    bench.tick()
    assert seen == [1]


def test_many_entries_are_seldom_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench().open()
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    tail = bench.collector._tails[bench.ledger.publication]
    tail.seen.update(str(number) for number in range(10 * module.READ_AGAIN_A_SECOND))
    for later, cursor in ((0.0, "0"), (9.0, "7-0"), (1.1, "0")):
        now[0] += later
        tail.cursor = "7-0"
        bench.collector._read_again()
        assert tail.cursor == cursor


def test_a_complete_generation_does_not_close_while_the_run_is_paused_and_the_time_is_no_time_of_the_run() -> None:
    bench = Bench().open()
    bench.work(bench.worker())
    bench.collector.requests.paused = "ada"
    closing = threading.Thread(target=bench.collector.collect, args=(bench.ledger,), daemon=True)
    closing.start()
    assert eventually(bench.ledger.complete) and eventually(lambda: sum("waiting" in one for one in bench.shown) > 3)
    assert closing.is_alive()
    bench.collector.requests.paused = ""
    closing.join(10)
    assert not closing.is_alive()
    assert bench.collector.paused_since() > 0.1 and bench.collector.paused_since() == 0.0


def test_an_adopted_publication_is_read_and_not_published_again() -> None:
    first = Bench().open()
    first.work(first.worker("a"))
    second = Bench(server=first.server)
    second.channel.publish = lambda *_: pytest.fail("it was published again")  # type: ignore[method-assign]
    second.open(adopted=True)
    second.collector.collect(second.ledger)
    assert second.ledger.complete() and second.ledger.contributors == {"a-1-abcdef"}


def test_what_was_refused_is_deleted_and_counted() -> None:
    bench = Bench().open()
    worker = bench.worker()
    held = Block(PUBLICATION, "train", 0, 1)
    for payload in (b"garbage", Answer("2.1-00000000", "train", worker.worker, 0.1, (bench.result("train", 0),)).encode()):
        worker.answer(held, payload)
    bench.answer(worker, held)
    bench.answer(worker, held)
    bench.collector.read(bench.ledger, 0)
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
    bench.ledger.want(messages.TRAIN, 9)
    bench.collector.extend(bench.ledger)
    assert bench.todo() == ["train 6 8", "train 8 9"]


# --- loss


@pytest.mark.parametrize("lose", ["flush", "parameters", "stream", "task"])
def test_what_redis_lost_is_published_again_without_what_is_answered(lose: str) -> None:
    bench = Bench().open()
    worker = bench.worker()
    worker.claim(0), bench.answer(worker, worker.claim(0))  # train 0 2 is answered
    bench.collector.read(bench.ledger, 0)
    {
        "flush": bench.server.flush, "parameters": bench.server.parameters.clear,
        "stream": bench.server.results.clear, "task": lambda: setattr(bench.server, "task", None),
    }[lose]()  # fmt: skip
    bench.tick()
    held = ["centre 0 1"] if lose != "parameters" else []  # its worker still holds it when only the parameters went
    assert bench.todo() == [*held, "train 2 4", "train 4 6"]
    assert bench.server.parameters == {PUBLICATION: PARAMETERS} and bench.server.task == b"task"
    assert len(bench.notes) == 1 and "published again" in bench.notes[0]
    for block in worker.claimed():
        bench.answer(worker, block)
    bench.work(bench.worker())
    bench.collector.collect(bench.ledger)
    assert bench.ledger.complete()


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
    assert bench.todo() == ALL[:2] + ALL[2:] and bench.ledger.recovered == 1 and bench.ledger.reissued == 3


def test_another_master_ends_this_one() -> None:
    bench = Bench().open()
    MemoryMasterChannel(bench.server).renew("2-11111111", "other", 10, {}, {})
    with pytest.raises(FencedError):
        bench.collector.collect(bench.ledger)


# --- stragglers


def all_but_one_block(bench: Bench) -> None:
    """Everything is answered but what one worker holds; another is idle."""
    slow, quick = bench.worker("slow"), bench.worker("quick")
    block = slow.claim(0)
    assert block is not None and block.kind == "centre"
    held = slow.claim(0)
    assert held is not None and str(held).endswith("train 0 2")
    bench.answer(slow, block)
    bench.work(quick)
    bench.collector.read(bench.ledger, 0)


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
    bench.server.lives = {name: (about, now[0] + 60) for name, (about, _) in bench.server.lives.items()}
    bench.tick()
    assert bench.todo() == ["train 0 1", "train 1 2"] and bench.ledger.reissued == 2
    quick = MemoryWorkerChannel(bench.server, "quick-1-abcdef")
    assert quick.claim(0) and quick.claim(0)
    bench.server.lives["third-1-abcdef"] = ({}, now[0] + 60)  # idle, but the copy was made
    bench.server.workers.add("third-1-abcdef")
    bench.tick()
    assert bench.todo() == [] and bench.ledger.reissued == 2
    now[0] += 10 * QUICK.overdue  # now the copies are overdue as well, and a copy is not copied
    bench.server.lives = {name: (about, now[0] + 60) for name, (about, _) in bench.server.lives.items()}
    bench.tick()
    assert bench.todo() == [] and bench.ledger.reissued == 2


def test_a_generations_end_is_looked_at_more_often_once_somebody_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench().open()
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(bench.collector, "_clocks", replace(QUICK, renew=1.0, reconcile=1.0, overdue=0.5))
    bench.tick()
    assert bench.collector._next == now[0] + 1.0
    all_but_one_block(bench)
    bench.tick()
    assert bench.collector._next == now[0] + module.HURRY_SECONDS


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


# --- who is there


def test_blocks_are_about_half_a_second_but_something_for_every_worker() -> None:
    bench = Bench(block=0, slots=12).open()
    assert bench.todo()[1:] == [f"train {slot} {slot + 1}" for slot in range(12)]
    worker = bench.worker()
    while (block := worker.claim(0.0)) is not None:
        bench.answer(worker, block, seconds=0.1)
    bench.collector.collect(bench.ledger)
    largest = lambda: max(block.stop - block.start for block in bench.collector.cutter.cut(PUBLICATION, [(messages.TRAIN, 0, 12)], len(bench.collector._workers)))  # noqa: E731
    assert largest() == 5
    for name in "bc":
        bench.worker(name)
    bench.tick()
    assert largest() == 2


def test_a_run_without_a_worker_says_so_once_until_one_has_come_and_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench().open()
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    for _ in range(4):
        bench.tick()
        now[0] += company.LONELY_SECONDS / 2 + 0.1
    assert len(bench.notes) == 1 and "no worker is here" in bench.notes[0]
    bench.there({"a-1-abcdef": ({"host": "a"}, now[0] + 1)})
    bench.tick()
    for _ in range(4):
        now[0] += company.LONELY_SECONDS / 2 + 0.1
        bench.tick()
    assert len(bench.notes) == 2


def test_who_refuses_is_named_and_not_counted() -> None:
    bench = Bench().open()
    bench.worker("a", refuses="Refusal: another table")
    bench.worker("b")
    bench.tick()
    assert bench.notes == ["1 worker on a cannot join: Refusal: another table"]
    assert bench.shown[-1] == {"workers": 1, "answered": 0, "slots": 7}
    bench.tick()
    assert (bench.server.progress["workers"], bench.server.progress["answered"]) == ("1", "0/7")


@pytest.mark.parametrize(("reason", "ends"), [("EnvironmentFailure: it does not repeat itself", True), ("Refusal: another table", False)])
def test_a_run_whose_environment_everybody_refuses_ends(monkeypatch: pytest.MonkeyPatch, reason: str, ends: bool) -> None:
    bench = Bench().open()
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    bench.there({"a-1-abcdef": ({"host": "a", "refuses": reason}, 1e9)})
    bench.tick()
    now[0] += company.REFUSING_SECONDS + 1
    if ends:
        with pytest.raises(EnvironmentFailure, match=r"^no worker can join; the one on a says: it does not repeat itself$"):
            bench.tick()
    else:
        bench.tick()


def test_a_worker_that_can_serve_saves_the_run_from_those_that_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench().open()
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    refusing = ({"refuses": "EnvironmentFailure: broken"}, 1e9)
    bench.there({"a-1-abcdef": refusing, "b-1-abcdef": ({}, 1e9)})
    bench.tick()
    now[0] += 100
    bench.tick()


def test_the_housekeeper_hears_of_the_workers_and_says_who_should_leave() -> None:
    heard: list[tuple[list[str], bool]] = []

    class Housekeeper:
        def tick(self, channel: Any, workers: Any, served: bool, paused: bool) -> list[str]:
            heard.append((sorted(workers), served))
            return ["b-1-abcdef"] if len(heard) == 2 else []

    bench = Bench(housekeeper=Housekeeper()).open()
    a, b = bench.worker("a"), bench.worker("b")
    bench.tick()
    bench.answer(a, a.claim(0))
    bench.collector.read(bench.ledger, 0)
    bench.tick()
    assert heard == [(["a-1-abcdef", "b-1-abcdef"], False), (["a-1-abcdef", "b-1-abcdef"], True)]
    assert b.orders().give_way and not a.orders().give_way
    bench.tick()
    assert not b.orders().give_way


def test_late_answers_are_counted_once() -> None:
    bench = Bench().open()
    bench.worker("a", late="3")
    bench.tick()
    bench.tick()
    assert (bench.collector.late_since(), bench.collector.late_since()) == (3, 0)
    bench.worker("a", late="5")
    bench.tick()
    assert bench.collector.late_since() == 2


def test_workers_look_less_often_the_more_there_are() -> None:
    bench = Bench().open()
    assert bench.collector.poll() == QUICK.leave_poll
    bench.there({f"w{number}-1-abcdef": ({}, 1e12) for number in range(1000)})
    bench.tick()
    assert bench.collector.poll() == pytest.approx(0.4)


def test_a_person_ends_the_wait_between_two_looks() -> None:
    asked = threading.Event()
    bench = Bench(interrupted=asked.is_set).open()
    timer = threading.Timer(0.05, asked.set)
    timer.start()
    with pytest.raises(Interrupted):
        bench.collector.collect(bench.ledger)
    timer.join(10)
    assert bench.todo() == ALL  # what is open stays open


def test_a_block_has_at_least_one_slot_however_long_it_takes() -> None:
    bench = Bench(block=0).open()
    worker = bench.worker()
    while (block := worker.claim(0.0)) is not None:
        bench.answer(worker, block, seconds=50)
    bench.collector.collect(bench.ledger)
    bench.ledger.want(messages.TRAIN, 8)
    bench.collector.extend(bench.ledger)
    assert bench.todo() == ["train 6 7", "train 7 8"]
