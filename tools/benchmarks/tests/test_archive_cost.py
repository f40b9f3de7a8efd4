"""What an archive costs the master."""

from __future__ import annotations

from tools.benchmarks.micro.archive_cost import measure


def test_a_small_archive_has_its_costs_and_sizes() -> None:
    costs = measure(size=8, population=64, cells=(10, 12))
    assert 0 < costs.total < 60
    parents = costs.published - 4 * (8 + 2 + 128)  # without the best elite, counts and draws
    assert 0 < parents <= 4 * 8 * 120
    assert costs.saved > 120 * (4 * 8 + 4 * 2 + 16)
