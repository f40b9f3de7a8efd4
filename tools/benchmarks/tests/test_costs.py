"""What a simulated worker's waits are measured by runs on the product as it is."""

from __future__ import annotations

from es_queue.config.run_config import RunConfig
from tools.benchmarks.cluster.costs import plan_cost


def test_the_price_of_planning_a_slot_can_be_measured() -> None:
    assert plan_cost(RunConfig(env="CartPole-v1", population=8)) > 0
