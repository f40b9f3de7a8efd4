"""What all workers wait for between two generations: from the last result to the next publication.

The real loop, learner and collector run over a channel that hands out honest answers, some at a
time as if they had just arrived, the last one alone. Beside it stands what a second's duties cost
while most slots are unanswered.
"""

from __future__ import annotations

import io
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from es_queue.config.run_config import RunConfig
from es_queue.environments.spaces import ActionSpec, EnvironmentSpec
from es_queue.numerics.noise_table import LARGEST_DEFAULT, NoiseTable
from es_queue.policies import make_policy
from es_queue.protocol import messages
from es_queue.protocol.channel import PublishRequest, PublishResult, StreamEntry
from es_queue.protocol.messages import (
    MAX_ANSWER,
    Answer,
    Block,
    EpisodeMoments,
    SlotResult,
    publication_generation,
)
from es_queue.protocol.timing import Clocks
from es_queue.strategies import make_strategy
from master.collect.answer_check import ResultShape
from master.collect.blocks.block_scheduler import BlockScheduler
from master.collect.collector import Collector
from master.collect.ledger import AnswerChecker, Ledger
from master.collect.worker_watch import CollectorCallbacks, MasterLease
from master.display.log_view import QuietView, SafeStream
from master.display.reporter import Reporter
from master.loop.generation_loop import make_loop
from master.loop.learner import Learner
from master.loop.listeners import CheckpointWriter
from master.loop.publisher import RunIdentity
from master.run.lease import take_lease
from master.run.setup import Setup
from master.storage.checkpoint import Checkpoints
from master.storage.generation_store import GenerationStore
from tests.memory_channel import MemoryMasterChannel, MemoryServer, MemoryWorkerChannel
from tests.ring import quick_config

STEPS, BLOCK = 400, 4
#: Entries of one reply while answers trickle in.
TRICKLE = 32
TICKS = 5


@dataclass(frozen=True)
class Size:
    """A search: pairs of each generation, numbers of an observation and of an action, widths of the
    hidden layers.
    """

    pairs: int
    observations: int
    actions: int
    hidden: tuple[int, ...] = ()

    def setup(self, table: NoiseTable) -> Setup:
        kind = {"policy": "mlp", "hidden": self.hidden} if self.hidden else {}
        config: RunConfig = quick_config(
            env="Closing-v0",
            strategy="openai_es",
            population=2 * self.pairs,
            noise_size=table.size,
            eval_every=0,
            backend="stock",
            env_seeds="pair",
            final_episodes=0,
            **kind,
        )
        action = ActionSpec("box", (self.actions,), (-1.0,) * self.actions, (1.0,) * self.actions)
        spec = EnvironmentSpec(
            config.env, self.observations, action, 1600, None, None, "stock", clean_reset=True
        )
        policy = make_policy(config, self.observations, action)
        strategy = make_strategy(config, policy.size)
        return Setup(
            config, spec, policy, strategy, table, Learner(config, spec, strategy, table, None)
        )


SIZES = {
    "10,000 pairs, linear walker": Size(10_000, 24, 4),
    "42,000 pairs, linear walker": Size(42_000, 24, 4),
    "5,000 pairs, 166,673 parameters": Size(5_000, 376, 17, (256, 256)),
}

WORKER = "host-1-abcdef"


def results(
    expectations: AnswerChecker, kind: str, start: int, stop: int, observations: int
) -> Iterator[SlotResult]:
    """An honest result for each slot; returns and moments differ from slot to slot."""
    for slot in range(start, stop):
        due = expectations.expected_answer(kind, slot)
        assert due is not None
        mean = np.sin(np.arange(observations) + slot)
        moments = tuple(
            EpisodeMoments(
                STEPS - half,
                mean.astype("<f8").tobytes(),
                (mean * mean * STEPS).astype("<f8").tobytes(),
            )
            for half in range(due.moments)
        )
        scores = tuple(100 * np.sin(7.0 * slot + half) for half in range(due.individuals))
        none = (0,) * due.individuals
        yield SlotResult(
            slot,
            due.noise_index,
            due.seed,
            scores,
            scores,
            (STEPS,) * due.individuals,
            none,
            none,
            moments,
        )


class Scripted(MemoryMasterChannel):
    """Answers every publication by itself, and notes when the last answer was handed out and the
    next publish began.

    spent: (wall seconds, CPU seconds) of each closing; collecting: CPU seconds of all answers
    before it
    """

    def __init__(self, setup: Setup) -> None:
        super().__init__(MemoryServer())
        # Results of a worker that is not enrolled are refused.
        MemoryWorkerChannel(self.server, WORKER).arrive({}, float("inf"))
        self.spent: list[tuple[float, float]] = []
        self.collecting: list[float] = []
        self._setup, self._waiting, self._last = setup, list[StreamEntry](), (0.0, 0.0)
        self._opened = 0.0

    def publish(self, token: str, request: PublishRequest) -> PublishResult:
        if self._last[0]:
            self.spent.append(
                (time.perf_counter() - self._last[0], time.process_time() - self._last[1])
            )
            self._last = (0.0, 0.0)
        found = super().publish(token, request)
        self._waiting = [
            StreamEntry(str(number), payload)
            for number, payload in enumerate(self._answers(request), 1)
        ]
        self._opened = time.process_time()
        return found

    def extend(
        self,
        token: str,
        publication: str,
        blocks: Iterable[Block],
        *,
        new: bool = False,
        to: str = "",
    ) -> bool:
        """Nobody claims here; what the blocks themselves take counts."""
        return bool([str(block) for block in blocks])

    def _answers(self, what: PublishRequest) -> Iterator[bytes]:
        setup = self._setup
        most = {messages.CENTRE: 1, messages.TRAIN: setup.config.population // 2}
        observed = setup.spec.observation_size
        expectations = AnswerChecker(
            setup.config,
            publication_generation(what.publication),
            ResultShape(setup.policy.size, 2, observed),
            most,
        )
        for kind, count in most.items():
            for start in range(0, count, BLOCK):
                found = tuple(
                    results(expectations, kind, start, min(count, start + BLOCK), observed)
                )
                yield Answer(what.publication, kind, WORKER, 0.5, found).encode()

    def collect_each(
        self, cursors: Mapping[str, str], count: int, wait: float, largest: int = MAX_ANSWER
    ) -> dict[str, list[StreamEntry]]:
        """Some entries of the newest publication, the last entry on its own."""
        if not self._waiting:
            return {}
        last = len(self._waiting) == 1
        some = min(count, TRICKLE, max(1, len(self._waiting) - 1))
        found, self._waiting = self._waiting[:some], self._waiting[some:]
        if last:
            self.collecting.append(time.process_time() - self._opened)
            self._last = time.perf_counter(), time.process_time()
        return {list(cursors)[-1]: found}


def once(size: Size, table: NoiseTable, generations: int) -> dict[str, list[float]]:
    """Seconds of each closing, its CPU, that of all answers before it, and of a tick with all slots
    unanswered.
    """
    setup = size.setup(table)
    found: dict[str, list[float]] = {"ticks": []}
    with tempfile.TemporaryDirectory() as folder:
        channel = Scripted(setup)
        clocks = Clocks()
        token = take_lease(channel, "bench", clocks, wait=True)
        run_dir = Path(folder)
        report = Reporter(run_dir, QuietView(SafeStream(io.StringIO()), setup.config))
        collector = Collector(
            MasterLease(channel, token, "bench", clocks),
            BlockScheduler(fixed=BLOCK),
            CollectorCallbacks(report.live),
        )
        store = GenerationStore(channel.run, run_dir, 0)
        loop = make_loop(
            RunIdentity(channel.run, token, table.digest),
            replace(setup, learner=stopping(setup, generations)).learner,
            collector,
            report,
            (CheckpointWriter(Checkpoints(run_dir), channel.run), store),
        )
        found["ticks"] = ticks(collector, partial(fresh_ledger, setup))
        loop.run(setup.initial_state())
        store.log.close()
        report.close()
    # The first closing meets noise that nobody has read, and what the last one publishes has no
    # training slots.
    found["wall"], found["cpu"] = (
        [one[at] for one in channel.spent[1 : generations - 1]] for at in (0, 1)
    )
    found["collecting"] = channel.collecting[1 : generations - 1]
    return found


def stopping(setup: Setup, generations: int) -> Learner:
    config = replace(setup.config, generations=generations)
    return Learner(config, setup.spec, setup.strategy, setup.table, None)


def fresh_ledger(setup: Setup) -> Ledger:
    wanted = {messages.CENTRE: 1, messages.TRAIN: setup.config.population // 2}
    expectations = AnswerChecker(
        setup.config, 0, ResultShape(setup.policy.size, 2, setup.spec.observation_size), wanted
    )
    return Ledger("0.1-00000000", expectations, wanted)


def ticks(collector: Collector, ledger: Callable[[], Ledger]) -> list[float]:
    """CPU seconds of a tick's own walks over the slots, the channel left out."""
    book = ledger()
    spent = []
    for _ in range(TICKS):
        began = time.process_time()
        for _ in range(2):
            book.answer_counts()
        book.reconcile_request(BLOCK, False, [])
        book.is_complete()
        spent.append(time.process_time() - began)
    return spent


def closing(repeats: int, quick: bool = False) -> dict[str, dict[str, list[float]]]:
    """By size: what ``once`` gives over so many closings."""
    table = NoiseTable.open(2**24 if quick else LARGEST_DEFAULT)
    sizes = {"100 pairs, linear walker": Size(100, 24, 4)} if quick else SIZES
    return {name: once(size, table, repeats + 2) for name, size in sizes.items()}


def main() -> None:
    for name, found in closing(3).items():
        print(
            name,
            {key: [f"{1000 * one:.1f}" for one in values] for key, values in found.items()},
            "ms",
        )


if __name__ == "__main__":
    main()
