"""A bench for the collector: a publication over a memory server, and hands to play its workers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from es_queue.protocol import messages
from es_queue.protocol.channel import PublishRequest
from es_queue.protocol.messages import Answer, Block, SlotResult
from es_queue.protocol.timing import Clocks
from master.collect.answer_check import ResultShape
from master.collect.blocks.block_scheduler import BlockScheduler
from master.collect.collector import Collector
from master.collect.ledger import AnswerChecker, Ledger
from master.collect.worker_watch import CollectorCallbacks, MasterLease, WorkerSource
from tests.memory_channel import MemoryMasterChannel, MemoryServer, MemoryWorkerChannel
from tests.notes import collect_notes
from tests.ring import QUICK, quick_config

TOKEN, PUBLICATION = "1-00000000", "3.1-00000000"
CONFIG = quick_config(strategy="ars", obs_norm=False)


@dataclass
class Bench:
    """A collector over a memory server, with hands to play its workers."""

    block: int = 2
    scheduler: BlockScheduler | None = None
    slots: int = 6
    is_interrupted: Any = lambda: False
    maintain: Any = lambda *_: []
    notes: list[str] = field(default_factory=collect_notes)
    shown: list[dict[str, Any]] = field(default_factory=list)
    server: MemoryServer = field(default_factory=MemoryServer)

    strict: bool = False
    prefix: Any = None
    clocks: Clocks = QUICK
    source: WorkerSource | None = None

    def __post_init__(self) -> None:
        self.scheduler = self.scheduler or BlockScheduler(fixed=self.block)
        self.channel: Any = self.make_channel()
        self.channel.renew(TOKEN, "me", 60, {}, {})
        self.collector = Collector(
            MasterLease(self.channel, TOKEN, "me", self.clocks),
            self.scheduler,
            CollectorCallbacks(self.shown.append, self.is_interrupted, self.maintain),
            source=self.source,
            strict=self.strict,
        )
        expectations = AnswerChecker(
            CONFIG, 3, ResultShape(8, 2, 4), {messages.TRAIN: 12, messages.CENTRE: 1}
        )
        self.ledger = Ledger(
            PUBLICATION,
            expectations,
            {messages.CENTRE: 1, messages.TRAIN: self.slots},
            self.collector.context,
            prefix=self.prefix,
        )
        self.what = PublishRequest(PUBLICATION, b"task", (), "{}", {"state": "running"})

    def make_channel(self) -> Any:
        return MemoryMasterChannel(self.server)

    def open(self, *, adopted: bool = False) -> Bench:
        self.collector.open(self.ledger, self.what, b"parameters", adopted=adopted)
        return self

    def worker(self, name: str = "a", **about: str) -> MemoryWorkerChannel:
        channel = MemoryWorkerChannel(self.server, f"{name}-1-abcdef")
        channel.arrive({"host": name, **about}, 60)
        return channel

    def result(self, kind: str, slot: int) -> SlotResult:
        expected = self.ledger.checker.expected_answer(kind, slot)
        each = (1,) * expected.individuals
        return SlotResult(
            slot,
            expected.noise_index,
            expected.seed,
            tuple(map(float, each)),
            tuple(map(float, each)),
            each,
            (0,) * len(each),
            (0,) * len(each),
        )

    def answer(self, worker: MemoryWorkerChannel, block: Block, seconds: float = 0.1) -> bool:
        results = tuple(self.result(block.kind, slot) for slot in range(block.start, block.stop))
        return worker.answer(
            block, Answer(block.publication, block.kind, worker.worker, seconds, results).encode()
        )

    def work(self, worker: MemoryWorkerChannel) -> None:
        while (block := worker.claim(0.0)) is not None:
            self.answer(worker, block)

    def tick(self) -> None:
        self.collector.tick(self.ledger)

    def todo(self) -> list[str]:
        return [entry.removeprefix(PUBLICATION + " ") for entry in self.server.todo]
