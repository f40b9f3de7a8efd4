"""How fast noise is made and gradients are summed; run it by hand: ``python -m
tools.benchmarks.micro.arithmetic``.

Every figure is a time or a rate of this machine; what can be compared between machines are the
ratios, each taken within one repeat. The gradient reads the host's largest noise table, which is
made where there is none (1 GB).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_queue.numerics import normals, threads
from es_queue.numerics.fingerprint import limit_blas_threads
from es_queue.numerics.noise_table import LARGEST_DEFAULT, NoiseTable
from es_queue.numerics.ordered_sums import column_pieces, weighted_rows

PAIRS = 5000
PARAMETERS = 166_673
#: Columns of a slice of the plain read: 64 KiB.
SLICE = 2**14
#: Perturbations that OpenAI's starter copies at once.
STARTERS_BATCH = 500
#: Floats that a repeat of the noise makes.
MADE = 2**26
#: Rows of the comparison of float16 with float32.
ROWS = 500

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
    cores = threads.usable_cores()
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

    threads.for_each(work, slices, cores)


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


def noise(repeats: int, floats: int = MADE) -> dict[str, Any]:
    """Floats a second, their digest included: into memory by one thread and by all, and into a file
    that is synced.
    """
    memory, cores = np.zeros(floats, "<f4"), threads.usable_cores()
    one, every = (
        [making(memory, 1) for _ in range(repeats)],
        [making(memory, cores) for _ in range(repeats)],
    )
    return {
        "floats": floats,
        "threads": cores,
        "repeats": repeats,
        "floats_per_core_second": spread([floats / cpu for _, cpu in one]),
        "floats_per_core_second_all_threads": spread([floats / cpu for _, cpu in every]),
        "floats_per_second": spread([floats / wall for wall, _ in every]),
        "floats_per_second_to_disk": spread([floats / to_disk(floats) for _ in range(repeats)]),
        "seconds_second_process": spread([second_process(LARGEST_DEFAULT) for _ in range(repeats)]),
        "half_precision": half_precision(repeats),
    }


def making(memory: NDArray[np.float32], cores: int) -> tuple[float, float]:
    """Wall and CPU seconds of making a table into ``memory`` with so many threads."""

    def put(start: int, piece: NDArray[np.float32]) -> None:
        memory[start : start + len(piece)] = piece

    usual, threads.usable_cores = threads.usable_cores, lambda: cores
    try:
        began = time.process_time()
        wall = seconds(lambda: normals.generate_table(1, len(memory), put))
        return wall, time.process_time() - began
    finally:
        threads.usable_cores = usual


def to_disk(floats: int) -> float:
    """Seconds until a new table is safe in a file."""
    with tempfile.TemporaryDirectory() as folder:
        return seconds(lambda: NoiseTable.open(floats, Path(folder)))


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


def half_precision(
    repeats: int, parameters: int = PARAMETERS, floats: int = LARGEST_DEFAULT // 5
) -> dict[str, Any]:
    """float16 ÷ float32 in seconds, one thread: a sum of rows, and one individual, of tables that
    no cache holds.
    """
    single = NoiseTable.in_memory(floats).row(0, floats)
    half = single.astype(np.float16)
    rng = np.random.default_rng(2)
    starts, weight = rng.integers(0, floats - parameters, ROWS).tolist(), np.float32(0.3)
    centre, out, total = (np.zeros(parameters, np.float32) for _ in range(3))

    def summed(values: NDArray[Any]) -> None:
        for start in starts:
            np.multiply(values[start : start + parameters], weight, out=out)
            np.add(total, out, out=total)

    def individuals(values: NDArray[Any]) -> None:
        for start in starts:
            np.multiply(values[start : start + parameters], weight, out=out)
            np.add(centre, out, out=out)

    works = {"sum": summed, "individual": individuals}
    tables: dict[str, NDArray[Any]] = {"float16": half, "float32": single}
    found = in_turn(
        {
            f"{name} {kind}": partial(work, values)
            for name, work in works.items()
            for kind, values in tables.items()
        },
        repeats,
    )
    return {
        f"{name} float16 / float32": ratios(found, f"{name} float16", f"{name} float32")
        for name in works
    }


def lines(found: dict[str, Any], indent: str = "") -> list[str]:
    """One line a figure."""
    told = []
    for name, value in found.items():
        if isinstance(value, dict) and "median" in value:
            told.append(
                f"{indent}{name:36} {value['median']:14,.4g} ({value['least']:,.4g} to "
                f"{value['greatest']:,.4g})"
            )
        elif isinstance(value, dict):
            told += [f"{indent}{name}", *lines(value, indent + "  ")]
        else:
            told.append(f"{indent}{name:36} {value:14,}")
    return told


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Time the making of noise and the summing of gradients."
    )
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    limit_blas_threads()
    found = {"gradient": gradient(given.repeats), "noise": noise(given.repeats)}
    print(json.dumps(found) if given.json else "\n".join(lines(found)))


if __name__ == "__main__":
    main()
