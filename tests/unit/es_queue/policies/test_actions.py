"""Actions: every kind of space, bounds, noise before the bound, and what is not finite."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from es_queue.environments.interface import ActionSpec
from es_queue.errors import EsQueueError
from es_queue.policies.actions import ActionMap, NonFiniteOutput
from tests.cases import each_case

INF = float("inf")
BOX = ActionSpec("box", (4,), (-1.0, -2.0, 0.0, -INF), (1.0, 3.0, 0.5, INF))
FINITE = ActionSpec("box", (3,), (-1.0, -2.0, 0.1), (1.0, 3.0, 0.5))
SQUARE = ActionSpec("box", (2, 2), (-1.0,) * 4, (1.0,) * 4)
DISCRETE = ActionSpec("discrete", (), (), (), (4,), (-1,))
MULTI = ActionSpec("multidiscrete", (2,), (), (), (3, 2), (0, 5))
GRID = ActionSpec("multidiscrete", (2, 2), (), (), (2, 2, 3, 2), (0, 0, 0, 0))
BINARY = ActionSpec("multibinary", (3,), (), (), (3,), (0,))
EVERY = [(BOX, "clip"), (FINITE, "clip"), (FINITE, "tanh"), (SQUARE, "clip"), (SQUARE, "tanh")]
EVERY += [(spec, "clip") for spec in (DISCRETE, MULTI, GRID, BINARY)]


def floats(*values):
    return np.array(values, np.float32)


def test_clip_keeps_a_box_inside_its_finite_bounds():
    action = ActionMap(BOX, "clip").act_one(floats(9, -9, -9, 1e30))
    assert action.dtype == np.float32
    assert action.tolist() == floats(1, -2, 0, 1e30).tolist()


def test_tanh_scales_from_the_lower_to_the_upper_bound():
    act = ActionMap(FINITE, "tanh").act_one
    assert act(floats(0, 0, 0)).tolist() == pytest.approx([0.0, 0.5, 0.3])
    assert act(floats(50, 50, 50)).tolist() == floats(1, 3, 0.5).tolist()
    assert act(floats(-50, -50, -50)).tolist() == floats(-1, -2, 0.1).tolist()
    assert act(floats(0.5, 0, 0))[0] == pytest.approx(np.tanh(0.5))


@given(
    st.lists(
        st.tuples(st.floats(-1e6, 1e6, width=32), st.floats(-1e6, 1e6, width=32)),
        min_size=1,
        max_size=5,
    ),
    st.integers(0, 999),
)
def test_tanh_never_leaves_the_bounds_by_rounding(pairs, seed):
    low, high = (tuple(choose(pair) for pair in pairs) for choose in (min, max))
    raw = np.random.default_rng(seed).normal(0, 20, len(pairs)).astype(np.float32)
    action = ActionMap(ActionSpec("box", (len(pairs),), low, high), "tanh").act_one(raw)
    assert (action >= floats(*low)).all()
    assert (action <= floats(*high)).all()


def test_a_discrete_action_is_a_python_int_counted_from_the_start():
    act = ActionMap(DISCRETE, "clip").act_one
    assert type(act(floats(0, 1, 3, 2))) is int
    assert act(floats(0, 1, 3, 2)) == 1


def test_among_equals_the_lowest_index_is_chosen():
    assert ActionMap(DISCRETE, "clip").act_one(floats(0, 0, 0, 0)) == -1
    assert ActionMap(DISCRETE, "clip").act_one(floats(0, 2, 1, 2)) == 0


def test_multidiscrete_takes_the_best_of_each_group():
    action = ActionMap(MULTI, "clip").act_one(floats(0, 5, 1, 9, 9))
    assert action.dtype == np.int64
    assert action.tolist() == [1, 5]
    grid = ActionMap(GRID, "clip").act_one(floats(0, 1, 1, 0, 0, 0, 7, 1, 2))
    assert grid.tolist() == [[1, 0], [2, 1]]


def test_multibinary_is_one_above_zero():
    action = ActionMap(BINARY, "clip").act_one(floats(0.1, 0, -0.1))
    assert action.dtype == np.int8
    assert action.tolist() == [1, 0, 0]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(EVERY), st.integers(1, 9), st.data())
def test_many_actions_have_the_bits_of_one_by_one(case, count, data):
    spec, bound = case
    mapping = ActionMap(spec, bound)
    raw = data.draw(
        hnp.arrays(np.float32, (count, spec.outputs), elements=st.floats(-4, 4, width=32))
    )
    noise = data.draw(
        hnp.arrays(np.float32, (count, spec.outputs), elements=st.floats(-4, 4, width=32))
    )
    for extra in (None, noise):
        many = mapping.act(raw, extra)
        assert many.shape == (count, *spec.shape)
        for row in range(count):
            one = mapping.act_one(raw[row], None if extra is None else extra[row])
            assert np.asarray(one, many.dtype).tobytes() == many[row].tobytes()
            assert np.shape(one) == spec.shape


@each_case("bad", [np.nan, np.inf, -np.inf])
@each_case(("spec", "bound"), EVERY)
def test_an_output_that_is_not_finite_is_an_error_of_its_rows(spec, bound, bad):
    mapping = ActionMap(spec, bound)
    raw = np.zeros((5, spec.outputs), np.float32)
    raw[1, -1] = raw[3, 0] = bad
    with pytest.raises(NonFiniteOutput):
        mapping.act_one(raw[1])
    with pytest.raises(NonFiniteOutput) as caught:
        mapping.act(raw)
    assert caught.value.rows == [1, 3]
    assert isinstance(caught.value, EsQueueError)
