"""Whole runs for the benchmarks: one trained state, forked for each measurement, and driven by real
processes.

BipedalWalker-v3 is trained with its recipe until an episode lasts a few hundred steps. Every
measurement continues from that state, so all play the same generations.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from es_queue.config.run_config import RunConfig
from es_queue.environments.factory import describe
from es_queue.environments.interface import EnvironmentRequest
from es_queue.numerics.arrays import Floats
from es_queue.protocol.keys import VARIABLE, Clocks
from es_queue.protocol.messages import TRAIN, Task
from es_queue.slots import Slots, Span
from es_queue.strategies import make_strategy
from master.loop import checkpoint
from master.loop.checkpoint import Checkpoints
from master.loop.state import RunState
from master.run.setup import Setup
from master.storage.replay import learn_again
from tests.integration.processes import Processes, clocks_text, wait_for
from tools.benchmarks import machine

ENV, RUN, SEED = "BipedalWalker-v3", "bench", 4
WORKERS = 2
#: The state that all measurements begin with: the first generation whose training episodes last so
#: long on average.
LENGTH, QUICK_LENGTH = 300.0, 0.0
HOUSE = Path(__file__).resolve().parents[2]
PATIENCE = 600.0

Record = dict[str, Any]
Start = tuple[RunConfig, RunState]


@dataclass(frozen=True)
class Bench:
    """What a measurement is given.

    folder: for what it writes; repeats: how often to measure; quick: whether figures do not matter;
    kept: a file that holds the state to begin with, or will, None to train one; known: what
    measurements share
    """

    folder: Path
    repeats: int
    quick: bool
    kept: Path | None = None
    known: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def start(self) -> Start:
        """The state that all whole runs begin with."""
        data = self.kept.read_bytes() if self.kept and self.kept.exists() else train(self)
        if self.kept and not self.kept.exists():
            self.kept.write_bytes(data)
        config, state, _ = checkpoint.decode(data)
        return config, state

    @property
    def noise(self) -> Path:
        return self.folder / "noise"

    def fresh(self, name: str) -> Path:
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.folder))


class Whole:
    """An es-master with a private server and two local workers, as a user starts it."""

    def __init__(
        self,
        processes: Processes,
        run_dir: Path,
        *words: object,
    ) -> None:
        self.run_dir = run_dir
        given = ("--run-dir", run_dir, "--workers", WORKERS, "--json", *words)
        self.process = processes.master(*given, clocks=Clocks(), cwd=None)
        self._read, self.records = 0, list[Record]()

    def metrics(self) -> list[Record]:
        """The records of the generations that are complete; each line is read once."""
        path = self.run_dir / "metrics.jsonl"
        if path.exists() and path.stat().st_size > self._read:
            with path.open("rb") as file:
                file.seek(self._read)
                whole = b"".join(file.read().rpartition(b"\n")[:2])
            self._read += len(whole)
            self.records += [json.loads(line) for line in whole.splitlines() if line]
        return self.records

    def record(self, generation: int) -> Record:
        """Wait until that generation is complete."""

        def found() -> Record | None:
            assert self.process.process.poll() is None, self.process.said()
            return next((one for one in self.metrics() if one["generation"] == generation), None)

        return wait_for(found, f"generation {generation}", PATIENCE) or {}

    def cpu(self) -> dict[str, float]:
        """CPU seconds so far of all its processes, by role."""
        return machine.cpu_seconds(machine.tree(self.process.pid))

    def horses(self) -> list[int]:
        """The processes that play, one a worker: those with children are the RQ workers around
        them.
        """
        workers = [pid for pid in machine.tree(self.process.pid) if machine.role(pid) == "workers"]
        return [pid for pid in workers if len(machine.tree(pid)) == 1]

    def stop(self) -> None:
        """As by Ctrl-C: the run can be resumed."""
        self.process.signal(signal.SIGINT)
        self.process.wait(60)


@contextmanager
def processes_of(bench: Bench) -> Iterator[Processes]:
    """Processes that are all ended afterwards; they import what this one has imported, ``tests``
    too.
    """
    processes = Processes(bench.fresh("processes"), {"PYTHONPATH": str(HOUSE)})
    processes.environment[VARIABLE] = clocks_text(Clocks())  # the tests' own are faster
    try:
        yield processes
    finally:
        processes.end()


def train(bench: Bench) -> bytes:
    """Train until episodes are as long as they are in most of a training; the checkpoint of the
    generation after.
    """
    run_dir, least = bench.fresh("training") / "run", QUICK_LENGTH if bench.quick else LENGTH
    with processes_of(bench) as processes:
        whole = Whole(
            processes,
            run_dir,
            "--env",
            ENV,
            "--seed",
            SEED,
            "--backend",
            "lean",
            "--run",
            RUN,
            "--noise-dir",
            bench.noise,
            "--final-episodes",
            0,
        )

        def long_enough() -> int:
            assert whole.process.process.poll() is None, whole.process.said()
            return next(
                (
                    one["generation"] + 1
                    for one in whole.metrics()
                    if one["generation"] and one["length_mean"] >= least
                ),
                0,
            )

        generation = wait_for(long_enough, "a state to begin with", PATIENCE)
        whole.record(generation)
        whole.stop()
    config, state = states(run_dir, bench)[generation]
    return encoded(config, state)


def states(run_dir: Path, bench: Bench) -> dict[int, Start]:
    """The state at the start of each generation, computed again from the run's replay log."""
    return {
        state.generation: (timeline.config, state)
        for timeline, state, _ in learn_again(RUN, run_dir, bench.noise)
    }


def encoded(config: RunConfig, state: RunState) -> bytes:
    spec = describe(EnvironmentRequest.of(config))
    strategy = make_strategy(config, len(state.strategy["parameters"]))
    return checkpoint.encode(
        config, spec, RUN, state, strategy.centre(strategy.published(state.strategy))
    )


def fork(bench: Bench, name: str, **changes: Any) -> Path:
    """A run folder with the bench's state under some other settings; it trains until it
    is stopped.
    """
    config, state = bench.start
    config = replace(
        config, generations=0, max_steps=0, target_reward="none", final_episodes=0, **changes
    )
    run_dir = bench.fresh(name) / "run"
    Checkpoints(run_dir).save(state.generation, encoded(config, state))
    return run_dir


def resumed(bench: Bench, processes: Processes, run_dir: Path) -> Whole:
    """A whole run that continues from a fork."""
    return Whole(processes, run_dir, "--resume", RUN, "--noise-dir", bench.noise)


def published(setup: Setup, state: RunState, individuals: int) -> tuple[Task, Floats, Slots]:
    """Header, parameters and slot table as the master publishes them for a state, with the training
    slots of so many individuals.
    """
    learner = setup.learner
    stop = individuals // setup.strategy.per_slot
    spans = [span for span in learner.spans(state) if span.kind != TRAIN]
    name = f"{state.generation}.1-00000000"
    slots = learner.slots(state, state.generation, name, [*spans, Span(TRAIN, 0, stop)])
    vector, task, _ = learner.publication(state, slots, setup.table.digest, 1.0)
    return task, vector, slots


@contextmanager
def scratch(repeats: int, quick: bool, kept: Path | None = None) -> Iterator[Bench]:
    """A bench in a temporary folder that is removed afterwards, by SIGTERM too."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    folder = Path(tempfile.mkdtemp(prefix="es-queue-benchmarks-"))
    try:
        yield Bench(folder, repeats, quick, kept)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
