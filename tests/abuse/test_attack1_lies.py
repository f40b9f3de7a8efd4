"""Lies that are not plausible, and count all the same."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.abuse.cluster import Cluster, cluster_of
from tests.abuse.lying_strangely import LIE
from tests.abuse.test_hoarder import VALUES, hoarding
from tests.integration.processes import CARTPOLE, Processes, Started, wait_for

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def cluster(tmp_path: Path, processes: Processes) -> Iterator[Cluster]:
    with cluster_of(tmp_path, processes) as found:
        yield found


def liar(cluster: Cluster, queue: str, how: str) -> Started:
    processes = cluster._processes
    return processes.start(
        processes.rq, "worker", queue, "--name", f"liar-{how}", "-w", "tests.abuse.lying_strangely.Worker", "--path", ROOT,
        RQ_REDIS_URL=cluster.url("worker"), **{LIE: how},
    )  # fmt: skip


def test_a_strict_and_fully_audited_run_is_not_taken_over_by_whoever_says_its_fingerprint_first(cluster: Cluster) -> None:
    """SECURITY.md: use --strict with workers that you do not trust. The first fingerprint that is said becomes the run's:
    honest workers are sent away, and nobody of "equal arithmetic" is left to audit the liar."""
    values = {**CARTPOLE, "generations": 200, "block": 1, "audit": 1.0}
    master = cluster._processes.start(
        Path(__import__("sys").executable).parent / "es-master", *[w for n, v in values.items() for w in (f"--{n.replace('_', '-')}", str(v))],
        "--strict", "--run", "taken", "--queue", "taken", "--json", RQ_REDIS_URL=cluster.url("master"),
    )  # fmt: skip
    seen = cluster.seen("taken")
    bad = liar(cluster, "taken", "strange")
    seen.joined(bad)
    honest = [cluster.worker("taken") for _ in range(2)]
    assert master.wait(120) == 0, master.said()
    summary = master.events("summary")[-1]
    records = master.events("generation")
    best = max(one["return_max"] for one in records if one["return_max"] is not None)
    print("best return of an episode of 60 steps at most:", best, "quarantined:", summary["quarantined"], "honest pids", [one.pid for one in honest])
    print([one["text"][:150] for one in master.events("note")][:6])
    assert best < 900, "a liar's results were learnt from"


@pytest.mark.parametrize("strategy", ["ars", "openai_es"])
def test_a_fitness_that_is_not_the_return_is_refused_where_fitness_is_the_return(strategy: str, cluster: Cluster) -> None:
    """Returns are compared with the declared rewards; fitness, which is what is learnt from, is not, nor with the return."""
    values = {**CARTPOLE, "generations": 5, "strategy": strategy, "block": 1}
    master = cluster.master("fit", values)
    bad = liar(cluster, "fit", "fitness")
    assert master.wait(60) == 0, master.said()
    records = master.events("generation")
    print([(one["return_max"], one["fitness_max"]) for one in records], master.events("summary")[-1].get("digest"))
    assert all(one["fitness_max"] < 1e9 for one in records if one["fitness_max"] is not None)
    assert bad.process.poll() is None


def test_an_answer_that_says_it_took_forever_does_not_let_a_hoarder_hold_the_run(cluster: Cluster) -> None:
    """As test_hoarder, where a suspected hoarder is found after its patience; one answer of 1e308 seconds makes that infinite."""
    values = {**VALUES, "wall_limit": 1, "generations": 100000}
    master = cluster.master("held", values)
    seen = cluster.seen("held")
    bad = liar(cluster, "held", "seconds")
    seen.joined(bad)
    wait_for(seen.reached(3), "some generations are played")
    with hoarding(cluster, "held") as hoarder:
        wait_for(lambda: hoarder.taken > 0, "it holds something")
        honest = cluster.worker("held")
        time.sleep(10)
        assert honest.process.poll() is None
        before = seen.generation()
        time.sleep(20)
        after = seen.generation()
        print("generations in 20 s:", after - before, "taken:", hoarder.taken, [one["text"][:120] for one in master.events("note")][-3:])
    assert after > before
