"""The numbers of the noise: standard normals as exact arithmetic has them, and the same bytes
everywhere.
"""

from __future__ import annotations

import math
import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import es_queue
from es_queue.numerics import fingerprint, normals
from es_queue.numerics.noise_table import NoiseTable
from es_queue.numerics.normals import (
    CHUNK,
    ChunkGenerator,
    directions,
    radii,
)
from tests.parts import cores

ROOT = Path(es_queue.__file__).resolve().parent.parent
SIZE = 2 * CHUNK + 5001
DIGEST_OF_SIZE = "dbd3868d3e7270860e035ea568aa7246"
EDGES = np.concatenate(
    [
        np.arange(-2000, 2000),
        2**31 - 1 - np.arange(2000),
        np.arange(2000) - 2**31,
        2 ** np.arange(31),
    ]
)


def some_bits(count: int) -> np.ndarray:
    return np.concatenate(
        [np.random.default_rng(1).integers(-(2**31), 2**31, count), EDGES]
    ).astype(np.int32)


def space(bits: np.ndarray) -> np.ndarray:
    return np.empty((4, len(bits)), np.float32)


def digests() -> list[str]:
    """Of a table, and of the steps on their way to it."""
    bits = some_bits(2**16)
    steps = [radii(bits, space(bits)).copy(), *directions(bits, space(bits))]
    return [NoiseTable.in_memory(SIZE).digest, *map(fingerprint.array_digest, steps)]


@pytest.fixture(scope="module")
def many() -> np.ndarray:
    return NoiseTable.in_memory(2**20).row(0, 2**20)


@pytest.fixture(scope="module")
def table() -> NoiseTable:
    return NoiseTable.in_memory(SIZE)


# --- the same bytes everywhere


def test_the_bytes_of_a_seed_never_change_without_a_new_recipe(table: NoiseTable) -> None:
    assert (normals.RECIPE, table.seed, table.digest) == (2, 123, DIGEST_OF_SIZE)


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="names x86 features")
def test_older_and_newer_processors_make_the_same_bytes() -> None:
    disabled = fingerprint.features_beyond_avx2() + " X86_V3 AVX2 FMA3"
    settings = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}{os.pathsep}{Path(__file__).parent}",
        "NPY_DISABLE_CPU_FEATURES": disabled,
    }
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-c",
        "import test_normals; print(*test_normals.digests())",
    ]
    assert (
        subprocess.run(
            command, env=settings, check=True, capture_output=True, text=True
        ).stdout.split()
        == digests()
    )


@pytest.mark.parametrize("count", [1, 3])
def test_the_number_of_cores_changes_no_bit(table: NoiseTable, count: int) -> None:
    maker = ChunkGenerator(table.seed)
    alone = np.concatenate([maker.chunk(number).copy() for number in reversed(range(3))][::-1])
    with cores(count):
        again = NoiseTable.in_memory(SIZE)
    assert np.array_equal(again.row(0, SIZE), alone[:SIZE])
    assert again.digest == table.digest


# --- they are standard normals, and independent


def test_the_numbers_are_distributed_as_the_standard_normal(many: np.ndarray) -> None:
    ordered = np.sort(many)
    cumulative = np.array([0.5 * math.erfc(-one / math.sqrt(2)) for one in ordered[::512]])
    distance = np.abs(cumulative - np.arange(len(many))[::512] / len(many)).max()
    assert distance < 1.63 / math.sqrt(len(many)) + 1 / len(many)  # Kolmogorov, 1 %
