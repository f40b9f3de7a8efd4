"""Random schedules of the asynchronous schedule: no slot counts twice, none with foreign
parameters, and every run ends.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from master.collect.publication.closing import AsyncBatch, PriorPublication
from tests.memory_channel import MemoryServer
from tests.model.actors import new_worker
from tests.model.async_actors import MAX_LAG, AsyncWorld, new_async_master
from tests.model.world import KINDS_OF_FAULT, Rules

RULES = Rules(collector=True)


def ended(
    seeds: range,
    rules: Rules = RULES,
    seen: Counter[str] | None = None,
    latest: list[int] | None = None,
) -> list[tuple[int, str, list[str]]]:
    """(seed, outcome, what was wrong) of the schedules that did not end right; what happened is
    added to ``seen`` and ``latest``.
    """
    found = []
    for seed in seeds:
        world = AsyncWorld(seed, rules)
        outcome = world.run(new_worker, new_async_master)
        if seen is not None and latest is not None:
            seen.update(world.seen)
            latest.append(world.latest)
        if outcome != "right":
            found.append((seed, outcome, world.wrong))
    return found


def said(found: list[tuple[int, str, list[str]]]) -> str:
    return " ".join(text for _, _, wrong in found for text in wrong)


def test_every_schedule_ends_right_and_every_fault_was_among_them() -> None:
    seen: Counter[str] = Counter()
    latest: list[int] = []
    assert ended(range(160), seen=seen, latest=latest) == []
    for what in (
        *KINDS_OF_FAULT,
        "claim lost",
        "reply lost",
        "episode failed",
        "publish",
        "reconcile",
        "extend",
        "fenced",
        "late answers",
    ):
        assert seen[what] >= 20, f"{what} happened {seen[what]} times: these schedules show little"
    assert max(latest) == MAX_LAG


@pytest.mark.slow
def test_hundreds_more_schedules_end_right() -> None:
    assert ended(range(1000, 1400)) == []


def test_a_schedule_repeats_itself() -> None:
    def told(seed: int) -> tuple[str, int, Counter[str]]:
        world = AsyncWorld(seed, RULES)
        return world.run(new_worker, new_async_master), world.steps, world.seen

    assert [told(seed) for seed in range(5)] == [told(seed) for seed in range(5)]


def test_without_the_used_slots_in_the_checkpoint_a_takeover_would_count_them_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = AsyncBatch.to_open_publication

    def forgetful(window: AsyncBatch, of: PriorPublication) -> object:
        return replace(whole(window, of), counted=np.empty((0, 2), np.int64))

    monkeypatch.setattr(AsyncBatch, "to_open_publication", forgetful)
    assert "slots count twice" in said(ended(range(60)))


def test_without_the_publications_name_foreign_values_would_be_offered() -> None:
    assert ended(range(20), Rules(collector=True, publication=False))


def test_without_the_lag_answers_of_any_age_would_count(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = AsyncBatch.take_still_open
    monkeypatch.setattr(
        AsyncBatch,
        "take_still_open",
        lambda window, tally, generation, max_lag: whole(window, tally, generation, 100),
    )
    assert "was used in generation" in said(ended(range(100)))


def test_without_the_fence_a_replaced_master_would_be_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        MemoryServer, "fence", lambda server, token: setattr(server, "epoch", token)
    )
    assert "replaced master" in said(ended(range(20)))
