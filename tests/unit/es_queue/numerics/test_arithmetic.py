"""Arithmetic with equal bits everywhere: sums in slot order, exponentials, one BLAS thread."""

from __future__ import annotations

import math
import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from threadpoolctl import threadpool_info

import es_queue
from es_queue.numerics import arrays, fingerprint
from es_queue.numerics.arrays import (
    ArrayNoise,
    norm,
    steady_exp,
    unit_scaled,
    weighted_rows,
)
from es_queue.numerics.statistics import return_statistics, sum_in_order
from tests.cases import each_case
from tests.parts import cores

# --- the sums that every update is made of: right to float32, and the same bits wherever they
# are computed


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


# --- arithmetic with equal bits on every CPU agrees with the mathematics


def test_the_exponential_is_exact_to_a_few_units_in_the_last_place() -> None:
    values = np.concatenate(
        [
            np.linspace(-700, 700, 2001),
            np.linspace(-1, 1, 2001),
            [0.0, -0.0, 1e-300, math.log(2) / 2],
        ]
    )
    wanted = np.array([math.exp(one) for one in values])
    assert (np.abs(steady_exp(values) - wanted) <= 4e-13 * wanted).all()
    near = np.abs(values) <= 1
    assert (np.abs(steady_exp(values) - wanted) <= 4 * np.spacing(wanted))[near].all()
    assert steady_exp(np.array([0.0, -0.0])).tolist() == [1.0, 1.0]


def test_the_exponential_ends_in_nothing_or_infinity() -> None:
    with np.errstate(over="ignore"):
        assert steady_exp(np.array([-1e9, -800.0, 800.0, math.inf])).tolist() == [
            0.0,
            0.0,
            math.inf,
            math.inf,
        ]


# --- figures agree to the last digit on every Python


def test_a_sum_rounds_at_each_step_as_every_python_does() -> None:
    values = [1e16, 1.0, -1e16, 1.0]
    assert sum_in_order(values) == 1.0  # an exact or compensated sum would give 2
    assert sum_in_order([]) == 0.0


def test_returns_too_large_for_a_square_have_an_infinite_deviation() -> None:
    figures = return_statistics([1e300, -1e300])
    assert figures is not None and (figures.mean, figures.std) == (0.0, float("inf"))


# --- the numeric environment: what processes are told so that machines agree to the bit


ROOT = Path(es_queue.__file__).resolve().parent.parent
AVX2 = "processor : 0\nflags\t\t: fpu avx avx2 fma\n"


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="names x86 features")
@each_case(("cpuinfo", "told"), [(AVX2, "Haswell"), (AVX2.replace("avx2", ""), None), ("", None)])
def test_only_a_processor_with_avx2_is_told_haswell(
    tmp_path: Path, cpuinfo: str, told: str | None
) -> None:
    (tmp_path / "cpuinfo").write_text(cpuinfo)
    assert fingerprint.numeric_environment(tmp_path / "cpuinfo").get("OPENBLAS_CORETYPE") == told


def clean(code: str) -> subprocess.CompletedProcess[str]:
    """What a new Python says to the code when the user has set nothing."""
    surroundings = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", code], env=surroundings, capture_output=True, text=True, check=False
    )


def test_numpy_understands_every_name_that_we_disable() -> None:
    done = clean(
        "from es_queue.numerics.fingerprint import fix_numeric_environment as fix; fix(); "
        "import warnings; warnings.simplefilter('error'); import numpy"
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_blas_keeps_to_one_thread() -> None:
    fingerprint.limit_blas_threads()
    fingerprint.limit_blas_threads()
    assert {one["num_threads"] for one in threadpool_info()} <= {1}
