"""WorkerRegistry: the workers of a run, and their arithmetic."""

from __future__ import annotations

from master.fleet.worker_registry import WorkerRegistry, format_fingerprints
from tests.notes import collect_notes

ONE, TWO = "1" * 32, "2" * 32


def about(host: str, numerics: str = ONE, name: str = "w") -> dict[str, str]:
    return {"host": host, "rq_name": name, "numerics": numerics}


class Bench:
    def __init__(self, strict: bool = False) -> None:
        self.notes = collect_notes()
        self.present: dict[str, dict[str, str]] = {}
        self.fleet = WorkerRegistry(lambda: self.present, strict)

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
    bench.fleet.numerics = ONE
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


def test_hosts_are_listed_by_what_they_compute() -> None:
    workers = {
        str(number): {"host": host, "numerics": digest}
        for number, (host, digest) in enumerate([("x", "b" * 32), ("y", "a" * 32), ("x", "b" * 32)])
    }
    assert format_fingerprints(workers) == "aaaaaaaa: y; bbbbbbbb: x"
    assert format_fingerprints({"0": {}}) == ": ?"


def test_a_strict_run_refuses_the_results_of_other_arithmetic_and_asks_its_workers_to_leave() -> (
    None
):
    bench = Bench(strict=True)
    bench.update(a=about("a"), b=about("b"), c=about("c", TWO))
    assert [bench.fleet.has_other_numerics(name) for name in "abc"] == [False, False, True]
    assert bench.fleet.dismissed_workers() == ["c"] and bench.fleet.is_uniform, (
        "none of their results counts, so equal bits are promised"
    )
    assert not Bench().update(a=about("a"), c=about("c", TWO)).has_other_numerics("c")


def test_a_worker_is_known_by_host_and_name_also_before_the_next_look_and_after_it_has_left() -> (
    None
):
    bench = Bench()
    assert bench.fleet.identity("a") is None
    bench.present = {"a": about("a")}
    assert str(bench.fleet.identity("a")) == "w on a"
    assert str(bench.update().identity("a")) == "w on a"
