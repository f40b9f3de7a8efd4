"""Random schedules of the product's own master and workers: every run ends with the quiet run's
parameters, or in the asynchronous schedule without a result that counts twice or is foreign.
Without a rule, some do not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.memory import MemoryServer
from tests.model.world import KINDS_OF_FAULT, WORKER_FAULTS, Rules, World

SYNC, ASYNC = Rules("sync"), Rules("async")
both_schedules = pytest.mark.parametrize("rules", [SYNC, ASYNC], ids=["sync", "async"])


def not_right(
    seeds: range, rules: Rules, seen: Counter[str] | None = None
) -> Iterator[tuple[int, str, str]]:
    """(seed, outcome, what was wrong) of the schedules that do not end right; what happened is
    added to ``seen``.
    """
    for seed in seeds:
        world = World(seed, rules)
        outcome = world.run()
        if seen is not None:
            seen.update(world.seen)
        if outcome != "right":
            yield seed, outcome, " ".join(world.wrong)


@both_schedules
def test_every_schedule_ends_right_and_every_fault_was_among_them(rules: Rules) -> None:
    seen = Counter[str]()
    assert list(not_right(range(60), rules, seen)) == []
    happened = {*KINDS_OF_FAULT, "claim lost", "reply lost", "episode failed", "fenced"}
    assert {what: seen[what] for what in happened if seen[what] < 10} == {}
    assert (seen["late results"] >= 10) == (rules is ASYNC)


@both_schedules
def test_a_schedule_repeats_itself(rules: Rules) -> None:
    def play(seed: int) -> tuple[str, int, Counter[str]]:
        world = World(seed, rules)
        return world.run(), world.steps, world.seen

    assert [play(seed) for seed in range(3)] == [play(seed) for seed in range(3)]


def test_some_schedules_hang_without_a_workers_look_at_its_own_claims() -> None:
    without = Rules(own_claims=False, failures=False, faults=WORKER_FAULTS)
    assert any(World(seed, without, bound=2000).run() == "hung" for seed in range(20))


@both_schedules
def test_without_the_fence_a_replaced_master_would_be_heard(
    rules: Rules, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        MemoryServer, "fence", lambda server, token: setattr(server, "epoch", token)
    )
    assert any("replaced master" in wrong for _, _, wrong in not_right(range(20), rules))
