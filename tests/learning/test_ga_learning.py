"""The genetic algorithm learns, through real workers, what random search of the same budget does
not find.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import processes, short_folder, start_master  # noqa: F401 - fixtures
from tests.integration.processes import Master, Processes

#: Together they take minutes.
pytestmark = pytest.mark.slow

#: Twenty coordinates, each a distance of 1 from the start, so -20 there; mutations are of 0.1.
FAR: dict[str, Any] = {
    "objective": "tests.objectives:far",
    "parameters": 20,
    "population": 50,
    "candidates": 3,
    "elite_episodes": 5,
    "eval_every": 0,
    "final_episodes": 20,
    "target_reward": "none",
    "max_steps": 4000,
    "noise_size": 2**16,
}
EVOLVED: dict[str, Any] = {**FAR, "strategy": "ga", "truncation": 10, "sigma": 0.1}
REACHED = -3.0
HOUSE = Path(__file__).parents[2]

Start = Callable[..., Master]


@pytest.fixture
def end(
    valkey_url: str,
    start_master: Start,  # noqa: F811
    processes: Processes,  # noqa: F811
) -> Callable[[dict[str, Any]], float]:
    """The elite's mean in the final evaluation of a run by two workers."""
    for _ in range(2):
        processes.worker(valkey_url, PYTHONPATH=str(HOUSE))
    return lambda values: float(start_master("far", values).summary(120)["eval_mean"])


@pytest.mark.parametrize("seed", [1])
def test_mutations_that_add_up_reach_what_is_many_steps_away(
    end: Callable[[dict[str, Any]], float], seed: int
) -> None:
    assert end({**EVOLVED, "seed": seed}) > REACHED


@pytest.mark.parametrize("seed", [1])
def test_they_do_without_generations(end: Callable[[dict[str, Any]], float], seed: int) -> None:
    assert end({**EVOLVED, "schedule": "async", "seed": seed}) > REACHED


@pytest.mark.parametrize("seed", [1])
def test_random_search_of_the_same_budget_does_not(
    end: Callable[[dict[str, Any]], float], seed: int
) -> None:
    assert (
        end({**FAR, "strategy": "random_search", "sigma": 1.0, "seed": seed}) < 3 * REACHED
    )  # smaller ones reach less
