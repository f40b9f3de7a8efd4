"""A whole run in this process: ``play`` is the one function that knows how it is put together.

Tests see only what a user sees: figures, digests, files' contents, notes, and what is played.
"""

from __future__ import annotations

import io
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from es_queue.errors import EnvironmentFailure
from es_queue.numerics.noise_table import NoiseTable
from es_queue.protocol.control import SET, ControlRequest
from es_queue.protocol.keys import Clocks
from es_queue.protocol.messages import KINDS, TRAIN, Block, Task, publication_generation
from es_queue.slots import Shape, spans_from_bytes
from master.loop import checkpoint
from master.loop.listeners import CheckpointWriter, Outcome
from master.loop.loop import Interrupted
from master.loop.state import Best
from master.run.setup import Setup, prepare_run
from tests.memory_channel import MemoryServer, MemoryWorkerStore
from tests.ring import QUICK, Sink, make_master, quick_config
from tests.tiny import QUAD
from workers.heartbeat import EpisodeControl, Heartbeat
from workers.player import Refusal, join
from workers.serving import Service, make_worker_id

TABLE = NoiseTable.in_memory(2**16)
#: A run that has not ended by then never does.
SECONDS = 40.0
#: Figures that depend on when and by whom a generation was played.
CHANGING = {
    *(
        "publication",
        "workers",
        "eta",
        "steps_per_second",
        "eval_steps_per_second",
        "late",
        "duplicate",
        "reissued",
    ),
    *("refused", "recovered", "lost_steps", "seconds"),
}

#: What may go wrong with a worker, at one of its blocks.
DIES = "dies while it holds the block"
LEAVES = "is asked to leave while it holds the block"
FREEZES = "answers only after the generation has closed"
LAGS = "answers only when the second generation after its own is open"
LOSES_CLAIM = "does not get the reply to its claim"
OTHER_NOISE = "has another noise table, from its first block on"
ANSWERS_TWICE = "answers twice"
ANSWERS_OTHERWISE = "answers again with other figures"
NOT_A_NUMBER = "first answers with a return that is not a number"
BEYOND_PLAN = "first answers for slots that the generation does not have"
OTHER_PARAMETERS = "first answers for other parameters of the same generation"
DAMAGED_PARAMETERS = "gets damaged parameters when it first asks for them"


@dataclass(frozen=True)
class Fault:
    """What happens to a worker at its ``block``-th block, both counted from 0."""

    what: str
    block: int = 1
    worker: int = 0


@dataclass(frozen=True)
class Played:
    """A run that has ended.

    records: of each generation; checkpoints: arrays of each generation's; played: slots that were
    answered, by kind; reports: of episodes that failed; refused: results that did not count, by
    reason; deaths: of workers
    """

    digest: str
    reason: str
    best: Best
    evaluation: Any
    records: list[dict[str, Any]]
    checkpoints: list[dict[str, Any]]
    played: Counter[str]
    reports: list[dict[str, Any]]
    refused: Mapping[str, int]
    notes: list[str]
    deaths: int

    @property
    def figures(self) -> list[dict[str, Any]]:
        """The records without what depends on when and by whom a generation was played."""
        return [
            {
                name: value
                for name, value in record.items()
                if name not in CHANGING and not name.startswith("seconds")
            }
            for record in self.records
        ]

    @property
    def outcome(self) -> tuple[Any, ...]:
        """What must be the same, to the bit, whatever happened on the way."""
        best = self.best
        arrays = best.parameters.tobytes() + best.mean.tobytes() + best.std.tobytes()
        return self.digest, self.reason, best.generation, best.eval_mean, arrays, self.evaluation

    def column(self, name: str) -> list[Any]:
        """A figure of each generation."""
        return [record.get(name) for record in self.records]


def play(
    workers: int = 1,
    *,
    faults: Sequence[Fault] = (),
    deadly_slot: int | None = None,
    master_dies_in: int | None = None,
    redis_dies_too: bool = False,
    redis_emptied_in: int | None = None,
    changes: Mapping[int, Mapping[str, Any]] | None = None,
    **settings: Any,
) -> Played:
    """Train in memory, by default on five steps of Quad, and return what came of it.

    deadly_slot: a training slot at which each worker dies; others replace them
    master_dies_in: the generation in which the master ends after a first answer, and is resumed;
    redis_dies_too: it has only the last checkpoint
    redis_emptied_in: the generation in which Redis loses everything after a first answer
    changes: settings that a person changes, by the generation from which they are requested
    """
    plain = {
        "env": QUAD,
        "population": 8,
        "generations": 4,
        "eval_every": 2,
        "eval_episodes": 3,
        "final_episodes": 4,
        "target_reward": "none",
        "noise_size": TABLE.size,
    }
    stage = _Stage(prepare_run(quick_config(**{**plain, **settings}), table=TABLE))
    stage.faults, stage.deadly_slot = tuple(faults), deadly_slot
    stage.redis_emptied_in = redis_emptied_in
    for first, values in (changes or {}).items():
        request = ControlRequest(f"{first:08x}", SET, "a test", 1.0, values, first)
        stage.server.commands.append(request.encode())
    with stage.working(workers):
        try:
            outcome = stage.lead(master_dies_in, redis_dies_too)
        except EnvironmentFailure as error:
            error.add_note(f"{stage.deaths} workers died in all")
            raise
    return Played(
        outcome.digest,
        outcome.state.reason,
        outcome.best,
        outcome.evaluation,
        stage.sink.records,
        [_arrays(data) for _, data in stage.saved.all],
        stage.played,
        [json.loads(text) for text in stage.server.errors],
        dict(stage.refused),
        stage.sink.notes,
        stage.deaths,
    )


def _arrays(data: bytes) -> dict[str, Any]:
    with np.load(io.BytesIO(data)) as archive:
        return dict(archive)


# --- behind the door: what the rebuilt heart writes again


@dataclass
class _Saved:
    """A folder of checkpoints that keeps all of them."""

    all: list[tuple[int, bytes]] = field(default_factory=list)

    def save(self, generation: int, data: bytes) -> Path:
        self.all.append((generation, data))
        return Path("nowhere")

    def is_snapshot(self, generation: int) -> bool:
        return True

    def is_best_stored(self, best: Best) -> bool:
        return True

    def save_best(self, data: bytes) -> Path:
        return Path("nowhere")


class _Died(Exception):  # noqa: N818 - the end of a worker, not of the test
    """The worker's process is gone."""


@dataclass
class _Stage:
    setup: Setup
    server: MemoryServer = field(default_factory=MemoryServer)
    sink: Sink = field(default_factory=Sink)
    saved: _Saved = field(default_factory=_Saved)
    faults: tuple[Fault, ...] = ()
    deadly_slot: int | None = None
    redis_emptied_in: int | None = None
    played: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    deaths: int = 0
    over: bool = False

    def lead(self, dies_in: int | None, redis_too: bool) -> Outcome:
        until = time.monotonic() + SECONDS
        dying = dies_in is not None

        def is_interrupted() -> bool:
            assert time.monotonic() < until, "the run does not end"
            return dying and self.has_answers(dies_in)

        state, adopted = self.setup.initial_state(), None
        while True:
            writer = CheckpointWriter(cast(Any, self.saved), "memory")
            master = make_master(
                self.setup,
                self.server,
                self.sink,
                listeners=(writer,),
                interrupted=is_interrupted,
                clocks=self.clocks,
            )
            try:
                outcome = master.train(state, adopted)
            except Interrupted:
                dying = False
                data = self.saved.all[-1][1] if redis_too else self.server.checkpoint
                state = checkpoint.decode(data or b"")[1]
                adopted = None if redis_too else Task.decode(self.server.task or b"")
                with self.server.changed:
                    self.server.lease = ("", 0.0)  # its lease has lapsed
                    if redis_too:
                        self.server.flush()
                continue
            finally:
                self.refused.update(master.refused())
            return outcome

    def has_answers(self, generation: int | None) -> bool:
        """Whether the generation is open, with a first answer."""
        publication = self.server.progress.get("publication", "")
        if publication.partition(".")[0] != str(generation):
            return False
        return len(self.server.results.get(publication, ())) > 0

    @property
    def result_type(self) -> Any:
        return Shape.of(self.setup.strategy, self.setup.spec).result

    @property
    def clocks(self) -> Clocks:
        """No worker is so slow that its block is issued again, unless a test asks for it."""
        is_frozen = any(fault.what in (FREEZES, LAGS) for fault in self.faults)
        return replace(QUICK, overdue=QUICK.overdue if is_frozen else 60.0)

    @contextmanager
    def working(self, count: int) -> Iterator[None]:
        threads = [
            threading.Thread(target=self._serve, args=(n,), daemon=True) for n in range(count)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.over = True
            for thread in threads:
                thread.join(10)

    def _serve(self, number: int) -> None:
        """Seat after seat of one worker, as long as the run lasts."""
        while not self.over:
            control, name = EpisodeControl(), make_worker_id(f"thread{number}")
            is_other = any((one.what, one.worker) == (OTHER_NOISE, number) for one in self.faults)
            table = NoiseTable.in_memory(TABLE.size // 2) if is_other else TABLE
            player = join(self.setup.config, control, table=table)
            about = {"host": f"thread{number}", "numerics": player.numerics}
            channel = _Worker(self.server, name, self, number, control)
            life = Heartbeat(channel, control, about, QUICK, self.setup.config)
            channel.arrive(about, QUICK.beat_ttl)
            life.start()
            watch = threading.Thread(target=self._end, args=(control,), daemon=True)
            watch.start()
            try:
                Service(cast(Any, channel), player, QUICK).run()
            except _Died:
                self.deaths += 1
            except Refusal as refusal:
                self.sink.notes.append(str(refusal))
                return
            finally:
                life.stop()
            if self.deadly_slot is None and channel.is_done:
                return

    def _end(self, control: EpisodeControl) -> None:
        while not (self.over or control.leave_reason):
            threading.Event().wait(0.02)
        control.leave("the test is over")


class _Worker(MemoryWorkerStore):
    """A worker's channel, with the faults that the test asks for."""

    def __init__(
        self, server: MemoryServer, name: str, stage: _Stage, number: int, control: EpisodeControl
    ) -> None:
        super().__init__(server, name)
        self._stage, self._number, self._control = stage, number, control
        self._claimed = 0
        self._dead = self._damaged = self.is_done = False

    def _fault(self) -> str:
        wanted = (self._number, self._claimed - 1)
        found = [one.what for one in self._stage.faults if (one.worker, one.block) == wanted]
        return found[0] if found else ""

    def claim(self, wait: float) -> Block | None:
        block = super().claim(wait)
        if block is None:
            return None
        self._claimed += 1
        fault = self._fault()
        if fault == DIES or self._is_deadly(block):
            self._die()
        if fault == LEAVES:
            self.is_done = True
            self._control.leave("the test asks it to")
        return None if fault == LOSES_CLAIM else block

    def held_blocks(self) -> list[Block]:
        held = super().held_blocks()
        if not self._dead and any(map(self._is_deadly, held)):
            self._die()
        return held

    def _is_deadly(self, block: Block) -> bool:
        slot = self._stage.deadly_slot
        if slot is None or block.kind != TRAIN or self.server.task is None:
            return False
        first = 0
        for span in spans_from_bytes(Task.decode(self.server.task).spans):
            if span.kind == TRAIN:
                break
            first += span.stop - span.start
        return block.start <= first + slot < block.stop

    def _die(self) -> None:
        self._dead = self.is_done = True
        raise _Died

    def parameters(self, publication: str, size: int) -> bytes | None:
        data = super().parameters(publication, size)
        if data is not None and self._fault() == DAMAGED_PARAMETERS and not self._damaged:
            self._damaged = True
            return bytes(255 - byte for byte in data)
        return data

    def answer(self, block: Block, results: bytes, moments: bytes) -> bool:
        stage, fault = self._stage, self._fault()
        records = np.frombuffer(results, stage.result_type)
        emptied = stage.redis_emptied_in
        if emptied == publication_generation(block.publication) and stage.has_answers(emptied):
            stage.redis_emptied_in = None
            self.server.flush()
        if fault == NOT_A_NUMBER:
            self._send(block, _with(records, float("nan")), moments)
        if fault == BEYOND_PLAN:
            shifted = records.copy()
            shifted["row"] += 10_000
            self._send(block, shifted, b"")
        if fault == OTHER_PARAMETERS:
            name = f"{publication_generation(block.publication)}.1-0badc0de"
            self._send(replace(block, publication=name), _with(records, -3.25), moments)
        while fault == FREEZES and block.publication in self.server.results:
            threading.Event().wait(0.02)
        while fault == LAGS and not self._is_second_after(block):
            threading.Event().wait(0.02)
        is_open = super().answer(block, results, moments)
        if is_open:
            stage.played[KINDS[block.kind]] += len(records)
        if fault == ANSWERS_TWICE:
            self._send(block, records, moments)
        if fault == ANSWERS_OTHERWISE:
            self._send(block, _with(records, -3.25), moments)
        return is_open

    def _is_second_after(self, block: Block) -> bool:
        newest = self.server.progress.get("publication", block.publication)
        lag = publication_generation(newest) - publication_generation(block.publication)
        return lag >= 2 or self._stage.over

    def _send(self, block: Block, records: Any, moments: bytes) -> None:
        """Results beside the answer, which end no claim."""
        with self.server.changed:
            held = list(self.server.claims.get(self.worker, []))
            super().answer(block, records.tobytes(), moments)
            self.server.claims[self.worker] = held

    def release(self, blocks: Sequence[Block]) -> None:
        if not self._dead:
            super().release(blocks)


def _with(records: Any, score: float) -> Any:
    """The records with another fitness and return of each individual."""
    changed = records.copy()
    changed["fitness"] = changed["returns"] = score
    return changed
