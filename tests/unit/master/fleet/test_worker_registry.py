"""WorkerRegistry: the workers of a run, their arithmetic, and the workers that are excluded."""

from __future__ import annotations

import json

from es_queue.protocol.channel import parse_quarantined
from master.fleet import worker_registry as module
from master.fleet.worker_registry import (
    RegisteredWorker,
    WorkerIdentity,
    WorkerRegistry,
    format_fingerprints,
)
from tests.notes import collect_notes

ONE, TWO = "1" * 32, "2" * 32


def about(host: str, numerics: str = ONE, name: str = "w") -> dict[str, str]:
    return {"host": host, "rq_name": name, "numerics": numerics}


class Bench:
    def __init__(self, strict: bool = False) -> None:
        self.notes = collect_notes()
        self.present: dict[str, dict[str, str]] = {}
        self.asked, self.now = 0, 0.0
        self.fleet = WorkerRegistry(self.ask, strict, lambda: self.now)

    def ask(self) -> dict[str, dict[str, str]]:
        self.asked += 1
        return self.present

    def update(self, **workers: dict[str, str]) -> WorkerRegistry:
        self.present = workers
        self.fleet.update(workers)
        return self.fleet


def test_fingerprints_that_differ_are_noted_once_with_their_hosts() -> None:
    bench = Bench()
    assert bench.update(a=about("a"), b=about("b")).is_uniform and bench.notes == []
    for _ in range(2):
        bench.update(a=about("a"), b=about("b"), c=about("c", TWO))
    assert not bench.fleet.is_uniform
    assert bench.notes == [
        (
            "mixed fleet: the run began with fingerprint 11111111, so equal bits are not "
            "guaranteed: "
            "11111111: a, b; 22222222: c"
        )
    ]


def test_a_fingerprint_that_differs_from_the_runs_first_is_noted_though_its_worker_has_left() -> (
    None
):
    bench = Bench()
    bench.fleet.restore(ONE, None)
    bench.update(b=about("b", TWO))
    assert not bench.fleet.is_uniform and bench.fleet.numerics == ONE


def test_a_run_begins_with_the_fingerprint_of_most_workers() -> None:
    assert Bench().update(a=about("a", ONE), b=about("b", TWO), c=about("c", TWO)).numerics == TWO
    assert Bench().update(a=about("a", TWO), b=about("b", ONE)).numerics == ONE, (
        "of two that are as many, always the same"
    )
    assert Bench().update(a={"host": "a"}).numerics == "", (
        "a worker that has not joined yet computes nothing"
    )


def test_a_strict_run_refuses_the_answers_of_the_others_and_sends_them_away() -> None:
    bench = Bench(strict=True)
    bench.update(a=about("a"), b=about("b"), c=about("c", TWO))
    assert [bench.fleet.refusal(one) for one in "abc"] == ["", "", "other-numerics"]
    assert bench.fleet.dismissed_workers() == ["c"] and bench.fleet.is_uniform, (
        "nothing of theirs counts, so bits are promised"
    )
    assert Bench().update(a=about("a"), c=about("c", TWO)).refusal("c") == ""


def test_who_is_in_quarantine_is_so_in_every_seat_and_for_the_next_master() -> None:
    bench = Bench()
    bench.update(a1=about("a"), a2=about("a"), other=about("a", name="x"), b=about("b"))
    bench.fleet.quarantine(WorkerIdentity("a", "w"))
    assert [bench.fleet.refusal(one) for one in ("a1", "a2", "other", "b")] == [
        "quarantined",
        "quarantined",
        "",
        "",
    ]
    assert bench.fleet.dismissed_workers() == ["a1", "a2"]
    next_one = Bench()
    next_one.fleet.restore(ONE, bench.fleet.progress_fields()["quarantined"])
    assert next_one.update(a9=about("a")).refusal("a9") == "quarantined"


def test_a_worker_that_nobody_knows_is_asked_for_now_and_then_and_refused_until_it_is_known() -> (
    None
):
    bench = Bench()
    assert bench.fleet.refusal("a") == "unknown-worker" and bench.asked == 1
    bench.present = {"a": about("a")}
    assert bench.fleet.refusal("a") == "unknown-worker" and bench.asked == 1, (
        "a flood of names does not become a flood of questions"
    )
    bench.now = module.LEAST_QUERY_PAUSE
    assert bench.fleet.refusal("a") == "" and bench.asked == 2
    bench.update()
    assert bench.fleet.refusal("a") == "", "a lapsed beat voids no answer"


def test_a_worker_that_refuses_to_work_is_not_sent_away_again() -> None:
    bench = Bench()
    bench.fleet.quarantine(WorkerIdentity("a", "w"))
    bench.present = {"a": about("a") | {"refuses": "quarantine"}}
    assert bench.fleet.registered_worker("a") is None and bench.fleet.dismissed_workers() == []


def test_it_remembers_a_bounded_number_of_workers(monkeypatch: object) -> None:
    bench = Bench()
    bench.update(
        **{f"w{number}": about(f"h{number}") for number in range(module.MOST_REMEMBERED + 50)}
    )
    assert len(bench.fleet._registered) == module.MOST_REMEMBERED


def test_the_peers_of_an_arithmetic_are_there_and_not_in_quarantine() -> None:
    bench = Bench()
    fleet = bench.update(a=about("a"), b=about("b", TWO), c=about("c"))
    assert fleet.peers(ONE) == {WorkerIdentity("a", "w"), WorkerIdentity("c", "w")}
    assert fleet.peers(TWO) == {WorkerIdentity("b", "w")}
    fleet.quarantine(WorkerIdentity("c", "w"))
    assert fleet.peers(ONE) == {WorkerIdentity("a", "w")}
    assert bench.update(b=about("b", TWO)).peers(ONE) == set()


def test_what_progress_says_of_quarantine_is_checked() -> None:
    assert parse_quarantined(json.dumps([["h", "n"], ["h", "m"]])) == [("h", "n"), ("h", "m")]
    for text in (None, "", "no json", "{}", "7", '["ab"]', "[[1, 2]]", "[" * 100_000):
        assert parse_quarantined(text) == []
    assert len(parse_quarantined(json.dumps([["h", str(number)] for number in range(500)]))) == 100


def test_hosts_are_listed_by_what_they_compute() -> None:
    workers = {
        str(number): {"host": host, "numerics": digest}
        for number, (host, digest) in enumerate([("x", "b" * 32), ("y", "a" * 32), ("x", "b" * 32)])
    }
    assert format_fingerprints(workers) == "aaaaaaaa: y; bbbbbbbb: x"
    assert format_fingerprints({"0": {}}) == ": ?"


def test_no_more_workers_are_put_in_quarantine_than_stay() -> None:
    bench = Bench()
    fleet = bench.update(**{name: about(name) for name in "abcde"})
    assert [fleet.quarantine(WorkerIdentity(name, "w")) for name in "abcde"] == [
        True,
        True,
        False,
        False,
        False,
    ]
    assert fleet.quarantined == {WorkerIdentity("a", "w"), WorkerIdentity("b", "w")}


def test_a_worker_is_enrolled_from_what_the_master_has_seen_of_it() -> None:
    bench = Bench()
    bench.update(a=about("a"))
    bench.update()
    assert bench.fleet.has_joined("a") and bench.asked == 0, (
        "its beat has lapsed, what it returned has not"
    )
    assert not bench.fleet.has_joined("stranger") and bench.asked == 1
    assert (
        not any(bench.fleet.has_joined(f"stranger-{number}") for number in range(1000))
        and bench.asked == 1
    )


def test_who_a_worker_is_and_what_it_computes_is_what_was_seen_first() -> None:
    bench = Bench()
    bench.update(a=about("a"), b=about("b", ""))
    bench.update(a=about("c", TWO), b=about("d", TWO))
    members = [bench.fleet.registered_worker(name) for name in "ab"]
    assert members == [
        RegisteredWorker(WorkerIdentity("a", "w"), ONE),
        RegisteredWorker(WorkerIdentity("b", "w"), TWO),
    ]


def test_a_fingerprint_that_the_master_computes_is_no_workers_word() -> None:
    bench = Bench(strict=True)
    bench.fleet.fix(ONE)
    bench.fleet.restore("", None)
    bench.update(liar=about("liar", TWO), other=about("other", TWO), honest=about("honest"))
    assert bench.fleet.numerics == ONE and bench.fleet.dismissed_workers() == ["liar", "other"]


def test_a_master_of_another_arithmetic_than_its_run_began_with_promises_no_bits() -> None:
    bench = Bench(strict=True)
    bench.fleet.fix(TWO)
    bench.fleet.restore(ONE, None)
    assert (bench.fleet.numerics, bench.fleet.is_uniform) == (TWO, False)
    assert "equal bits are not guaranteed" in bench.notes[0]


def test_a_majority_of_those_present_is_never_suspended() -> None:
    bench = Bench()
    fleet = bench.update(**{name: about(name) for name in "abcde"})
    assert [fleet.suspend(WorkerIdentity(name, "w")) for name in "abcd"] == [
        True,
        True,
        False,
        False,
    ]
    assert [fleet.refusal(name) for name in "abc"] == ["quarantined", "quarantined", ""]
    assert fleet.dismissed_workers() == [] and fleet.quarantined == set()
    assert len(fleet.peers(ONE)) == 3
    fleet.end_suspensions()
    assert fleet.refusal("a") == "" and len(fleet.peers(ONE)) == 5


def test_a_suspended_worker_that_has_left_does_not_protect_the_next_one() -> None:
    bench = Bench()
    for number in range(10):
        name = f"liar{number}"
        fleet = bench.update(a=about("a"), b=about("b"), **{name: about(name)})
        assert fleet.suspend(WorkerIdentity(name, "w")) and fleet.refusal(name) == "quarantined"
