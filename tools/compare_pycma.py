"""Evaluations to a target on test functions: the strategies with an evolution path beside pycma.

``python -m tools.compare_pycma`` prints the table of docs/strategies.md. Both begin at the same
point with the same σ and population.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from statistics import median
from typing import Any

import cma
import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from es_queue.config.run_config import RunConfig
from es_queue.numerics.noise_table import NoiseTable
from es_queue.numerics.slot_plan import make_generation_plan
from es_queue.strategies import Batch, make_strategy

Floats = NDArray[np.float64]
NOISE_SIZE = 2**22
TARGET = 1e-8
#: What of pycma a strategy is compared with.
OPTIONS: dict[str, dict[str, Any]] = {
    "csa_es": {"CMA_on": 0},
    "sep_cma_es": {"CMA_diagonal": True},
    "cma_es": {},
    "lm_ma_es": {},
}


def sphere(x: Floats) -> Floats:
    return np.asarray(np.square(x).sum(axis=-1))


def ellipsoid(x: Floats) -> Floats:
    return sphere(x * 1e3 ** np.linspace(0, 1, x.shape[-1]))


def cigar(x: Floats) -> Floats:
    return np.asarray(np.square(x[..., 0]) + 1e6 * sphere(x[..., 1:]))


def rosenbrock(x: Floats) -> Floats:
    steps = x[..., 1:] - np.square(x[..., :-1])
    return 100 * sphere(steps) + sphere(1 - x[..., :-1])


@dataclass(frozen=True)
class Function:
    """A test function with where a run begins: uniform in ±``radius``, with deviation ``sigma``.

    budget: evaluations for each dimension, at most
    """

    value: Callable[[Floats], Floats]
    radius: float
    sigma: float
    budget: int

    @property
    def options(self) -> dict[str, Any]:
        """pycma's: a descent ends at the target or the budget only."""
        return {"tolfun": 0, "tolfunhist": 0, "tolx": 0, "tolstagnation": 10**9}

    def first(self, size: int, seed: int) -> NDArray[np.float32]:
        random = np.random.default_rng(seed)
        return random.uniform(-self.radius, self.radius, size).astype(np.float32)


FUNCTIONS = {
    "sphere": Function(sphere, 3, 1, 5_000),
    "ellipsoid": Function(ellipsoid, 3, 1, 10_000),
    "cigar": Function(cigar, 3, 1, 10_000),
    "Rosenbrock": Function(rosenbrock, 0, 0.1, 20_000),
}


@dataclass(frozen=True)
class Case:
    strategy: str
    function: str
    size: int

    @property
    def population(self) -> int:
        """pycma's own."""
        return 4 + int(3 * math.log(self.size))

    @property
    def most(self) -> int:
        return FUNCTIONS[self.function].budget * self.size


@cache
def noise() -> NoiseTable:
    return NoiseTable.in_memory(NOISE_SIZE)


def es_queue_evaluations(case: Case, seed: int) -> float:
    """Evaluations until an individual is below the target; ∞ if none is within the budget."""
    function = FUNCTIONS[case.function]
    config = RunConfig(
        strategy=case.strategy,
        population=case.population,
        sigma=function.sigma,
        seed=seed,
        noise_size=NOISE_SIZE,
    )
    strategy = make_strategy(config, case.size)
    state = strategy.start(function.first(case.size, seed))
    for generation in range(case.most // case.population):
        plan = make_generation_plan(config, generation, case.size, 1)
        indices = plan.slots(0, case.population).noise_indices
        rows = noise().rows(indices, 0, case.size)
        individuals = strategy.ask(strategy.published(state), strategy.sigma(state), rows)
        values = function.value(individuals.astype(np.float64))
        below = np.flatnonzero(values < TARGET)
        if len(below):
            return generation * case.population + int(below[0]) + 1
        state, _ = strategy.learn(state, Batch(noise(), indices, -values))
    return math.inf


def pycma_evaluations(case: Case, seed: int) -> float:
    """The same of pycma, without restarts."""
    function = FUNCTIONS[case.function]
    options = {
        "seed": seed + 1,
        "verbose": -9,
        "ftarget": TARGET,
        "maxfevals": case.most,
        **function.options,
        **OPTIONS[case.strategy],
    }
    values: list[float] = []

    def fitness(x: Floats) -> float:
        values.append(float(function.value(x)))
        return values[-1]

    first = function.first(case.size, seed).astype(np.float64)
    cma.fmin2(fitness, first, function.sigma, options)
    below = np.flatnonzero(np.array(values) < TARGET)
    return int(below[0]) + 1 if len(below) else math.inf


def compared(case: Case, seeds: int, workers: int) -> tuple[float, float]:
    """Medians over ``seeds`` of es-queue's and of pycma's evaluations."""
    with ProcessPoolExecutor(workers, initializer=threadpool_limits, initargs=(1,)) as pool:
        own = list(pool.map(es_queue_evaluations, [case] * seeds, range(seeds)))
        reference = list(pool.map(pycma_evaluations, [case] * seeds, range(seeds)))
    return median(own), median(reference)


def cases(strategies: list[str], functions: list[str], sizes: list[int]) -> Iterator[Case]:
    for strategy in strategies:
        for function in functions:
            for size in sizes:
                yield Case(strategy, function, size)


def count(value: float) -> str:
    return "–" if math.isinf(value) else f"{value:,.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strategies", nargs="*", default=list(OPTIONS))
    parser.add_argument("--functions", nargs="*", default=list(FUNCTIONS))
    parser.add_argument("--sizes", nargs="*", type=int, default=[10, 40])
    parser.add_argument("--seeds", type=int, default=15)
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    print("| strategy | function | dimensions | es-queue | pycma | ratio |")
    print("|---|---|---|---|---|---|")
    for case in cases(given.strategies, given.functions, given.sizes):
        own, reference = compared(case, given.seeds, given.processes)
        known = math.isfinite(own) and math.isfinite(reference)
        ratio = f"{own / reference:.2f}" if known else "–"
        print(
            f"| `{case.strategy}` | {case.function} | {case.size} | {count(own)} | "
            f"{count(reference)} | {ratio} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
