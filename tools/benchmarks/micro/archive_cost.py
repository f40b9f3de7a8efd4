"""What an archive of 100,000 elites costs the master: CPU time per generation, and memory.

``python -m tools.benchmarks.micro.archive_cost`` fills the archive of ``map_elites``, and measures
what the master does with it once per generation: learning, the next publication, and the
checkpoint. The share of its time is for 1,000 workers that play one episode of each individual.
"""

from __future__ import annotations

import argparse
import io
import resource
import sys
import time
from dataclasses import dataclass

import numpy as np

from es_queue.config.run_config import RunConfig
from es_queue.numerics.arrays import Doubles
from es_queue.numerics.noise_table import NoiseTable
from es_queue.strategies.base import Batch, State
from es_queue.strategies.map_elites import Archive, MapElites

WORKERS, GENERATIONS, NUMBERS = 1000, 3, 2
#: Largest resident size in bytes, from kilobytes or, on macOS, bytes.
UNIT = 1 if sys.platform == "darwin" else 1024


@dataclass(frozen=True)
class Costs:
    """CPU seconds of a generation, bytes of a publication and of a checkpoint."""

    learn: float
    publish: float
    checkpoint: float
    published: int
    saved: int

    @property
    def total(self) -> float:
        return self.learn + self.publish + self.checkpoint


def full_state(strategy: MapElites) -> State:
    """A state with an elite in every cell."""
    draw = np.random.default_rng(0)
    state = strategy.begin_behaviours(strategy.start(np.zeros(strategy.size, np.float32)), NUMBERS)
    archive = Archive.of(strategy.config, state)
    assert archive.cells is not None
    behaviour = archive.cells.centroids.astype(np.float32)
    vectors = draw.random((len(behaviour), strategy.size), dtype=np.float32)
    return (
        state
        | archive.with_elites(behaviour, draw.normal(size=len(behaviour)), vectors).to_arrays()
    )


def measure(size: int, population: int, cells: tuple[int, ...]) -> Costs:
    """The medians of some generations in which about every tenth individual becomes an elite."""
    table = NoiseTable.in_memory(2**22)
    config = RunConfig(
        strategy="map_elites", cells=cells, population=population, seed=1, noise_size=table.size
    )
    strategy, draw = MapElites(config, size), np.random.default_rng(1)
    saved, state, rows = 0, full_state(strategy), list[Doubles]()
    for generation in range(GENERATIONS):
        batch = Batch(
            table,
            draw.choice(table.size - size, population, replace=False),
            draw.normal(size=(population, 1)) - 1,
            behaviour=draw.random((population, 1, NUMBERS), dtype=np.float32),
            generation=generation,
        )
        clock = [time.process_time()]
        state, _ = strategy.learn(state, batch)
        clock.append(time.process_time())
        strategy.digest_input(state, strategy.published(state))
        clock.append(time.process_time())
        np.savez(buffer := io.BytesIO(), allow_pickle=False, **state)
        saved = len(buffer.getvalue())
        clock.append(time.process_time())
        rows.append(np.diff(clock))
    learn, publish, checkpoint = np.median(np.array(rows), axis=0).tolist()
    return Costs(learn, publish, checkpoint, strategy.published(state).nbytes, saved)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=96, help="parameters of a policy")
    parser.add_argument("--population", type=int, default=10_000)
    parser.add_argument("--cells", default="316,317")
    parser.add_argument("--seconds", type=float, default=1.0, help="of an episode")
    given = parser.parse_args()
    cells = tuple(map(int, given.cells.split(",")))
    costs = measure(given.size, given.population, cells)
    generation = given.population * given.seconds / WORKERS
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * UNIT
    print(
        f"{int(np.prod(cells)):,} elites of {given.size} parameters: learn {costs.learn:.2f} s, "
        f"publish {costs.publish:.2f} s ({costs.published / 2**20:.0f} MiB), checkpoint "
        f"{costs.checkpoint:.2f} s ({costs.saved / 2**20:.0f} MiB); "
        f"{100 * costs.total / generation:.1f} % of a generation of {generation:.0f} s with "
        f"{WORKERS:,} workers; at most {largest / 2**20:.0f} MiB in memory"
    )


if __name__ == "__main__":
    main()
