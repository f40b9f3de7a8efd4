"""Policies: layout, equations, memory, normalisation, and bits that do not depend on company."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from es_queue.config.run_config import POLICIES, RunConfig, own_settings
from es_queue.environments.interface import ActionSpec
from es_queue.errors import UsageError
from es_queue.policies import make_policy
from es_queue.policies.recurrent import CELLS, RecurrentPolicy
from tests.cases import each_case
from tests.parts import built

# --- policies: layout, bits that do not depend on how many are evaluated at once, first
# parameters


ACTIVATIONS = ("tanh", "relu", "selu", "elu", "lrelu")
BOX = ActionSpec("box", (4,), (-1.0,) * 4, (1.0,) * 4)


def random_floats(seed, *shape):
    """Normal numbers with some zeros of both signs, which show a different order of operations."""
    draw = np.random.default_rng(seed)
    values = (3 * draw.standard_normal(shape)).astype(np.float32)
    values[draw.random(shape) < 0.1] = 0.0
    values[draw.random(shape) < 0.1] = -0.0
    return values


def assert_single_and_batched_agree(policy, count, seed):
    parameters = random_floats(seed, count, policy.size)
    observations = random_floats(seed + 1, count, policy.observation_size)
    together = policy.bind(parameters)(observations)
    assert together.shape == (count, policy.outputs)
    assert together.dtype == np.float32
    for row in range(count):
        alone = policy.bind(parameters[row : row + 1])
        assert alone.act_one(observations[row]).tobytes() == together[row].tobytes()
        assert alone(observations[row : row + 1]).tobytes() == together[row].tobytes()


@settings(max_examples=150, deadline=None)
@given(
    st.integers(1, 60),
    st.integers(1, 9),
    st.lists(st.integers(1, 80), min_size=1, max_size=3),
    st.sampled_from(ACTIVATIONS),
    st.integers(1, 17),
    st.integers(0, 2**31),
)
def test_an_mlp_gives_the_same_bits_for_any_number_at_once(
    observation_size, outputs, hidden, activation, count, seed
):
    policy = built("mlp", observation_size, outputs, hidden=tuple(hidden), activation=activation)
    assert_single_and_batched_agree(policy, count, seed)


@each_case(("biases", "expected"), [(False, [420.0, 531.0]), (True, [426.0, 538.0])])
def test_the_linear_layout_is_one_matrix_in_c_order_then_biases(biases, expected):
    policy = built("linear", 3, 2, biases=biases)
    weights = np.arange(policy.size, dtype=np.float32)
    assert policy.size == 6 + 2 * biases
    x = np.array([1, 10, 100], np.float32)
    assert policy.bind(weights[None]).act_one(x).tolist() == expected
    assert not policy.initial(1, "auto").any()
    assert_single_and_batched_agree(policy, 3, seed=7)


def reference_mlp(parameters, shapes, activate, x):
    """The documented layout, read independently in float64."""
    start = 0
    for number, (rows, columns) in enumerate(shapes):
        weights = (
            parameters[start : start + rows * columns].reshape(rows, columns).astype(np.float64)
        )
        start += rows * columns
        x = x @ weights + parameters[start : start + columns]
        start += columns
        x = activate(x) if number < len(shapes) - 1 else x
    return x


FORMULAS = {
    "tanh": np.tanh,
    "relu": lambda x: np.where(x > 0, x, 0),
    "lrelu": lambda x: np.where(x > 0, x, 0.2 * x),
    "elu": lambda x: np.where(x > 0, x, np.exp(x) - 1),
    "selu": lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * (np.exp(x) - 1)),
}


@each_case("activation", ACTIVATIONS)
def test_an_mlp_is_weights_bias_activation_layer_by_layer(activation):
    policy = built("mlp", 5, 3, hidden=(7, 6), activation=activation)
    assert policy.size == 5 * 7 + 7 + 7 * 6 + 6 + 6 * 3 + 3
    parameters = 0.5 * random_floats(1, policy.size)
    x = random_floats(2, 5)
    expected = reference_mlp(
        parameters, [(5, 7), (7, 6), (6, 3)], FORMULAS[activation], x.astype(np.float64)
    )
    np.testing.assert_allclose(
        policy.bind(parameters[None]).act_one(x), expected, rtol=1e-4, atol=1e-5
    )


@each_case("hidden", [(7, 6), (4,)])
@each_case("normalised", [False, True])
def test_an_mlp_without_biases_is_the_one_whose_biases_are_zero(hidden, normalised):
    values = {"hidden": hidden, "batch_norm": "virtual" if normalised else "none"}
    batch = random_floats(9, 12, 5)
    bare = built("mlp", 5, 3, batch, biases=False, **values)
    whole = built("mlp", 5, 3, batch, **values)
    vector, wide, start = random_floats(1, bare.size), [], 0
    for rows, columns in bare.shapes:
        wide += [vector[start : start + rows * columns], np.zeros(columns, np.float32)]
        start += rows * columns
    expected = whole.bind(np.concatenate([*wide, vector[start:]])[None])
    x = random_floats(2, 5)
    np.testing.assert_array_equal(bare.bind(vector[None]).act_one(x), expected.act_one(x))
    assert len(bare.initial(1, "auto")) == bare.size == whole.size - sum(hidden) - 3
    assert bare.description != whole.description
    assert_single_and_batched_agree(bare, 3, seed=7)


@each_case("kind", ["mlp", "lstm"])
def test_more_parameters_than_a_run_can_have_are_refused_before_they_are_made(kind):
    with pytest.raises(
        UsageError,
        match=(
            rf"^the policy {kind} has [\d,]+ parameters, but at most 268,435,456 are "
            r"allowed"
        ),
    ):
        make_policy(RunConfig(policy=kind, hidden=(65536, 65536)), 24, BOX)


# --- what every policy promises. The list of kinds is the list here


SHAPE = (2, 40, 44)
SIZE = int(np.prod(SHAPE))
CHOICE = ActionSpec("discrete", sizes=(6,), starts=(0,))


def drawn(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 1, shape).astype(np.float32)


def variants(kind: str) -> Iterator[Any]:
    own = own_settings("policy", kind)
    for norm, biases in (("none", True), ("none", False), ("virtual", True)):
        if norm == "none" or "batch_norm" in own:
            values = {"hidden": (9, 5), "batch_norm": norm, "biases": biases}
            config = RunConfig(policy=kind, **{one: values[one] for one in values if one in own})
            reference = abs(drawn(1, 5, SIZE)) if norm == "virtual" else None
            yield make_policy(config, SIZE, CHOICE, SHAPE, reference)


@each_case("kind", POLICIES)
def test_whoever_acts_at_once_gets_the_bits_that_each_gets_alone(kind: str) -> None:
    for policy in variants(kind):
        rows = np.stack([policy.initial(seed, "normal") for seed in range(3)])
        rows += 0.02 * drawn(5, *rows.shape)
        seen = abs(drawn(7, 2, 3, SIZE))
        together = policy.bind(rows)
        alone = [policy.bind(row[None]).begin() for row in rows]
        for step in seen:
            expected = np.stack([act(one) for act, one in zip(alone, step, strict=True)])
            assert together(step).tobytes() == expected.tobytes()
            assert np.isfinite(expected).all() and expected.any()


@each_case("kind", POLICIES)
def test_an_episode_remembers_nothing_of_the_one_before(kind: str) -> None:
    for policy in variants(kind):
        bound = policy.bind(policy.initial(1, "normal")[None])
        episodes = []
        for _ in range(2):
            act = bound.begin()
            episodes.append([act(one).tobytes() for one in abs(drawn(1, 2, SIZE))])
        assert episodes[0] == episodes[1]


# --- recurrent policies: the published equations in the documented layout, memory that begins
# empty, bits that need no company


GATES = {"rnn": 1, "gru": 3, "lstm": 4}


def restless(policy: RecurrentPolicy, count: int) -> np.ndarray:
    return np.stack(
        [policy.initial(seed, "normal") + 0.2 * drawn(seed, policy.size) for seed in range(count)]
    )


def logistic(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def by_definition(
    kind: str, seen: list[np.ndarray], kept: list[np.ndarray], h: np.ndarray, c: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The equations, a gate at a time, of what each gate gets from the input and from the state."""
    if kind == "rnn":
        return np.tanh(seen[0] + kept[0]), c
    if kind == "gru":
        r, z = logistic(seen[0] + kept[0]), logistic(seen[1] + kept[1])
        return (1 - z) * np.tanh(seen[2] + r * kept[2]) + z * h, c
    i, f, g, o = (x + y for x, y in zip(seen, kept, strict=True))
    c = logistic(f) * c + logistic(i) * np.tanh(g)
    return logistic(o) * np.tanh(c), c


@each_case("kind", CELLS)
def test_a_policy_is_its_equations_in_the_documented_layout(kind: str) -> None:
    policy = built(kind, 3, 2, hidden=(4,))
    parameters, act = restless(policy, 1), None
    wide = GATES[kind] * 4
    cuts = np.cumsum([3 * wide, wide, 4 * wide, wide, 4 * 2])
    w_in, b_in, w_state, b_state, w, b = np.split(parameters[0].astype(np.float64), cuts)
    act, h, c = policy.bind(parameters).begin(), np.zeros(4), np.zeros(4)
    for x in drawn(1, 6, 3):
        seen = np.split(x @ w_in.reshape(3, wide) + b_in, GATES[kind])
        kept = np.split(h @ w_state.reshape(4, wide) + b_state, GATES[kind])
        h, c = by_definition(kind, seen, kept, h, c)
        np.testing.assert_allclose(act(x), h @ w.reshape(4, 2) + b, rtol=1e-4, atol=1e-5)
