"""Forged seconds: a worker says how long its block took; patience with others does not follow from
that.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from es_queue.protocol.messages import TRAIN, Answer, Block
from master.collect.blocks.block_scheduler import BlockScheduler
from master.collect.blocks.stragglers import STRAGGLER_FACTOR, StragglerTracker
from master.collect.ledger import Ledger
from tests.abuse.cluster import cluster_of
from tests.abuse.lying_strangely import LIE
from tests.abuse.test_hoarder import VALUES, hoarding
from tests.integration.processes import Processes, wait_for
from tests.unit.master.collect.test_ledger import EXPECTATIONS, PUBLICATION, SLOTS, result, worker

ROOT = Path(__file__).resolve().parents[2]
FOREVER, WAITED = 1e308, 3.0


def told(seconds: float) -> Ledger:
    """A ledger whose first slot took that long, as a worker says; its master has waited 3 s."""
    ledger = Ledger(PUBLICATION, EXPECTATIONS, {TRAIN: SLOTS}, opened_at=time.monotonic() - WAITED)
    assert ledger.accept(Answer(PUBLICATION, TRAIN, worker(), seconds, (result(0),)).encode())
    return ledger


@pytest.mark.parametrize(("seconds", "counted"), [(0.5, 0.5), (FOREVER, WAITED)])
def test_no_answer_took_longer_than_the_master_has_waited(seconds: float, counted: float) -> None:
    assert told(seconds).tally.seconds_per_slot(TRAIN) == pytest.approx(counted, abs=0.5)


def test_patience_ends_after_the_wall_limit_of_all_episodes_whatever_was_measured() -> None:
    cutter = BlockScheduler(per_slot=2, wall=10.0, seconds={TRAIN: FOREVER})
    block = Block(PUBLICATION, TRAIN, 0, 3)
    assert cutter.patience(block) == cutter.longest(block) == 10 * (1 + 3 * 2)
    overdue = StragglerTracker(cutter, 0.0)
    assert overdue._patience(told(1.0), block) == cutter.longest(block)
    cutter.seconds[TRAIN] = 0.5
    assert overdue._patience(told(1.0), block) == STRAGGLER_FACTOR * 0.5 * 3


def test_a_hoarder_does_not_hold_a_run_in_which_a_block_is_said_to_have_taken_forever(
    tmp_path: Path, processes: Processes
) -> None:
    with cluster_of(tmp_path, processes) as cluster:
        master = cluster.master("held", {**VALUES, "wall_limit": 1, "generations": 100_000})
        seen = cluster.seen("held")
        bad = processes.start(
            processes.rq,
            "worker",
            "held",
            "--name",
            "liar",
            "-w",
            "tests.abuse.lying_strangely.Worker",
            "--path",
            ROOT,
            RQ_REDIS_URL=cluster.url("worker"),
            **{LIE: "seconds"},
        )
        seen.joined(bad)
        wait_for(seen.has_reached(3), "the false seconds have counted")
        with hoarding(cluster, "held") as hoarder:
            wait_for(lambda: hoarder.publications, "it holds something")
            generation = seen.generation()
            wait_for(seen.has_reached(generation + 5), "the run goes on beside it")
        assert master.process.poll() is None
