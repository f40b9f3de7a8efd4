"""A whole run in one process: a master and worker threads over the store in memory, which is the
plainest statement of what the scripts do.

``run_ring`` trains quietly. In ``play``, workers, the master and Redis fail as a test asks. Tests
see only what a user sees: figures, digests, files' contents, notes, and what is played.
"""

from __future__ import annotations

import io
import json
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from es_queue.config.run_config import RunConfig
from es_queue.errors import EnvironmentFailure, FencedError
from es_queue.numerics.noise_table import NoiseTable
from es_queue.protocol.connection import Retry
from es_queue.protocol.control import SET, ControlRequest
from es_queue.protocol.keys import GIVE_WAY, Clocks
from es_queue.protocol.messages import (
    KINDS,
    TRAIN,
    WORKER_ID,
    Block,
    Task,
    publication_generation,
    token_number,
)
from es_queue.protocol.store import (
    NO_WORKERS,
    NONE_REFUSED,
    Look,
    MasterStore,
    WorkerFlags,
    WorkerInfos,
    report_text,
)
from es_queue.slots import Shape, spans_from_bytes
from master.display.log_view import RunView
from master.loop import checkpoint
from master.loop.config_timeline import ConfigTimeline, ControlInbox
from master.loop.listeners import CheckpointWriter, Outcome, ViewListener
from master.loop.loop import Interrupted, Master
from master.loop.state import Best, RunState
from master.loop.workers import Workers
from master.run.lease import take_lease
from master.run.setup import Setup, prepare_run
from tests.notes import collect_notes
from tests.tiny import QUAD
from workers.heartbeat import EpisodeControl, Heartbeat, Leaving
from workers.player import Player, Refusal, join
from workers.serving import Service, make_worker_id

QUICK = Clocks(
    lease=0.6,
    renew=0.1,
    beat_ttl=0.4,
    beat=0.1,
    leave_poll=0.05,
    claim_wait=0.05,
    collect_wait=0.1,
    reconcile=0.1,
    overdue=0.3,
    seat_lease=600.0,
)
NOISE = 2**18


# --- the store


@dataclass
class MemoryServer:
    """What Redis would hold for one run; every access happens under ``changed``."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    epoch: str | None = None
    lease: tuple[str, float] = ("", 0.0)
    config: bytes | None = None
    task: bytes | None = None
    checkpoint: bytes | None = None
    progress: dict[str, str] = field(default_factory=dict)
    history: list[dict[str, str]] = field(default_factory=list)
    refused: dict[str, int] = field(default_factory=dict)
    parameters: dict[str, bytes] = field(default_factory=dict)
    results: dict[str, list[tuple[bytes, bytes]]] = field(default_factory=dict)
    todo: list[str] = field(default_factory=list)
    claims: dict[str, list[str]] = field(default_factory=dict)
    workers: set[str] = field(default_factory=set)
    lives: dict[str, tuple[dict[str, str], float]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    commands: list[bytes] = field(default_factory=list)
    heard: bool = False  # whether the master has read the commands

    def flush(self) -> None:
        """Lose everything, as FLUSHALL does."""
        fresh = MemoryServer()
        for name, value in vars(fresh).items():
            if name != "changed":
                setattr(self, name, value)

    def is_alive(self, worker: str) -> bool:
        return worker in self.lives and self.lives[worker][1] > time.monotonic()

    def fence(self, token: str) -> None:
        if self.epoch not in (None, token) and token_number(token) <= token_number(
            self.epoch or ""
        ):
            raise FencedError("another master holds this run")
        self.epoch = token


class MemoryMasterStore:
    """The master's side of a MemoryServer."""

    def __init__(self, server: MemoryServer, run: str = "memory") -> None:
        self.run, self.server, self.outages, self.retry = run, server, 0, Retry()
        self._read: dict[str, int] = {}

    def epoch(self) -> str | None:
        return self.server.epoch

    def lease_holder(self) -> tuple[str | None, float]:
        holder, until = self.server.lease
        left = until - time.monotonic()
        return (holder, left) if left > 0 else (None, 0.0)

    def progress_field(self, name: str) -> str | None:
        return self.server.progress.get(name)

    def _close(self, publications: Iterable[str]) -> None:
        for publication in publications:
            self.server.results.pop(publication, None)
            self.server.parameters.pop(publication, None)

    def _is_complete(self, publication: str) -> bool:
        server = self.server
        return (
            server.task is not None
            and publication in server.results
            and publication in server.parameters
        )

    def open(
        self,
        token: str,
        publication: str,
        parameters: bytes,
        task: bytes,
        *,
        config: str,
        progress: Mapping[str, str],
        history: Mapping[str, str] | None = None,
        checkpoint: bytes | None = None,
        keep: Sequence[str] = (),
    ) -> str | None:
        server, names = self.server, {publication, *keep}
        self._read = {name: at for name, at in self._read.items() if name in names}
        with server.changed:
            server.fence(token)
            server.parameters[publication] = parameters
            stored = server.progress.get("publication")
            if stored == publication and self._is_complete(stored):
                return stored
            server.task, server.config = task, config.encode()
            server.checkpoint = checkpoint or server.checkpoint
            server.progress.update(
                progress, publication=publication, generation=publication.partition(".")[0]
            )
            if history:
                server.history.append(dict(history))
            self._close({stored or "", *server.progress.get("open", "").split()} - names)
            server.progress["open"] = " ".join(keep)
            server.todo.clear()
            server.results[publication] = []
            server.changed.notify_all()
            return stored

    def issue(
        self,
        token: str,
        publication: str,
        blocks: Iterable[Block],
        task: bytes = b"",
        *,
        front: bool = False,
    ) -> None:
        with self.server.changed:
            self.server.fence(token)
            if self.server.progress.get("publication") != publication:
                return
            self.server.task = task or self.server.task
            at = 0 if front else len(self.server.todo)
            self.server.todo[at:at] = map(str, blocks)
            self.server.changed.notify_all()

    def read(
        self, publications: Mapping[str, tuple[np.dtype[Any], np.dtype[Any]]]
    ) -> Iterator[tuple[str, Any, Any]]:
        for name, (result, moment) in publications.items():
            with self.server.changed:
                entries: list[Any] = list(self.server.results.get(name, []))
            fresh = entries[self._read.get(name, 0) :]
            self._read[name] = len(entries)
            if fresh:
                results, moments = (b"".join(parts) for parts in zip(*fresh, strict=True))
                yield name, np.frombuffer(results, result), np.frombuffer(moments, moment)

    def read_again(self, publications: Iterable[str]) -> None:
        for name in publications:
            self._read.pop(name, None)

    def wait(self, seconds: float) -> None:
        def has_more() -> bool:
            return any(
                len(self.server.results.get(name, ())) > at for name, at in self._read.items()
            )

        with self.server.changed:
            self.server.changed.wait_for(has_more, seconds)

    def look(
        self,
        token: str,
        holder: str,
        lease: float,
        progress: Mapping[str, str],
        refused: Mapping[str, int] = NONE_REFUSED,
        *,
        leaving: Sequence[str] = (),
        grace: bool = False,
        clear: bool = False,
    ) -> Look:
        server = self.server
        with server.changed:
            server.fence(token)
            server.lease = (holder, time.monotonic() + lease)
            stored = server.progress.get("publication")
            if stored is None:
                return Look("", (), {}, [])
            server.progress.update(progress, give_way=" ".join(leaving))
            server.refused.update(refused)
            if clear:
                server.todo.clear()
            claims, dead = {}, []
            server.workers -= {name for name in server.workers if not WORKER_ID.fullmatch(name)}
            for worker in sorted(server.workers):
                if grace or server.is_alive(worker):
                    claims[worker] = Block.decode_all(server.claims.get(worker, []))
                    continue
                dead.append(Block.decode_all(server.claims.pop(worker, [])))
                server.workers.discard(worker)
            lost = [
                name for name, at in self._read.items() if len(server.results.get(name, ())) < at
            ]
            whole = stored if self._is_complete(stored) else ""
            return Look(whole, Block.decode_all(server.todo), claims, dead, lost)

    def renew(self, token: str, holder: str, lease: float) -> None:
        server = self.server
        with server.changed:
            server.fence(token)
            server.lease = (holder, time.monotonic() + lease)

    def finish(
        self,
        token: str,
        progress: Mapping[str, str],
        seconds: int,
        checkpoint: bytes | None,
        refused: Mapping[str, int] = NONE_REFUSED,
    ) -> None:
        server = self.server
        with server.changed:
            server.fence(token)
            server.progress.update(progress)
            server.refused.update(refused)
            self._close(
                [server.progress.pop("publication", ""), *server.progress.pop("open", "").split()]
            )
            server.checkpoint = checkpoint or server.checkpoint
            server.todo.clear()
            server.claims.clear()
            server.workers.clear()
            server.lease = ("", 0.0)
            server.changed.notify_all()

    def config(self) -> bytes | None:
        return self.server.config

    def task(self) -> bytes | None:
        return self.server.task

    def checkpoint(self) -> bytes | None:
        return self.server.checkpoint

    def workers(self, known: WorkerInfos = NO_WORKERS) -> dict[str, dict[str, str]]:
        with self.server.changed:
            return {
                name: known.get(name) or dict(about)
                for name, (about, _) in self.server.lives.items()
                if self._is_serving(name)
            }

    def _is_serving(self, name: str) -> bool:
        return (
            name in self.server.workers
            and WORKER_ID.fullmatch(name) is not None
            and self.server.is_alive(name)
        )

    def errors(self) -> list[str]:
        return list(self.server.errors[-20:])

    def requests(self) -> list[bytes]:
        with self.server.changed:
            self.server.heard = True
            self.server.changed.notify_all()
            return list(self.server.commands[:100])

    def forget_requests(self, requests: Sequence[bytes]) -> None:
        with self.server.changed:
            self.server.commands[:] = [
                entry for entry in self.server.commands if entry not in requests
            ]


class MemoryWorkerStore:
    """A worker's side of a MemoryServer."""

    def __init__(self, server: MemoryServer, worker: str, run: str = "memory") -> None:
        self.run, self.worker, self.server, self.outages = run, worker, server, 0

    def config(self) -> bytes | None:
        return self.server.config

    def progress_field(self, name: str) -> str | None:
        return self.server.progress.get(name) or None

    def task(self) -> bytes | None:
        return self.server.task

    def parameters(self, publication: str, size: int) -> bytes | None:
        data = self.server.parameters.get(publication)
        return data[:size] if data is not None and len(data) >= size else None

    def arrive(self, about: Mapping[str, str], ttl: float) -> None:
        with self.server.changed:
            self.server.lives[self.worker] = (dict(about), time.monotonic() + ttl)
            self.server.workers.add(self.worker)

    def beat(self, about: Mapping[str, str], ttl: float) -> None:
        self.arrive(about, ttl)

    def poll_flags(self, publication: str = "") -> WorkerFlags:
        progress = self.server.progress
        has_master = self.server.lease[1] > time.monotonic()
        closed = (
            bool(publication)
            and publication not in self.server.parameters
            and progress.get("publication") not in (None, publication)
        )
        return WorkerFlags(
            progress.get("state"),
            has_master,
            closed,
            GIVE_WAY if self.worker in progress.get("give_way", "").split(" ") else "",
        )

    def held_blocks(self) -> list[Block]:
        with self.server.changed:
            held = self.server.claims.get(self.worker, [])
            blocks = Block.decode_all(held)
            held[:] = [str(block) for block in blocks]
            return list(blocks)

    def claim(self, wait: float) -> Block | None:
        server = self.server
        with server.changed:
            # A generation of two milliseconds may end before the master looks for commands.
            if not server.changed.wait_for(
                lambda: bool(server.todo) and (server.heard or not server.commands), wait
            ):
                return None
            entry = server.todo.pop(0)
            block = next(iter(Block.decode_all([entry])), None)
            if block is not None:
                server.claims.setdefault(self.worker, []).append(entry)
            return block

    def answer(self, block: Block, results: bytes, moments: bytes) -> bool:
        server = self.server
        with server.changed:
            entries: Any = server.results.get(block.publication)
            if entries is not None:
                entries.append((results, moments))
            self._forget(block)
            server.changed.notify_all()
            return entries is not None

    def _forget(self, block: Block) -> None:
        held = self.server.claims.get(self.worker, [])
        held[:] = [entry for entry in held if entry != str(block)]

    def drop(self, block: Block) -> None:
        with self.server.changed:
            self._forget(block)

    def release(self, blocks: Sequence[Block]) -> None:
        with self.server.changed:
            for block in reversed(blocks):
                self._forget(block)
                self.server.todo.insert(0, str(block))
            self.server.changed.notify_all()

    def report(self, reason: str, **more: object) -> None:
        with self.server.changed:
            if self.server.config is not None:
                self.server.errors.append(report_text(self.worker, reason, more))

    def depart(self) -> None:
        with self.server.changed:
            self.server.lives.pop(self.worker, None)


# --- a run


@dataclass
class Sink(RunView):
    """Hears of a run and remembers it."""

    records: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=collect_notes)

    def generation(self, record: dict[str, Any]) -> None:
        self.records.append(dict(record))


def quick_config(**values: Any) -> RunConfig:
    return RunConfig(
        **{
            "env": "CartPole-v1",
            "strategy": "pgpe",
            "seed": 3,
            "noise_size": NOISE,
            **values,
        }
    )


def make_master(setup: Setup, server: MemoryServer, sink: Sink, **more: Any) -> Master:
    store: Any = more.pop("store_of", MemoryMasterStore)(server)
    clocks = more.pop("clocks", QUICK)
    token = take_lease(store, "test", clocks, wait=True)
    timeline = ConfigTimeline(setup.learner)
    listeners = [*more.pop("listeners", ())]
    if (checkpoints := more.pop("checkpoints", None)) is not None:
        listeners.append(CheckpointWriter(checkpoints, store.run))
    listeners += [store for store in [more.pop("store", None)] if store is not None]
    return Master(
        timeline,
        cast(MasterStore, store),
        token,
        "test",
        setup.table.digest,
        clocks,
        Workers(store, clocks, strict=setup.config.strict),
        ControlInbox(store, timeline.refusal),
        listeners=(*listeners, ViewListener(sink)),
        is_interrupted=more.pop("interrupted", lambda: False),
        snapshots=getattr(setup.config, "snapshots", ""),
        show_live=sink.live,
        **more,
    )


@contextmanager
def workers(
    server: MemoryServer,
    config: RunConfig,
    table: NoiseTable,
    count: int = 1,
    stage: _Stage | None = None,
) -> Iterator[None]:
    """``count`` worker threads, each of which takes seat after seat until the block ends."""
    over, controls = threading.Event(), dict[int, EpisodeControl]()

    def joined(number: int) -> Player:
        controls[number] = EpisodeControl()
        own = table if stage is None else stage.table_of(number)
        return join(config, controls[number], table=own)

    def serve(number: int, player: Player) -> None:
        name = make_worker_id(f"thread{number}")
        channel = MemoryWorkerStore(server, name)
        if stage is not None:
            channel = _Worker(server, name, stage, number, player.control)
        about = {"host": f"thread{number}", "numerics": player.numerics}
        life = Heartbeat(cast(Any, channel), player.control, about, QUICK, config)
        channel.arrive(about, QUICK.beat_ttl)
        life.start()
        try:
            Service(cast(Any, channel), player, QUICK).run()
        finally:
            life.stop()

    def serve_seats(number: int, player: Player) -> None:
        if stage is None:
            return serve(number, player)
        while not over.is_set():
            try:
                serve(number, player)
            except _Died:
                stage.deaths += 1
            except Refusal as refusal:
                stage.sink.notes.append(str(refusal))
                return None
            if stage.deadly_slot is None and number in stage.done:
                return None
            try:
                player = joined(number)
            except Leaving:  # the run has ended meanwhile
                return None
        return None

    threads = [
        threading.Thread(target=serve_seats, args=(number, joined(number)), daemon=True)
        for number in range(count)
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        if stage is not None:
            stage.over = True
        for number, thread in enumerate(threads):
            while thread.is_alive():
                controls[number].leave("the test is over")
                thread.join(0.1)


def run_ring(
    config: RunConfig, count: int = 1, state: RunState | None = None, **more: Any
) -> tuple[Outcome, Sink]:
    """Train in memory with ``count`` worker threads."""
    table = NoiseTable.in_memory(config.noise_size)
    setup = prepare_run(config, table=table)
    server, sink = more.pop("server", None) or MemoryServer(), more.pop("sink", None) or Sink()
    master = make_master(setup, server, sink, **more)
    with workers(server, setup.config, table, count):
        return master.train(state or setup.initial_state()), sink


# --- a run in which something fails

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


#: ``play`` has a parameter of that name.
_serving = workers


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
    with _serving(stage.server, stage.setup.config, TABLE, workers, stage):
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
    done: set[int] = field(default_factory=set)  # numbers of workers that do not come back
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

    def table_of(self, number: int) -> NoiseTable:
        is_other = any((one.what, one.worker) == (OTHER_NOISE, number) for one in self.faults)
        return NoiseTable.in_memory(TABLE.size // 2) if is_other else TABLE


class _Worker(MemoryWorkerStore):
    """A worker's channel, with the faults that the test asks for."""

    def __init__(
        self, server: MemoryServer, name: str, stage: _Stage, number: int, control: EpisodeControl
    ) -> None:
        super().__init__(server, name)
        self._stage, self._number, self._control = stage, number, control
        self._claimed = 0
        self._dead = self._damaged = False

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
            self._stage.done.add(self._number)
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
        self._dead = True
        self._stage.done.add(self._number)
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
