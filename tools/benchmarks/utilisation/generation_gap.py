"""What all workers wait for between two generations: from the last result to the next publication.

The real master runs over a store that hands out honest results, some at a time as if they had just
arrived, the last one by itself. Between two arrivals the master finds nothing, so it has time for
optional work.
"""

from __future__ import annotations

import io
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np

from es_queue.environments.interface import ActionSpec, EnvironmentSpec
from es_queue.numerics.noise_table import LARGEST_DEFAULT, NoiseTable
from es_queue.policies import make_policy
from es_queue.protocol.keys import Clocks
from es_queue.protocol.messages import Task
from es_queue.protocol.store import MasterStore
from es_queue.slots import Slots, Table, spans_from_bytes, worker_mark
from es_queue.strategies import make_strategy
from master.display.log_view import QuietView, SafeStream
from master.display.reporter import Reporter
from master.loop.checkpoint import Checkpoints
from master.loop.config_timeline import ConfigTimeline, ControlInbox
from master.loop.learner import Learner
from master.loop.listeners import CheckpointWriter, ViewListener
from master.loop.loop import Master
from master.loop.workers import Workers
from master.run.lease import take_lease
from master.run.setup import Setup
from master.storage.generation_store import GenerationStore
from tests.memory import MemoryMasterStore, MemoryServer, MemoryWorkerStore, quick_config
from tools.benchmarks.micro.drain import honest_results

#: Rows that arrive together.
TRICKLE = 128
WORKER = "host-1-abcdef"


@dataclass(frozen=True)
class Size:
    """A search: pairs of each generation, numbers of an observation and of an action, widths of the
    hidden layers.
    """

    pairs: int
    observations: int
    actions: int
    hidden: tuple[int, ...] = ()

    def setup(self, table: NoiseTable, generations: int) -> Setup:
        kind = {"policy": "mlp", "hidden": self.hidden} if self.hidden else {}
        config = quick_config(
            env="CartPole-v1",
            strategy="openai_es",
            population=2 * self.pairs,
            noise_size=table.size,
            eval_every=0,
            backend="stock",
            block=4,
            env_seeds="pair",
            final_episodes=0,
            generations=generations,
            **kind,
        )
        action = ActionSpec("box", (self.actions,), (-1.0,) * self.actions, (1.0,) * self.actions)
        spec = EnvironmentSpec(config.env, self.observations, action, 1600, None, None, "stock")
        policy = make_policy(config, self.observations, action)
        strategy = make_strategy(config, policy.size)
        learner = Learner(config, spec, strategy, table)
        return Setup(config, spec, policy, strategy, table, learner)


SIZES = {
    "10,000 pairs, linear walker": Size(10_000, 24, 4),
    "42,000 pairs, linear walker": Size(42_000, 24, 4),
    "5,000 pairs, 166,673 parameters": Size(5_000, 376, 17, (256, 256)),
}


class ScriptedStore(MemoryMasterStore):
    """Answers every publication by itself.

    spent: (wall, CPU) seconds from the last result to the next ``open``; collecting: CPU seconds of
    all results before it
    """

    def __init__(self, setup: Setup) -> None:
        super().__init__(MemoryServer())
        MemoryWorkerStore(self.server, WORKER).arrive({}, float("inf"))
        self._setup = setup
        self.spent: list[tuple[float, float]] = []
        self.collecting: list[float] = []
        self._last: tuple[float, float] | None = None
        self._opened, self._is_quiet = 0.0, False
        self._waiting: list[tuple[str, Table, Table]] = []

    def open(
        self, token: str, publication: str, parameters: bytes, task: bytes, **more: Any
    ) -> Any:
        if self._last:
            wall, cpu = self._last
            self.spent.append((time.perf_counter() - wall, time.process_time() - cpu))
            self._last = None
        found = super().open(token, publication, parameters, task, **more)
        self._waiting = list(self._results(Task.decode(task)))[::-1]
        self._opened = time.process_time()
        return found

    def _results(self, task: Task) -> Iterator[tuple[str, Table, Table]]:
        """Pieces of the table, in slot order; the last row is one by itself."""
        setup = self._setup
        slots = Slots(
            *(setup.config, setup.strategy, setup.spec, task.generation),
            spans_from_bytes(task.spans),
        )
        rows = np.arange(len(slots))
        cuts = [*range(0, len(rows) - 1, TRICKLE), len(rows) - 1, len(rows)]
        for start, stop in pairwise(cuts):
            if stop > max(start, 0):
                marks = np.full(stop - start, worker_mark(WORKER))
                yield task.publication, *honest_results(slots, rows[start:stop], marks)

    def read(self, publications: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
        self._is_quiet = not self._is_quiet
        if self._waiting and not self._is_quiet:
            piece = self._waiting.pop()
            if not self._waiting:
                self.collecting.append(time.process_time() - self._opened)
                self._last = time.perf_counter(), time.process_time()
            yield piece

    def wait(self, seconds: float) -> None:
        if not self._waiting:
            super().wait(seconds)


def once(size: Size, table: NoiseTable, generations: int) -> dict[str, list[float]]:
    """Wall and CPU seconds of each closing, and the CPU of all results before it."""
    setup = size.setup(table, generations)
    with tempfile.TemporaryDirectory() as folder:
        scripted, clocks, run_dir = ScriptedStore(setup), Clocks(), Path(folder)
        store = cast(MasterStore, scripted)
        token = take_lease(store, "bench", clocks, wait=True)
        report = Reporter(run_dir, QuietView(SafeStream(io.StringIO()), setup.config))
        generation_store = GenerationStore(scripted.run, run_dir, 0)
        timeline = ConfigTimeline(setup.learner)
        writer = CheckpointWriter(Checkpoints(run_dir), scripted.run)
        Master(
            *(timeline, store, token, "bench", table.digest, clocks, Workers(store, clocks)),
            ControlInbox(store, timeline.refusal),
            listeners=(writer, generation_store, ViewListener(report)),
            show_live=report.live,
        ).train(setup.initial_state())
        generation_store.log.close()
        report.close()
    # The first closing meets noise that nobody has read, and what the last one publishes has no
    # training slots.
    measured = slice(1, generations - 1)
    wall, cpu = zip(*scripted.spent[measured], strict=True)
    return {"wall": list(wall), "cpu": list(cpu), "collecting": scripted.collecting[measured]}


def closing(repeats: int, quick: bool = False) -> dict[str, dict[str, list[float]]]:
    """By size: what ``once`` gives over so many closings."""
    table = NoiseTable.open(2**24 if quick else LARGEST_DEFAULT)
    sizes = {"100 pairs, linear walker": Size(100, 24, 4)} if quick else SIZES
    return {name: once(size, table, repeats + 2) for name, size in sizes.items()}


if __name__ == "__main__":
    for name, found in closing(5).items():
        each = {key: [f"{1000 * one:.1f}" for one in values] for key, values in found.items()}
        print(name, each, "ms")
