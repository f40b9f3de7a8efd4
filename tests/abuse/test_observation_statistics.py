"""A worker that lies about its observations: it cannot ruin the statistics of a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.abuse.lying import MEAN
from tests.abuse.servers import WHEEL
from tests.abuse.test_least_privilege import Household, guarded
from tests.integration.processes import Processes, Seen, flags, wait_for

ROOT = Path(__file__).resolve().parents[2]
LEARNING: dict[str, Any] = {
    "env": "CartPole-v1",
    "seed": 1,
    "noise_size": 2**20,
    "eval_every": 5,
    "eval_episodes": 10,
    "generations": 300,
    "final_episodes": 20,
    "block": 1,
}
SOLVED = 450.0
#: Float32 goes to 3.4028e38.
LARGEST = "3.4e38"


@pytest.fixture
def household(tmp_path: Path, processes: Processes) -> Iterator[Household]:
    with guarded(WHEEL, tmp_path, processes) as one:
        yield one


@pytest.mark.parametrize("words", [(), ("--strict",), ("--audit", "0.01")], ids=" ".join)
def test_a_run_with_a_worker_that_lies_about_its_observations_is_solved(
    household: Household, words: tuple[str, ...]
) -> None:
    seen = Seen(household.client, "lied-to")
    master = household.master(*flags(LEARNING), *words, "--run", "lied-to", "--json")
    wait_for(lambda: seen.progress().get("publication"), "the run has a publication")
    liar = ("--name", "liar", "-w", "tests.abuse.lying.Worker", "--path", ROOT)
    household.worker(*liar, **{MEAN: LARGEST})
    wait_for(seen.has_reached(1), "the liar has answered a whole generation", 60)
    household.worker("--name", "honest")
    assert master.wait(240) == 0, master.said()[-3000:]
    summary = master.events("summary")[-1]
    print(f"the run ended with {summary['eval_mean']}")
    assert summary["eval_mean"] >= SOLVED
    refused = int(seen.client.hget(seen.keys.refused, "implausible-moments") or 0)
    assert refused > 0
    notes = [one["text"] for one in master.events("note")]
    assert len([one for one in notes if "sent observation statistics far beyond" in one]) == 1
