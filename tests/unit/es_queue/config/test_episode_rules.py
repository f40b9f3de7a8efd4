"""The written forms of episode rules: what they mean, and that nothing else is taken for one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_queue.config.run_config import RunConfig
from es_queue.environments.episode_rules import (
    DEFAULT_LIMIT,
    EpisodeRules,
    evaluation_rules,
    parse_step_limit,
)
from es_queue.errors import UsageError
from tests.cases import each_case

LENGTHS = st.lists(st.integers(1, 5000), max_size=30)


@each_case(
    ("text", "env_limit", "first"),
    [
        ("env", 1600, 1600),
        ("env", None, DEFAULT_LIMIT),
        ("400", 1600, 400),
        ("4000", 1600, 1600),
        ("40000", None, 40000),
        ("adaptive:200,0.5,1.5", 1600, 200),
        ("adaptive:2000,0.5,1.5", 1600, 1600),
        ("adaptive:20000,0.5,1.5", None, DEFAULT_LIMIT),
        ("adaptive:20000,0.5,1.5,50000", None, 20000),
        ("mean:2", 1600, 1600),
        ("mean:2", None, DEFAULT_LIMIT),
    ],
)
def test_the_first_limit_keeps_within_the_environments_own(
    text: str, env_limit: int | None, first: int
) -> None:
    assert parse_step_limit(text).initial_limit(env_limit) == first


@each_case(
    ("text", "current", "lengths", "after"),
    [
        ("env", 1600, [1600, 1600], 1600),
        ("400", 400, [400, 400], 400),
        ("adaptive:100,0.5,1.5", 100, [100, 100, 7, 9], 150),
        ("adaptive:100,0.5,1.5", 100, [100, 99, 7, 9], 100),
        ("adaptive:100,0.07,1.5", 100, [100] * 7 + [1] * 93, 150),
        ("adaptive:100,1,1.001", 100, [100], 101),
        ("adaptive:100,1,1", 1, [1], 2),
        ("adaptive:100,0.5,1.5,120", 100, [100], 120),
        ("adaptive:100,0.5,1.5", 1500, [1500], 1600),
        ("mean:2", 1600, [10, 11, 13], 23),
        ("mean:2", 1600, [1600, 1600], 1600),
        ("mean:0.001", 1600, [1], 1),
    ],
)
def test_the_next_limit_follows_from_the_counted_lengths(
    text: str, current: int, lengths: list[int], after: int
) -> None:
    assert parse_step_limit(text).next_limit(current, lengths, 1600) == after


@given(
    lengths=LENGTHS,
    current=st.integers(1, 1600),
    text=st.sampled_from(["adaptive:9,0.3,1.7", "mean:2", "mean:0.3"]),
)
def test_no_limit_leaves_its_bounds_and_the_order_of_episodes_does_not_matter(
    lengths: list[int], current: int, text: str
) -> None:
    rule = parse_step_limit(text)
    after = rule.next_limit(current, lengths, 1600)
    assert 1 <= after <= 1600
    assert rule.next_limit(current, lengths[::-1], 1600) == after


@each_case(
    "text",
    [
        "0",
        "1.5",
        "1e3",
        "9999999999",
        "env:3",
        "adaptive:100,0.5",
        "adaptive:0,0.5,1.5",
        "adaptive:100,1.1,1.5",
        "adaptive:100,0.5,1.5,99",
        "adaptive:100,nan,1.5",
        "mean:0",
        "mean:inf",
        "median:2",
    ],
)
def test_a_step_limit_of_another_form_is_refused_by_name(text: str) -> None:
    with pytest.raises(
        UsageError, match=r"^step_limit is .*: use env, a number of steps, adaptive:"
    ):
        RunConfig(step_limit=text)


@each_case(
    ("setting", "own", "limit"), [("auto", 1600, 1600), (70, 1600, 70), ("auto", None, 10_000)]
)
def test_evaluation_obeys_only_its_own_limit(setting: Any, own: int | None, limit: int) -> None:
    config = RunConfig(env="X-v0", reward_shift=0.5, patience="9,1", eval_step_limit=setting)
    assert evaluation_rules(config, own) == EpisodeRules(limit)
