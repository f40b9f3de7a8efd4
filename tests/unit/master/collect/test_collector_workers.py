"""Who is there: what the collector says, does and waits for as workers come, refuse and go."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from es_queue.errors import EnvironmentFailure
from es_queue.protocol import messages
from master.collect import collector as module
from master.collect.collector import Interrupted
from master.collect.worker_watch import WorkerSource
from master.fleet import idle_monitor
from tests.cases import each_case
from tests.ring import QUICK
from tests.unit.master.collect.collector_bench import ALL, PUBLICATION, Bench


def test_blocks_are_about_half_a_second_but_something_for_every_worker() -> None:
    bench = Bench(block=0, slots=12).open()
    assert bench.todo()[1:] == [f"train {slot} {slot + 1}" for slot in range(12)]
    worker = bench.worker()
    while (block := worker.claim(0.0)) is not None:
        bench.answer(worker, block, seconds=0.1)
    bench.collector.collect(bench.ledger)

    def largest() -> int:
        blocks = bench.scheduler.iterate_blocks(
            PUBLICATION, [(messages.TRAIN, 0, 12)], len(bench.parts.workers.present)
        )
        return max(block.stop - block.start for block in blocks)

    assert largest() == 5
    for name in "bc":
        bench.worker(name)
    bench.tick()
    assert largest() == 2


def test_a_run_without_a_worker_says_so_once_until_one_has_come_and_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(source=WorkerSource("walk", local=2)).open()
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    for _ in range(4):
        bench.tick()
        now[0] += idle_monitor.IDLE_SECONDS
    assert not bench.notes, "workers are still starting"
    assert bench.server.progress["starting"] == "2"
    assert bench.shown[-1]["waiting"] == "local workers are starting"
    for _ in range(4):
        bench.tick()
        now[0] += idle_monitor.UNSERVED_SECONDS / 2 + 0.1
    assert bench.notes == [
        "no worker has joined: start one with rq worker, on the same Redis and queue"
    ], "it promises no waiting, which --max-seconds may end"
    assert "waiting" not in bench.shown[-1]
    assert bench.server.progress["starting"] == "", "they are overdue"
    bench.present({"a-1-abcdef": ({"host": "a"}, now[0] + 1)})
    bench.tick()
    for _ in range(4):
        now[0] += idle_monitor.IDLE_SECONDS / 2 + 0.1
        bench.tick()
    assert len(bench.notes) == 2


def test_workers_without_a_slot_are_named_once_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(slots=2).open()
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    far = now[0] + 1000
    bench.present({f"{name}-1-abcdef": ({"host": name}, far) for name in "abc"})
    bench.tick()
    assert not bench.notes, "workers that are about to leave are no news"
    for _ in range(4):
        now[0] += idle_monitor.IDLE_SECONDS / 2 + 0.1
        bench.tick()
    assert len(bench.notes) == 1
    assert "2 training slots for 3 workers, so at least 1 wait: `--scale 2`" in bench.notes[0]


def test_a_fleet_that_is_idle_for_most_of_its_time_is_counted_once_with_the_cure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(slots=32).open()
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    # Twenty workers of which two have joined so lately that they report no share yet.
    fleet = {
        f"{number}-1-abcdef": (
            {"host": str(number), "busy": "0.150" if number < 18 else ""},
            now[0] + 1000,
        )
        for number in range(20)
    }
    bench.present(fleet)
    for _ in range(5):
        bench.tick()
        now[0] += idle_monitor.IDLE_SECONDS / 2 + 0.1
    assert bench.notes == ["3 of 20 workers are busy on average: `--scale 8` would use them"]
    assert bench.shown[-1]["busy"] == pytest.approx(3.0)
    assert (bench.server.progress["busy"], bench.server.progress["scale"]) == ("3.000", "1")


def test_a_paused_fleet_is_no_news(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(slots=32).open()
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    bench.present({f"{k}-1-abcdef": ({"host": "a", "busy": "0.0"}, 1e9) for k in range(40)})
    bench.collector.inbox.paused_by = "ada"
    for _ in range(4):
        bench.tick()
        now[0] += idle_monitor.IDLE_SECONDS
    assert not bench.notes


def test_shares_that_include_a_pause_are_no_news_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(slots=32).open()
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    bench.present({f"{k}-1-abcdef": ({"host": "a", "busy": "0.1"}, 1e9) for k in range(20)})
    bench.collector.inbox.paused_by = "ada"
    bench.tick()
    bench.collector.inbox.paused_by = ""
    for _ in range(4):
        now[0] += idle_monitor.IDLE_SECONDS
        bench.tick()
    assert not bench.notes
    now[0] += idle_monitor.BUSY_SECONDS
    for _ in range(3):
        bench.tick()
        now[0] += idle_monitor.IDLE_SECONDS
    assert len(bench.notes) == 1 and "2 of 20 workers are busy" in bench.notes[0]


def test_workers_that_leave_a_paused_run_are_no_news(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench().open()
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    bench.collector.inbox.paused_by = "ada"
    for _ in range(4):
        bench.tick()
        now[0] += idle_monitor.UNSERVED_SECONDS
    assert not bench.notes


def test_as_many_workers_as_slots_are_no_news(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(slots=2).open()
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    bench.present({f"{name}-1-abcdef": ({"host": name}, now[0] + 1000) for name in "ab"})
    for _ in range(4):
        bench.tick()
        now[0] += idle_monitor.IDLE_SECONDS
    assert not bench.notes


def test_who_refuses_is_named_and_not_counted() -> None:
    bench = Bench().open()
    bench.worker("a", refuses="Refusal: another table")
    bench.worker("b")
    bench.tick()
    assert bench.notes == ["1 worker on a cannot join: Refusal: another table"]
    assert bench.shown[-1] == {"workers": 1, "answered": 0, "slots": 7}
    bench.tick()
    assert (bench.server.progress["workers"], bench.server.progress["answered"]) == ("1", "0/7")


@each_case(("refuses", "unserved"), [({"refuses": "Refusal: another table"}, True), ({}, False)])
def test_a_run_that_every_worker_refuses_is_without_workers(
    monkeypatch: pytest.MonkeyPatch, refuses: dict[str, str], unserved: bool
) -> None:
    bench = Bench().open()
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    bench.present({"a-1-abcdef": ({"host": "a", **refuses}, 1e9)})
    bench.tick()
    assert not bench.collector.is_without_workers
    now[0] += idle_monitor.UNSERVED_SECONDS + 0.1
    bench.tick()
    assert bench.collector.is_without_workers is unserved


@each_case(
    ("local", "has_served", "seconds"),
    [
        (0, False, idle_monitor.ABSENT_SECONDS),
        (0, True, idle_monitor.UNSERVED_SECONDS),
        (1, False, idle_monitor.UNSERVED_SECONDS),
    ],
)
def test_workers_that_start_here_or_have_been_here_are_waited_for_longer_than_others(
    monkeypatch: pytest.MonkeyPatch, local: int, has_served: bool, seconds: float
) -> None:
    bench = Bench(source=WorkerSource(local=local)).open()
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    bench.present({"a-1-abcdef": ({"host": "a"}, now[0] + 1)} if has_served else {})
    bench.tick()
    bench.present({})
    bench.tick()
    assert bench.server.progress["starting"] == ("1" if local else "")
    for offset, lacks in ((-0.1, False), (0.1, True)):
        now[0] = 100.0 + seconds + offset
        bench.tick()
        assert bench.collector.is_without_workers is lacks


@each_case(
    ("reason", "ends"),
    [("EnvironmentFailure: it does not repeat itself", True), ("Refusal: another table", False)],
)
def test_a_run_whose_environment_everybody_refuses_ends(
    monkeypatch: pytest.MonkeyPatch, reason: str, ends: bool
) -> None:
    bench = Bench().open()
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    bench.present({"a-1-abcdef": ({"host": "a", "refuses": reason}, 1e9)})
    bench.tick()
    now[0] += idle_monitor.REFUSING_SECONDS + 1
    if ends:
        with pytest.raises(
            EnvironmentFailure,
            match=r"^no worker can join; the one on a reports: it does not repeat itself$",
        ):
            bench.tick()
    else:
        bench.tick()


def test_a_worker_that_can_serve_saves_the_run_from_those_that_cannot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench().open()
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    refusing = ({"refuses": "EnvironmentFailure: broken"}, 1e9)
    bench.present({"a-1-abcdef": refusing, "b-1-abcdef": ({}, 1e9)})
    bench.tick()
    now[0] += 100
    bench.tick()


def test_the_housekeeper_hears_of_the_workers_and_says_who_should_leave() -> None:
    heard: list[tuple[list[str], bool]] = []

    def maintain(workers: Any, served: bool, paused: bool) -> list[str]:
        heard.append((sorted(workers), served))
        return ["b-1-abcdef"] if len(heard) == 2 else []

    bench = Bench(maintain=maintain).open()
    a, b = bench.worker("a"), bench.worker("b")
    bench.tick()
    bench.answer(a, a.claim(0))
    bench.collector.drain(bench.ledger, 0)
    bench.tick()
    assert heard == [(["a-1-abcdef", "b-1-abcdef"], False), (["a-1-abcdef", "b-1-abcdef"], True)]
    assert b.poll_flags().give_way and not a.poll_flags().give_way
    bench.tick()
    assert not b.poll_flags().give_way


def test_late_answers_are_counted_once() -> None:
    bench = Bench().open()
    bench.worker("a", late="3")
    bench.tick()
    bench.tick()
    assert (bench.collector.late_answers.take(), bench.collector.late_answers.take()) == (3, 0)
    bench.worker("a", late="5")
    bench.tick()
    assert bench.collector.late_answers.take() == 2


def test_workers_look_less_often_the_more_there_are() -> None:
    bench = Bench().open()
    assert bench.collector.leave_poll_seconds() == QUICK.leave_poll
    bench.present({f"w{number}-1-abcdef": ({}, 1e12) for number in range(1000)})
    bench.tick()
    assert bench.collector.leave_poll_seconds() == pytest.approx(0.4)


def test_a_person_ends_the_wait_between_two_looks() -> None:
    asked = threading.Event()
    bench = Bench(is_interrupted=asked.is_set).open()
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
    bench.ledger.require(messages.TRAIN, 8)
    bench.collector.extend(bench.ledger)
    assert bench.todo() == ["train 6 7", "train 7 8"]


def test_of_thousands_that_refuse_a_few_are_named_and_the_rest_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench().open()
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    bench.present(
        {
            f"w{number}-1-abcdef": (
                {"host": f"h{number}", "refuses": f"Refusal: reason {number % 5000}"},
                1e9,
            )
            for number in range(19_000)
        }
    )
    for _ in range(30):
        bench.tick()
        now[0] += 1
    assert len(bench.notes) == idle_monitor.REASONS_NAMED + 1
    assert bench.notes[0] == "4 workers on h0, h10000, h15000, h5000 cannot join: Refusal: reason 0"
    assert bench.notes[-1] == "18988 more workers cannot join, for 4997 other reasons"


def test_a_reason_that_changes_each_second_fills_no_log(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench().open()
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    for second in range(59):
        bench.present(
            {
                "a-1-abcdef": (
                    {"host": "a" * 1000, "refuses": f"Refusal: {second}" + "x" * 5000},
                    1e9,
                )
            }
        )
        bench.tick()
        now[0] += 1
    assert len(bench.notes) <= 4 and all(len(one) < 700 for one in bench.notes)
    now[0] += 60
    bench.tick()
    assert bench.notes[-1].endswith("(55 similar lines were left out)")
