"""Box actions cut into bins: which values there are, which one is chosen, and what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest

from es_queue.config.run_config import RunConfig
from es_queue.environments.factory import describe, with_bins
from es_queue.environments.interface import ActionSpec, EnvironmentRequest
from es_queue.errors import UsageError
from es_queue.policies import make_policy
from es_queue.policies.actions import ActionMap
from tests.cases import each_case
from tests.tiny import QUAD

BOX = ActionSpec("box", (2,), (-2.0, 0.0), (2.0, 10.0))


def test_uniform_bins_lie_at_even_distances_from_bound_to_bound() -> None:
    actions = ActionMap(with_bins(BOX, "uniform:5"), "clip")
    chosen = [
        actions.act_one(np.eye(5, dtype=np.float32)[[place, 4 - place]].ravel()).tolist()
        for place in range(5)
    ]
    assert chosen == [[-2, 10], [-1, 7.5], [0, 5], [1, 2.5], [2, 0]]


def test_custom_bins_are_the_listed_values_between_the_bounds_of_each_number() -> None:
    actions = ActionMap(with_bins(BOX, "custom:-1,-0.5,1"), "clip")
    raw = np.array([[3, 9, 1, 0, 0, 5], [1, 1, 1, -3, -2, -2]], np.float32)
    assert actions.act(raw).tolist() == [[-1, 10], [-2, 2.5]]  # of equals the lowest
    assert [actions.act_one(row).tolist() for row in raw] == actions.act(raw).tolist()


def test_noise_follows_the_choice_and_stays_inside_the_bounds() -> None:
    actions, raw = (
        ActionMap(with_bins(BOX, "uniform:2"), "clip"),
        np.array([1, 0, 0, 1], np.float32),
    )
    assert actions.act_one(raw, np.array([0.5, 0.5], np.float32)).tolist() == [-1.5, 10]
    assert actions.act(raw[None], np.array([[-0.5, -0.5]], np.float32)).tolist() == [[-2, 9.5]]


def test_the_environment_s_action_carries_its_bins_and_the_policy_has_an_output_for_each() -> None:
    config = RunConfig(env=QUAD, action_bins="uniform:3", policy="linear")
    action = describe(EnvironmentRequest.of(config)).action
    assert action.bins == (-1, 0, 1) and action.outputs == 6
    assert make_policy(config, 3, action).size == 24
    assert ActionSpec.from_dict(json.loads(json.dumps(action.to_dict()))) == action


@each_case(
    "text",
    [
        "uniform",
        "uniform:1",
        "uniform:1001",
        "custom:0",
        "custom:1,-1",
        "custom:-1,nan",
        "custom:-1,2",
        "even:3",
    ],
)
def test_what_are_no_bins_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=f"action_bins is {text!r} in RunConfig: use uniform:K"):
        RunConfig(action_bins=text)


def test_only_boxes_with_finite_bounds_are_cut() -> None:
    for spec in (
        ActionSpec("discrete", sizes=(2,), starts=(0,)),
        ActionSpec("box", (1,), (-np.inf,), (1.0,)),
    ):
        with pytest.raises(UsageError, match="only box actions with finite bounds"):
            with_bins(spec, "uniform:3")
    with pytest.raises(UsageError, match="action_bound is tanh, but bins stay inside"):
        ActionMap(with_bins(BOX, "uniform:3"), "tanh")
