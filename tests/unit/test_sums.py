"""The sums that every update is made of: right to float32, and the same bits wherever they are computed."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from es_queue import sums
from es_queue.sums import ArrayNoise, norm, unit_scaled, weighted_rows

SPANNING = 2 * sums.COLUMNS + 17  # three chunks of columns, the last one short
MANY = sums.SLOTS + sums.GROUP + 3  # two chunks of slots, a short group at the end


def table(length: int, seed: int = 0) -> ArrayNoise:
    return ArrayNoise(np.random.default_rng(seed).standard_normal(length, dtype=np.float32))


def naive(noise: ArrayNoise, indices: np.ndarray, weights: np.ndarray, size: int) -> np.ndarray:
    total = np.zeros(size)
    for index, weight in zip(indices, weights, strict=True):
        total += weight * noise.noise[index : index + size].astype(np.float64)
    return total


@pytest.mark.parametrize(("slots", "size"), [(1, 1), (3, 5), (MANY, 3), (5, SPANNING), (MANY, SPANNING)])
def test_a_weighted_sum_is_that_of_a_loop_in_float64(slots: int, size: int) -> None:
    rng = np.random.default_rng(1)
    noise, indices, weights = table(size + 5000), rng.integers(0, 5000, slots), rng.standard_normal(slots)
    got = weighted_rows(noise, indices, weights, size)
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, naive(noise, indices, weights, size), rtol=1e-5, atol=1e-4)


def test_a_transform_is_applied_to_each_element_before_the_weights() -> None:
    noise, indices, weights = table(900), np.arange(MANY), np.linspace(-1, 1, MANY)
    got = weighted_rows(noise, indices, weights, 7, lambda rows: np.square(rows) - np.float32(1))
    wanted = naive(ArrayNoise(noise.noise**2 - 1), indices, weights, 7)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-4)


def test_noise_is_asked_for_by_no_more_than_a_chunk_at_a_time() -> None:
    asked = []

    class Watched(ArrayNoise):
        def rows(self, indices: np.ndarray, start: int, stop: int) -> np.ndarray:
            asked.append((len(indices), stop - start))
            return super().rows(indices, start, stop)

    weighted_rows(Watched(table(20_000).noise), np.arange(MANY), np.ones(MANY), SPANNING)
    assert max(rows for rows, _ in asked) == sums.SLOTS
    assert max(columns for _, columns in asked) == sums.COLUMNS
    assert sum(rows * columns for rows, columns in asked) == MANY * SPANNING


@pytest.mark.parametrize("weight", [1e-300, 1e300])
def test_weights_of_any_size_neither_vanish_nor_overflow(weight: float) -> None:
    noise = ArrayNoise(np.array([1, 2, -3], np.float32))
    got = weighted_rows(noise, np.array([0]), np.array([weight]), 3)
    np.testing.assert_allclose(got, np.array([1, 2, -3]) * weight, rtol=1e-6)


def test_no_rows_at_all_sum_to_zero() -> None:
    assert not weighted_rows(table(9), np.array([], np.int64), np.array([]), 4).any()


def test_a_missing_weight_is_an_error() -> None:
    with pytest.raises(ValueError, match="2 weights for 3 rows"):
        weighted_rows(table(9), np.arange(3), np.ones(2), 4)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=9))
@settings(max_examples=200, deadline=None)
def test_scaling_brings_the_largest_value_between_a_half_and_one(values: list[float]) -> None:
    scaled, exponent = unit_scaled(np.array(values))
    largest = max(map(abs, values), default=0.0)
    assert largest == 0 or 0.5 <= np.abs(scaled).max() < 1
    kept = np.abs(scaled) > 1e-290  # below that the quotient itself may round
    assert all(math.ldexp(float(s), exponent) == v for s, v, k in zip(scaled, values, kept, strict=True) if k)


@pytest.mark.parametrize("size", [0, 1, 5, SPANNING])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_norm_is_the_euclidean_length_in_float64(size: int, dtype: type) -> None:
    vector = np.random.default_rng(2).standard_normal(size).astype(dtype)
    assert norm(vector) == pytest.approx(math.sqrt(math.fsum(float(x) ** 2 for x in vector)), rel=1e-13)


def test_a_norm_of_large_float32_does_not_overflow() -> None:
    assert norm(np.full(4, 3e38, np.float32)) == pytest.approx(6e38)


DIGEST = """
import hashlib
import numpy as np
from es_queue.sums import ArrayNoise, norm, weighted_rows
from es_queue.strategies.shaping import SHAPINGS
rng = np.random.default_rng(7)
noise = ArrayNoise(rng.standard_normal(9000, dtype=np.float32))
total = weighted_rows(noise, np.arange(600), rng.standard_normal(600), 5001)
shaped = [shape(rng.standard_normal(601)).tobytes() for shape in SHAPINGS.values()]
print(hashlib.blake2b(total.tobytes() + repr(norm(total)).encode() + b"".join(shaped)).hexdigest())
"""


def digest(**environment: str) -> str:
    settings = {**os.environ, "PYTHONPATH": str(Path(sums.__file__).parents[1]), **environment}
    command = [sys.executable, "-W", "ignore", "-c", DIGEST]  # numpy warns of features that the CPU lacks
    return subprocess.run(command, env=settings, check=True, capture_output=True, text=True).stdout


def test_bits_do_not_depend_on_blas_threads_nor_on_the_cpu_features_in_use() -> None:
    plain = digest(OPENBLAS_NUM_THREADS="1")
    assert plain == digest(OPENBLAS_NUM_THREADS="2", OPENBLAS_CORETYPE="Prescott")
    assert plain == digest(NPY_DISABLE_CPU_FEATURES="X86_V4 AVX512_ICL AVX512_SPR")
    assert plain == digest(NPY_DISABLE_CPU_FEATURES="X86_V3 X86_V4 AVX512_ICL AVX512_SPR")
