"""How fast noise is made and gradients are summed.

Only the ratios can be compared between machines; each is taken within one repeat. The gradient
reads the host's largest noise table, which is made if there is none (1 GB).
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_queue.numerics import arrays, normals
from es_queue.numerics.arrays import column_pieces, weighted_rows
from es_queue.numerics.noise_table import LARGEST_DEFAULT, NoiseTable

PAIRS = 5000
PARAMETERS = 166_673
#: Columns of a slice of the plain read: 64 KiB.
SLICE = 2**14
#: Perturbations that OpenAI's starter copies at once.
STARTERS_BATCH = 500
#: Floats that a repeat of the noise makes.
MADE = 2**26

Spread = dict[str, float]


def spread(values: list[float]) -> Spread:
    return {"median": statistics.median(values), "least": min(values), "greatest": max(values)}


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def in_turn(works: dict[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Seconds of each work in each repeat, one after the other, so that a busy minute slows all of
    them.
    """
    for work in works.values():
        work()  # maps the pages and fills the allocator's pools
    found: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeats):
        for name, work in works.items():
            found[name].append(seconds(work))
    return found


def ratios(found: dict[str, list[float]], over: str, under: str) -> Spread:
    return spread([one / other for one, other in zip(found[over], found[under], strict=True)])


# --- the gradient


def gradient(
    repeats: int, pairs: int = PAIRS, parameters: int = PARAMETERS, floats: int = LARGEST_DEFAULT
) -> dict[str, Any]:
    """Our sum, reads of the same bytes, and the starter's way, over a table of so many floats.

    ``seconds_read`` takes the maximum of each slice of 64 KiB, with as many threads as ours has;
    ``seconds_read_wide`` the same in slices as wide as our pieces, which is the fastest that numpy
    can read.
    """
    table = NoiseTable.open(floats)
    rng = np.random.default_rng(1)
    indices, weights = rng.integers(0, floats - parameters, pairs), rng.standard_normal(pairs)
    cores = arrays.usable_cores()
    slices = [(start, min(start + SLICE, parameters)) for start in range(0, parameters, SLICE)]
    found = in_turn(
        {
            "ours": lambda: weighted_rows(table, indices, weights, parameters),
            "read": lambda: read(table, indices, slices, cores),
            "read_wide": lambda: read(table, indices, column_pieces(parameters), cores),
            "read_one_thread": lambda: read(table, indices, slices, 1),
            "starter": lambda: starters_way(table, indices, weights.astype(np.float32), parameters),
        },
        repeats,
    )
    return {
        "pairs": pairs,
        "parameters": parameters,
        "threads": cores,
        "repeats": repeats,
        **{f"seconds_{name}": spread(each) for name, each in found.items()},
        "ours / read": ratios(found, "ours", "read"),
        "ours / read_wide": ratios(found, "ours", "read_wide"),
        "ours / read_one_thread": ratios(found, "ours", "read_one_thread"),
        "starter / ours": ratios(found, "starter", "ours"),
    }


def read(
    table: NoiseTable, indices: NDArray[np.int64], slices: list[tuple[int, int]], cores: int
) -> None:
    """Look at each float of the perturbations once."""

    def work(columns: tuple[int, int]) -> None:
        for view in table.views(indices, *columns):
            np.maximum.reduce(view)

    arrays.for_each(work, slices, cores)


def starters_way(
    table: NoiseTable, indices: NDArray[np.int64], weights: NDArray[np.float32], parameters: int
) -> NDArray[np.float32]:
    """OpenAI's batched_weighted_sum: copy 500 perturbations, multiply them by their weights with
    BLAS, add.
    """
    total = np.zeros(parameters, np.float32)
    for first in range(0, len(indices), STARTERS_BATCH):
        batch = np.asarray(
            [table.row(index, parameters) for index in indices[first : first + STARTERS_BATCH]],
            np.float32,
        )
        total += np.dot(weights[first : first + STARTERS_BATCH], batch)
    return total


# --- the noise


def noise(repeats: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Millions of floats per core-second, their digest included, into memory by one thread; and
    milliseconds until a second process has a number of the host's finished table.
    """
    memory = np.zeros(MADE, "<f4")
    made = tuple(MADE / making(memory) / 1e6 for _ in range(repeats))
    return made, tuple(1000 * second_process(LARGEST_DEFAULT) for _ in range(repeats))


def making(memory: NDArray[np.float32]) -> float:
    """CPU seconds of making a table into ``memory`` with one thread."""

    def put(start: int, piece: NDArray[np.float32]) -> None:
        memory[start : start + len(piece)] = piece

    usual, arrays.usable_cores = arrays.usable_cores, lambda: 1
    try:
        began = time.process_time()
        normals.generate_table(1, len(memory), put)
        return time.process_time() - began
    finally:
        arrays.usable_cores = usual


SECOND = """
import sys, time
from es_queue.numerics.noise_table import NoiseTable
began = time.perf_counter()
table = NoiseTable.open(int(sys.argv[1]))
table.row(table.size // 2, 1)[0]
print(time.perf_counter() - began)
"""


def second_process(floats: int) -> float:
    """Seconds from the call until a process of its own has a number out of the host's finished
    table.
    """
    NoiseTable.open(floats)
    command = [sys.executable, "-c", SECOND, str(floats)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
