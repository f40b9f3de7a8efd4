"""Blocks of slots played together: the same answers as one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from es_queue.protocol.messages import Answer, Block
from tests.cases import each_case
from tests.doors.test_episodes import Many, Swing
from tests.parts import TABLE, config_of, policy_size, task_of
from tests.tiny import BOX, spec_of
from workers.episode import EpisodeControl, Leaving
from workers.slots import Evaluator, FailureReport, RunParts


def evaluator(worlds: Any, make: Any = Swing, **values: Any) -> Evaluator:
    from es_queue.policies import make_policy
    from es_queue.strategies import make_strategy

    config, spec = config_of(policy="mlp", hidden=(4,), **values), spec_of(limit=400)
    policy = make_policy(config, 2, BOX)
    strategy = make_strategy(config, policy.size)
    parts = RunParts(config, spec, policy, strategy, make(), worlds)
    return Evaluator(parts, TABLE, EpisodeControl())


class Short(Swing):
    """Lasts 5 to 44 steps; raises in its fourth where ``fault`` names the remainder by which it is
    known.
    """

    fault_of = -1

    def reset(self, seed: int) -> np.ndarray:
        self.whole = seed
        first = super().reset(5 + seed % 40)
        self.fault = self.seed if seed % 7 == self.fault_of else -1
        return first


class Faulty(Short):
    fault_of = 3


def block_of(
    who: Evaluator, kind: str, stop: int, said: list[FailureReport] | None = None
) -> Answer:
    size = policy_size(who)
    task, published = task_of(
        size, 2, limit=30, parameters=np.random.default_rng(2).normal(size=size)
    )
    return who.evaluate(
        task,
        published,
        Block(task.publication, kind, 0, stop),
        "host-1-abcdef",
        (said if said is not None else []).append,
    )


@each_case(
    ("kind", "stop"), [("train", 9), ("eval", 9), ("centre", 1), ("train", 1), ("final", 40)]
)
@each_case(
    "values",
    [
        {},
        {"episodes": 4, "obs_sample": 1.0, "action_noise": 0.3},
        {"patience": "3,0.1", "reward_floor": "-0.5"},
    ],
)
def test_a_block_played_together_gives_the_same_answer(
    kind: str, stop: int, values: dict[str, Any]
) -> None:
    for make in (Short, Faulty):
        said: list[list[FailureReport]] = [[], []]
        one, other = (
            block_of(evaluator(worlds, make, **values), kind, stop, told)
            for worlds, told in zip((None, Many(make)), said, strict=True)
        )
        assert (one.results, one.failures) == (other.results, other.failures)
        assert [(failure.slot, failure.seed, failure.reason) for failure in said[0]] == [
            (failure.slot, failure.seed, failure.reason) for failure in said[1]
        ]
        assert all("fell over" in failure.trace for failure in said[1])


def test_a_process_that_has_grown_too_large_answers_what_it_has_played() -> None:
    who = evaluator(Many(Short, most=4), Short)
    who.control.finish_reason = "too large"
    sent = block_of(who, "train", 9)
    assert 1 <= len(sent.results) <= 2 and not sent.failures


def test_leaving_is_no_failure_of_a_batch() -> None:
    who = evaluator(Many(Short), Short)
    who.control.leave_reason = "asked"
    with pytest.raises(Leaving):
        block_of(who, "train", 9)
    assert who.control.episode_began is None


def test_a_noise_table_that_cannot_be_read_is_the_failure_of_its_slots(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    who = evaluator(Many(Short), Short)

    def unreadable(*_: object) -> list[np.ndarray]:
        raise OSError("no table")

    monkeypatch.setattr(who.table, "views", unreadable)
    sent = block_of(who, "train", 3)
    assert sent.results == () and {reason for _, reason in sent.failures} == {
        "host: OSError: no table"
    }
