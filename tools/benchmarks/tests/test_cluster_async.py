"""The simulated cluster under the asynchronous schedule: what counts as work, and a model in which
nobody waits.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from es_queue.config.run_config import ASYNC, SYNC
from es_queue.protocol.messages import TRAIN, Block
from tests.cases import each_case
from tools.benchmarks.cluster import scale_page, scale_table
from tools.benchmarks.cluster.live import WALKER, configuration, counted_seconds, within
from tools.benchmarks.cluster.simulation.discrete_events import Cluster, simulated
from tools.benchmarks.cluster.simulation.discrete_events_async import AsyncCluster
from tools.benchmarks.cluster.simulation.durations import HEAVY, RECORDED, SLOW, Durations
from tools.benchmarks.report import BY_HAND
from tools.benchmarks.tests.test_cluster import NOTHING


def test_seconds_within_a_window_are_cut_at_its_ends() -> None:
    plays = [(0.0, 2.0), (1.0, 3.0), (4.5, 10.0), (9.0, 1.0)]
    assert within(plays, 1.0, 5.0) == pytest.approx(1.0 + 3.0 + 0.5)


def test_work_that_was_refused_is_no_work() -> None:
    config, drawn = configuration(20, 5, WALKER, ASYNC), Durations(SLOW)
    whole = counted_seconds(config, drawn, [1, 2], [(0.0, 30.0)], 0.0, 20.0, {})
    assert whole == 20.0
    assert counted_seconds(
        config, drawn, [1, 2], [(0.0, 30.0)], 0.0, 20.0, {"stale": 3}
    ) == pytest.approx(20.0 - 6 * drawn.mean())


def test_a_synchronous_generation_counts_each_slot_once_however_often_it_was_played() -> None:
    config, drawn = configuration(20, 5, WALKER, SYNC), Durations(HEAVY)
    expected = sum(
        float(one.sum() + one[0] / 2) for one in (drawn.slots(1, 10), drawn.slots(2, 10))
    )
    assert counted_seconds(
        config, drawn, [1, 2], [(0.0, 1e9)], 0.0, 1e9, {"duplicate": 5}
    ) == pytest.approx(expected)


@each_case("kind", [RECORDED, SLOW, HEAVY])
def test_nobody_waits_in_an_asynchronous_cluster_without_service_times(kind: str) -> None:
    population = 2 * round(20 * 10 / Durations(kind).mean() / 2)
    found = simulated(20, Durations(kind), population, NOTHING, kind=AsyncCluster)
    assert 0.99 < found["efficiency"] < 1.0 + 1e-9


def test_a_slow_master_starves_an_asynchronous_cluster_less_than_a_synchronous_one() -> None:
    slow = replace(NOTHING, close=(5.0, 0.0, 0.0), close_async=(5.0, 0.0, 0.0))
    of = {
        kind: simulated(20, Durations(RECORDED), 9000, slow, kind=kind)["efficiency"]
        for kind in (Cluster, AsyncCluster)
    }
    assert of[Cluster] < of[AsyncCluster] < 0.9


def test_an_answer_that_is_too_old_is_not_counted() -> None:
    cluster = AsyncCluster(2, Durations(RECORDED), 8, NOTHING, max_lag=1)
    cluster._generation, cluster._publication, cluster._known_workers, cluster._last = (
        5,
        "5",
        bytearray(40),
        99,
    )
    cluster.spans = [[0.0, 0.0] for _ in range(6)]
    cluster._stream, cluster._asleep = [], False
    for number, counted in ((3, 0), (4, 1), (5, 2)):
        cluster._members[0].block = Block(str(number), TRAIN, 0, 1)
        cluster._accept_answer(cluster._members[0], 0.0, 1.0)
        assert len(cluster.plays) == counted
    assert cluster.stale == 1


def test_an_asynchronous_cluster_is_the_same_each_time() -> None:
    given: dict[str, Any] = {"population": 400, "schedule": ASYNC}
    assert scale_table.simulated(30, HEAVY, **given) == scale_table.simulated(30, HEAVY, **given)


def found() -> dict[str, Any]:
    """Figures as ``scale_table.from_rows`` gives them, of models in the place of real runs."""
    services = scale_table.shipped()
    model = scale_table.simulated(18, RECORDED, schedule=ASYNC, population=2000)
    real = {
        **model,
        "blocks_per_second": 1.0,
        "played_twice": 0.0,
        "timers_late": 0.001,
        "control": {"workers": 18, "orders": 1.0, "beats": 1.0, "idle_claims": 0.0},
        "cpu": {"master": 0.1, "redis": 0.1, "simulator": 0.1},
    }
    overhead = {
        "parameters": 10,
        "episodes": 10,
        "workers": 10,
        "last_answer_to_published": 0.1,
        "published_to_first_claim": 0.1,
        "share_of_ten_seconds": 0.02,
    }
    agreed = {
        "workers": 18,
        "durations": RECORDED,
        "schedule": ASYNC,
        "real": 0.9,
        "simulated": 0.92,
        "points": 2.0,
    }
    return {
        "real": [real],
        "simulated": [model],
        "agreement": [agreed],
        "overhead": overhead,
        "services": services.__dict__,
    }


def test_the_page_has_a_line_for_each_row_and_keeps_what_was_written_by_hand() -> None:
    written = scale_page.document(found(), f"old\n{BY_HAND}\nby hand\n")
    assert written.count("| async | walker | 18 |") == 3
    assert written.endswith(f"{BY_HAND}\nby hand\n")
    assert "old" not in written.partition(BY_HAND)[0].split()
    assert scale_page.document(found(), written) == written


def test_a_missed_target_is_called_missed() -> None:
    row = {**found()["real"][0], "efficiency": 0.9699}
    assert "**missed**" in scale_page.efficiency_line(row, "real")
    assert "met" in scale_page.efficiency_line({**row, "efficiency": 0.97}, "real")
