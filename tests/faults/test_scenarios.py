"""Every fault of the table, injected a few times: noticed as often, nothing lost, and the
undisturbed run's digest.
"""

from __future__ import annotations

import shutil

import pytest

from tests.faults.scenario import Scenario, arena, load

#: A few of each kind are in the fast tier; all the others are marked slow.
FAST = (
    "worker killed while",
    "RQ worker killed",
    "worker asleep",
    "master killed: before publish",
    "master killed: mid-collect",
    "masters started at once",
    "master paused beyond",
    "with its data, at once",
    "started again empty",
    "FLUSHALL while",
    "out of memory",
    "every connection reset",
    "reply to publish",
    "reply to an answer",
    "half-open (silent, no RST) for 3 s",
    "odd results",
    "environment raises once",
    "environment hangs once",
    "scored worst",
    "damaged checkpoint",
)


def marked(one: Scenario) -> object:
    fast = not one.slow and any(text in one.name for text in FAST)
    return pytest.param(
        one, id=one.name.replace(" ", "-"), marks=[] if fast else [pytest.mark.slow]
    )


def test_the_fast_tier_names_scenarios_that_there_are() -> None:
    assert [text for text in FAST if not any(text in name for name in load())] == []


@pytest.mark.parametrize("one", [marked(one) for one in load().values()])
def test_a_fault_is_noticed_and_costs_nothing_for_good(one: Scenario) -> None:
    if one.needs and shutil.which(one.needs) is None:
        pytest.skip(f"{one.needs} is not here")
    with arena() as place:
        row = one.play(place, one.quick)
    assert row.is_sound, row
