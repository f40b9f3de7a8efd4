"""Spot hosts are lost by a schedule, and a quiet run has the same digests: half a minute of it."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from tests.integration.processes import MARK, marked, wait_for
from tools.spot_rehearsal import LossPlan, host_lives, rehearse


def test_the_lives_of_a_host_depend_only_on_the_seed_and_its_number() -> None:
    lives = {
        (seed, number): list(islice(host_lives(LossPlan(20, 600.0, seed), number), 50))
        for seed in (1, 2)
        for number in range(20)
    }
    assert lives[1, 3] == list(islice(host_lives(LossPlan(5, 60.0, 1), 3), 50))
    assert len({str(each) for each in lives.values()}) == len(lives)
    ups = [life.up for each in lives.values() for life in each]
    assert 200 < sum(ups) / len(ups) < 280, "the mean of the plan"


@pytest.mark.slow
def test_half_a_minute_of_lost_hosts_changes_no_digest_and_leaves_nothing_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MARK, "spot-rehearsal")
    plan = LossPlan(hosts=6, seconds=30.0, seed=1, up=8.0, down=3.0)
    figures = rehearse(plan, tmp_path)
    assert figures["generations"] > 3 and figures["distinct digests"] == figures["generations"]
    assert figures["lost without notice"] > 3 and figures["lost with notice"] > 3
    assert figures["generations with another digest"] == 0
    wait_for(lambda: not marked("spot-rehearsal"), "nothing is left")
