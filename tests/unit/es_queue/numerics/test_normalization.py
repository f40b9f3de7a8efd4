"""Observation statistics: exact moments, merging in slot order, and bits that do not depend on the
batch.
"""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from es_queue.numerics.statistics import FrozenStatistics, Moments
from tests.cases import each_case

ROWS = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 40), st.integers(1, 6)),
    elements=st.floats(-1e3, 1e3, width=32),
)


def episodes(seed, count=6, size=5):
    draw = np.random.default_rng(seed)
    return [
        draw.normal(3, 2, (int(draw.integers(1, 90)), size)).astype(np.float32)
        for _ in range(count)
    ]


def merged(parts):
    running = Moments.empty(parts[0].shape[1])
    for part in parts:
        running = running.merge(Moments.of(part))
    return running


@given(ROWS)
def test_the_moments_of_an_episode_are_those_of_numpy_in_float64(rows):
    moments = Moments.of(rows)
    exact = rows.astype(np.float64)
    assert moments.count == len(rows)
    assert moments.mean.dtype == moments.m2.dtype == np.float64
    np.testing.assert_allclose(moments.mean, exact.mean(axis=0), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(moments.m2, exact.var(axis=0) * len(rows), rtol=1e-9, atol=1e-9)


def test_a_small_spread_around_a_large_mean_is_not_lost():
    rows = np.random.default_rng(1).normal(1e6, 1e-2, (5000, 3))
    running = Moments.empty(3)
    for part in np.split(rows, 50):
        running = running.merge(Moments.of(part))
    np.testing.assert_allclose(np.sqrt(running.m2 / running.count), rows.std(axis=0), rtol=1e-6)
    np.testing.assert_allclose(running.freeze(5.0).std, rows.std(axis=0), rtol=0.02)


@each_case("bad", [np.nan, np.inf, 1e200])
def test_an_episode_that_would_spoil_the_statistics_for_ever_is_left_out(bad):
    running = merged(episodes(8))
    rows = np.ones((4, 5))
    rows[2, 3] = bad
    assert running.merge(Moments.of(rows)) is running


def test_the_variance_has_a_floor_inside_the_root():
    frozen = Moments.empty(2).merge(Moments.of(np.full((9, 2), 4.0))).freeze(5.0)
    assert frozen.std.tolist() == [np.float32(0.01)] * 2


@settings(deadline=None)
@given(
    st.integers(1, 40), st.integers(1, 20), st.sampled_from([0.0, 5.0, 0.5]), st.integers(0, 2**31)
)
def test_one_row_and_many_have_the_same_bits(size, count, clip, seed):
    draw = np.random.default_rng(seed)
    mean, spread = (
        draw.normal(0, 3, size).astype(np.float32),
        draw.uniform(0.01, 5, size).astype(np.float32),
    )
    frozen = FrozenStatistics(mean, spread, clip)
    rows = draw.normal(0, 8, (count, size)).astype(np.float32)
    rows[0] = mean
    before = rows.tobytes()
    together = frozen.normalize(rows)
    assert together.dtype == np.float32
    for row in range(count):
        assert frozen.normalize(rows[row]).tobytes() == together[row].tobytes()
        expected = (rows[row] - mean) / spread
        expected = np.clip(expected, np.float32(-clip), np.float32(clip)) if clip else expected
        assert together[row].tobytes() == expected.tobytes()
    assert rows.tobytes() == before


def test_statistics_are_finite_in_float32_whatever_was_merged():
    running = Moments.empty(2).merge(Moments(3, np.array([1e150, -1e39]), np.array([1e300, 0.0])))
    frozen = running.freeze(5.0)
    assert np.isfinite(frozen.mean).all() and np.isfinite(frozen.std).all()
