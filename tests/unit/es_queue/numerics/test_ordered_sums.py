"""The sums that every update is made of: right to float32, and the same bits wherever they are
computed.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from es_queue.numerics import arrays
from es_queue.numerics.arrays import (
    ArrayNoise,
    norm,
    unit_scaled,
    weighted_rows,
)
from tests.cases import each_case
from tests.parts import cores

LONG = (
    2 * arrays.COLUMNS + 17
)  # rows that are read where they are, in one piece; three chunks of a norm
LONGER = arrays.SHARED + 5  # two pieces
MANY = arrays.SLOTS + arrays.GROUP + 3  # two copies of short rows, a short group at the end


def table(length: int, seed: int = 0) -> ArrayNoise:
    return ArrayNoise(np.random.default_rng(seed).standard_normal(length, dtype=np.float32))


def less_one(values: np.ndarray, out: np.ndarray) -> None:
    np.subtract(np.square(values, out=out), np.float32(1), out=out)


def column_by_column(
    noise: ArrayNoise, indices: np.ndarray, weights: np.ndarray, columns: list[int], squared: bool
) -> list[float]:
    """The sums as they are promised, in single numbers: float32 products and groups in slot order,
    float64 totals.
    """
    scaled, exponent = unit_scaled(weights)
    totals = []
    for column in columns:
        total = np.float64(0)
        for first in range(0, len(indices), arrays.GROUP):
            group = None
            for index, weight in zip(
                indices[first : first + arrays.GROUP],
                scaled[first : first + arrays.GROUP],
                strict=True,
            ):
                value = noise.noise[index + column]
                product = (value * value - np.float32(1) if squared else value) * np.float32(weight)
                group = product if group is None else group + product
            total += np.float64(group)
        totals.append(math.ldexp(total, exponent))
    return totals


@each_case("size", [1, 2, 3, 7, arrays.COLUMNS, arrays.COLUMNS + 1, LONG, LONGER])
@each_case("slots", [1, arrays.GROUP, arrays.GROUP + 1, MANY])
@each_case("squared", [False, True])
def test_every_column_is_added_up_in_slot_order_whatever_the_width_of_the_rows(
    size: int, slots: int, squared: bool
) -> None:
    rng = np.random.default_rng(3)
    noise, indices, weights = (
        table(size + 5000),
        rng.integers(0, 5000, slots),
        rng.standard_normal(slots),
    )
    got = weighted_rows(noise, indices, weights, size, less_one if squared else None)
    columns = sorted({0, 1 % size, size // 2, size - 1})
    assert got[columns].tolist() == column_by_column(noise, indices, weights, columns, squared)


@each_case("transform", [None, less_one])
def test_the_number_of_cores_changes_no_bit(transform: arrays.Transform | None) -> None:
    rng = np.random.default_rng(4)
    noise, indices, weights = (
        table(LONGER + 5000),
        rng.integers(0, 5000, MANY),
        rng.standard_normal(MANY),
    )
    assert LONGER * MANY > arrays.WORTH_THREADS
    found = []
    for count in (1, 2, 3):
        with cores(count):
            found.append(weighted_rows(noise, indices, weights, LONGER, transform).tobytes())
    assert found[0] == found[1] == found[2]


@each_case("weight", [1e-300, 1e300])
def test_weights_of_any_size_neither_vanish_nor_overflow(weight: float) -> None:
    noise = ArrayNoise(np.array([1, 2, -3], np.float32))
    got = weighted_rows(noise, np.array([0]), np.array([weight]), 3)
    np.testing.assert_allclose(got, np.array([1, 2, -3]) * weight, rtol=1e-6)


@each_case("size", [0, 1, 5, LONG])
@each_case("dtype", [np.float32, np.float64])
def test_a_norm_is_the_euclidean_length_in_float64(size: int, dtype: type) -> None:
    vector = np.random.default_rng(2).standard_normal(size).astype(dtype)
    assert norm(vector) == pytest.approx(
        math.sqrt(math.fsum(float(x) ** 2 for x in vector)), rel=1e-13
    )


DIGEST = """
import hashlib
import numpy as np
from es_queue.numerics.arrays import ArrayNoise, norm, weighted_rows
from es_queue.strategies.shaping import SHAPINGS
rng = np.random.default_rng(7)
noise = ArrayNoise(rng.standard_normal(9000, dtype=np.float32))
total = weighted_rows(noise, np.arange(600), rng.standard_normal(600), 5001)
short = weighted_rows(noise, np.arange(600), rng.standard_normal(600), 401)
shaped = [shape(rng.standard_normal(601)).tobytes() for shape in SHAPINGS.values()]
parts = (total.tobytes(), short.tobytes(), repr(norm(total)).encode(), *shaped)
print(hashlib.blake2b(b"".join(parts)).hexdigest())
"""


def digest(**environment: str) -> str:
    settings = {
        **os.environ,
        "PYTHONPATH": str(Path(arrays.__file__).parents[3]),
        **environment,
    }
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-c",
        DIGEST,
    ]  # numpy warns of features that the CPU lacks
    return subprocess.run(command, env=settings, check=True, capture_output=True, text=True).stdout


def test_bits_do_not_depend_on_blas_threads_nor_on_the_cpu_features_in_use() -> None:
    plain = digest(OPENBLAS_NUM_THREADS="1")
    assert plain == digest(OPENBLAS_NUM_THREADS="2", OPENBLAS_CORETYPE="Prescott")
    assert plain == digest(NPY_DISABLE_CPU_FEATURES="X86_V3 X86_V4 AVX512_ICL AVX512_SPR")
