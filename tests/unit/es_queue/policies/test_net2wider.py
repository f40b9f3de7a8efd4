"""Growing a policy: the larger one acts as the smaller, and has something new to learn with."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from es_queue.config.run_config import RunConfig
from es_queue.environments.interface import ActionSpec
from es_queue.errors import UsageError
from es_queue.policies import Policy, make_policy
from es_queue.policies.base import SelectedInputsPolicy
from es_queue.policies.linear_mlp import widen
from tests.cases import each_case
from tests.parts import built

RNG = np.random.default_rng(4)


def outputs(policy: Policy, parameters: np.ndarray, observations: np.ndarray) -> np.ndarray:
    act = policy.bind(parameters[None]).act_one
    return np.stack([act(np.ascontiguousarray(row)) for row in observations])


def acts_alike(small: Policy, large: Policy) -> np.ndarray:
    parameters = RNG.normal(size=small.size).astype(np.float32)
    result = widen(small, parameters, large, large.initial(3, "orthogonal"))
    assert result.shape == (large.size,) and result.dtype == np.float32
    seen = RNG.normal(size=(20, large.observation_size)).astype(np.float32)
    old = outputs(small, parameters, seen[:, : small.observation_size])
    np.testing.assert_allclose(outputs(large, result, seen), old, rtol=1e-4, atol=1e-5)
    return result


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 6), st.integers(0, 4), st.integers(1, 4))
def test_a_linear_policy_of_more_observations_acts_as_before(
    observations: int, more: int, out: int
) -> None:
    acts_alike(built("linear", observations, out), built("linear", observations + more, out))


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 5),
    st.integers(0, 4),
    st.lists(st.tuples(st.integers(1, 6), st.integers(0, 5)), min_size=1, max_size=3),
    st.sampled_from(["tanh", "relu"]),
)
def test_a_wider_perceptron_of_more_observations_acts_as_before(
    observations: int, more: int, units: list[tuple[int, int]], activation: str
) -> None:
    old, new = (tuple(before + wider * each for before, each in units) for wider in (0, 1))
    small = built("mlp", observations, 2, hidden=old, activation=activation)
    acts_alike(small, built("mlp", observations + more, 2, hidden=new, activation=activation))


@each_case(
    ("small", "large", "sentence"),
    [
        (
            built("linear", 3, 2),
            built("linear", 3, 3),
            "returns 2 numbers for an action, but this environment takes 3",
        ),
        (
            built("linear", 4, 2),
            built("linear", 3, 2),
            "takes 4 observations, but this environment has only 3",
        ),
        (
            built("mlp", 3, 2, hidden=(4,)),
            built("mlp", 3, 2, hidden=(3,)),
            "hidden layers have 4 units, which do not fit into 3",
        ),
    ],
)
def test_what_cannot_be_grown_is_refused_with_the_way_out(
    small: Policy, large: Policy, sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence):
        widen(small, np.zeros(small.size, np.float32), large, np.zeros(large.size, np.float32))


@each_case(("kind", "hidden"), [("linear", ()), ("mlp", (6,)), ("lstm", (4,))])
def test_a_policy_of_some_numbers_acts_alike_on_the_whole_observation(
    kind: str, hidden: tuple[int, ...]
) -> None:
    layers = {"hidden": hidden} if hidden else {}
    config = RunConfig(policy=kind, observe="4,0-1", **layers)
    policy = make_policy(config, 5, ActionSpec("box", (2,), (-1.0,) * 2, (1.0,) * 2))
    parameters = RNG.normal(size=policy.size).astype(np.float32)
    assert isinstance(policy, SelectedInputsPolicy)
    whole, expanded = policy.whole, policy.for_whole(parameters)
    seen = RNG.normal(size=(20, 5)).astype(np.float32)
    expected = outputs(policy, parameters, seen)
    np.testing.assert_allclose(outputs(whole, expanded, seen), expected, rtol=1e-4, atol=1e-5)
    changed = seen + np.array([0, 0, 1, 1, 0], np.float32)
    np.testing.assert_array_equal(outputs(policy, parameters, changed), expected)
