"""Every fault of the table, injected a few times: noticed as often, nothing lost, and the
undisturbed run's digest.
"""

from __future__ import annotations

import shutil

import pytest

from tests.faults.scenario import Scenario, arena, load


def marked(one: Scenario) -> object:
    marks = [pytest.mark.slow] if one.slow else []
    return pytest.param(one, id=one.name.replace(" ", "-"), marks=marks)


@pytest.mark.parametrize("one", [marked(one) for one in load().values() if one.quick])
def test_a_fault_is_noticed_and_costs_nothing_for_good(one: Scenario) -> None:
    if one.needs and shutil.which(one.needs) is None:
        pytest.skip(f"{one.needs} is not here")
    with arena() as place:
        row = one.play(place, one.quick)
    assert row.is_sound, row
