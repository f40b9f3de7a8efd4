"""The channel inside one process, without a server: the plainest statement of what the scripts
do.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from es_queue.errors import DecodeError, FencedError
from es_queue.protocol.channel import (
    NO_WORKERS,
    NONE_REFUSED,
    MasterChannel,
    PublishRequest,
    PublishResult,
    ReconcileReport,
    ReconcileRequest,
    RenewResult,
    StreamEntry,
    WorkerChannel,
    WorkerFlags,
    WorkerInfos,
)
from es_queue.protocol.messages import MAX_ANSWER, WORKER_ID, Block, token_number


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
    results: dict[str, list[StreamEntry]] = field(default_factory=dict)
    todo: list[str] = field(default_factory=list)
    claims: dict[str, list[str]] = field(default_factory=dict)
    workers: set[str] = field(default_factory=set)
    lives: dict[str, tuple[dict[str, str], float]] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    commands: list[bytes] = field(default_factory=list)
    entries: int = 0

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


class MemoryMasterChannel(MasterChannel):
    """The master's side of a MemoryServer."""

    def __init__(self, server: MemoryServer, run: str = "memory") -> None:
        self.run, self.server = run, server

    def epoch(self) -> str | None:
        return self.server.epoch

    def lease_holder(self) -> tuple[str | None, float]:
        holder, until = self.server.lease
        left = until - time.monotonic()
        return (holder, left) if left > 0 else (None, 0.0)

    def progress_field(self, name: str) -> str | None:
        return self.server.progress.get(name)

    def stage(self, publication: str, parameters: bytes) -> None:
        with self.server.changed:
            self.server.parameters[publication] = parameters

    def publish(self, token: str, request: PublishRequest) -> PublishResult:
        server = self.server
        with server.changed:
            server.fence(token)
            stored = server.progress.get("publication")
            if stored == request.publication and self._is_complete(stored):
                return PublishResult(stored)
            if request.publication not in server.parameters:
                return PublishResult(stored, succeeded=False)
            server.task, server.config = request.task, request.config.encode()
            server.checkpoint = request.checkpoint or server.checkpoint
            server.progress.update(
                request.progress,
                publication=request.publication,
                generation=request.publication.partition(".")[0],
            )
            if request.history:
                server.history.append(dict(request.history))
            self._close({stored or ""} - {request.publication, *request.keep})
            self._close(
                {*server.progress.get("open", "").split()} - {request.publication, *request.keep}
            )
            server.progress["open"] = " ".join(request.keep)
            server.attempts.clear()
            server.todo[:] = [str(block) for block in request.blocks]
            server.results[request.publication] = [self._entry(b"")]
            server.changed.notify_all()
            return PublishResult(stored)

    def _close(self, publications: Iterable[str]) -> None:
        for publication in publications:
            self.server.results.pop(publication, None)
            self.server.parameters.pop(publication, None)

    def _entry(self, payload: bytes) -> StreamEntry:
        self.server.entries += 1
        return StreamEntry(str(self.server.entries), payload)

    def _is_complete(self, publication: str) -> bool:
        server = self.server
        return (
            server.task is not None
            and publication in server.results
            and publication in server.parameters
        )

    def extend(
        self,
        token: str,
        publication: str,
        blocks: Iterable[Block],
        *,
        new: bool = False,
    ) -> bool:
        with self.server.changed:
            self.server.fence(token)
            if self.server.progress.get("publication") != publication:
                return False
            waiting = self.server.todo
            waiting += [str(block) for block in blocks if new or str(block) not in waiting]
            self.server.changed.notify_all()
            return True

    def reconcile(self, token: str, request: ReconcileRequest) -> ReconcileReport | None:
        server = self.server
        with server.changed:
            server.fence(token)
            if server.progress.get("publication") != request.publication:
                return None
            unanswered = {
                (kind, slot) for kind, start, stop in request.ranges for slot in range(start, stop)
            }
            server.todo[:] = [
                entry
                for entry in server.todo
                if block_slots(entry, request.publication) & unanswered
            ]
            claims, dead = self._claims(request, unanswered)
            held = {
                slot for entry in server.todo for slot in block_slots(entry, request.publication)
            }
            held |= {
                slot
                for entries in claims.values()
                for entry in entries
                for slot in block_slots(entry, request.publication)
            }
            left = unanswered - held
            requeued = (
                left
                if request.only is None
                else left
                & {
                    (kind, slot)
                    for kind, start, stop in request.only
                    for slot in range(start, stop)
                }
            )
            blocks = group_slots(request, requeued)
            server.todo[:0] = [str(block) for block in blocks]
            server.progress["give_way"] = " ".join(request.give_way)
            server.changed.notify_all()
            counts = {
                worker: _parse_count(server.lives[worker][0].get("late", "0"))
                for worker in claims
                if worker in server.lives
            }
            late = {worker: count for worker, count in counts.items() if count}
            count = sum(block.stop - block.start for block in blocks)
            unclaimed = tuple(
                (block.kind, block.start, block.stop)
                for block in group_slots(replace(request, block_size=4096), left)
            )
            return ReconcileReport(
                count,
                len(server.todo),
                {name: Block.decode_all(held) for name, held in claims.items()},
                dead,
                late,
                unclaimed,
            )

    def _claims(
        self, request: ReconcileRequest, unanswered: set[tuple[str, int]]
    ) -> tuple[dict[str, list[str]], list[tuple[str, tuple[Block, ...]]]]:
        server = self.server
        claims: dict[str, list[str]] = {}
        dead = []
        server.workers -= {worker for worker in server.workers if not WORKER_ID.fullmatch(worker)}
        for worker in sorted(server.workers):
            if request.grace or server.is_alive(worker):
                claims[worker] = server.claims.get(worker, [])
                continue
            held = server.claims.pop(worker, [])
            server.workers.discard(worker)
            dead.append((worker, Block.decode_all(held)))
            for kind, slot in (
                block_slots(held[0], request.publication) & unanswered if held else ()
            ):
                name = f"{kind} {slot} deaths"
                server.attempts[name] = server.attempts.get(name, 0) + 1
        return claims, dead

    def renew(
        self,
        token: str,
        holder: str,
        lease: float,
        progress: Mapping[str, str],
        refused: Mapping[str, int],
    ) -> RenewResult:
        server = self.server
        with server.changed:
            server.fence(token)
            server.lease = (holder, time.monotonic() + lease)
            stored = server.progress.get("publication")
            if stored is None:
                return RenewResult(None, False)
            server.progress.update(progress)
            server.refused.update(refused)
            return RenewResult(stored, self._is_complete(stored))

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

    def collect_each(
        self, cursors: Mapping[str, str], count: int, wait: float, largest: int = MAX_ANSWER
    ) -> dict[str, list[StreamEntry]]:
        server = self.server

        def fresh() -> dict[str, list[StreamEntry]]:
            batches = {
                publication: [
                    entry
                    for entry in server.results.get(publication, [])
                    if int(entry.id) > int(at)
                ][:count]
                for publication, at in cursors.items()
            }
            return {
                publication: [
                    entry if len(entry.payload) <= largest else StreamEntry(entry.id, b"")
                    for entry in entries
                ]
                for publication, entries in batches.items()
                if entries
            }

        with server.changed:
            server.changed.wait_for(lambda: bool(fresh()), wait)
            return fresh()

    def discard(self, publication: str, ids: Sequence[str]) -> None:
        with self.server.changed:
            stream = self.server.results.get(publication, [])
            stream[:] = [entry for entry in stream if entry.id not in set(ids)]

    def stored_run(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        return self.server.config, self.server.task, self.server.checkpoint

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

    def deaths(self) -> dict[tuple[str, int], int]:
        parts = [(name.split(" "), count) for name, count in self.server.attempts.items()]
        return {(words[0], int(words[1])): count for words, count in parts}

    def errors(self) -> list[str]:
        return list(self.server.errors[-20:])

    def requests(self) -> list[bytes]:
        with self.server.changed:
            return list(self.server.commands[:100])

    def forget_requests(self, requests: Sequence[bytes]) -> None:
        with self.server.changed:
            self.server.commands[:] = [
                entry for entry in self.server.commands if entry not in requests
            ]

    def other_workers(self, run: str) -> int | None:
        return None


class MemoryWorkerChannel(WorkerChannel):
    """A worker's side of a MemoryServer."""

    def __init__(self, server: MemoryServer, worker: str, run: str = "memory") -> None:
        self.run, self.worker, self.server = run, worker, server

    def config(self) -> bytes | None:
        return self.server.config

    def progress_field(self, name: str) -> str | None:
        return self.server.progress.get(name) or None

    def task(self) -> bytes | None:
        return self.server.task

    def parameters(self, publication: str, size: int) -> bytes | None:
        data = self.server.parameters.get(publication)
        return data if data is not None and len(data) == size else None

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
            self.worker in progress.get("give_way", "").split(" "),
            has_master=has_master,
            closed=closed,
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
            if not server.changed.wait_for(lambda: bool(server.todo), wait):
                return None
            entry = server.todo.pop(0)
            block = next(iter(Block.decode_all([entry])), None)
            if block is not None:
                server.claims.setdefault(self.worker, []).append(entry)
            return block

    def answer(self, block: Block, payload: bytes) -> bool:
        server = self.server
        with server.changed:
            stream = server.results.get(block.publication)
            if stream is not None:
                server.entries += 1
                stream.append(StreamEntry(str(server.entries), payload))
            self._forget(block)
            server.changed.notify_all()
            return stream is not None

    def _forget(self, block: Block) -> None:
        held = self.server.claims.get(self.worker, [])
        held[:] = [entry for entry in held if entry != str(block)]

    def drop(self, block: Block) -> None:
        with self.server.changed:
            self._forget(block)

    def give_back(self, blocks: Sequence[Block]) -> None:
        with self.server.changed:
            for block in reversed(blocks):
                self._forget(block)
                self.server.todo.insert(0, str(block))
            self.server.changed.notify_all()

    def report(self, text: str) -> None:
        with self.server.changed:
            if self.server.config is not None:
                self.server.errors.append(text)

    def depart(self) -> None:
        with self.server.changed:
            self.server.lives.pop(self.worker, None)


def block_slots(entry: str, publication: str) -> set[tuple[str, int]]:
    """(kind, slot) of a block's text, nothing for another publication or for what is no block."""
    try:
        block = Block.decode(entry)
    except DecodeError:
        return set()
    if block.publication != publication:
        return set()
    return {(block.kind, slot) for slot in range(block.start, block.stop)}


def _parse_count(text: str) -> int:
    return int(text) if text.isdecimal() and text.isascii() else 0


def group_slots(request: ReconcileRequest, slots: set[tuple[str, int]]) -> list[Block]:
    """Contiguous blocks of at most ``request.block_size`` slots, in the order of the ranges;
    suspects stand alone.
    """
    blocks: list[Block] = []
    for kind, first, last in request.ranges:
        for slot in range(first, last):
            if (kind, slot) not in slots:
                continue
            previous = blocks[-1] if blocks else None
            if (
                previous is not None
                and (previous.kind, previous.stop) == (kind, slot)
                and slot - previous.start < request.block_size
                and not {(kind, slot), (kind, previous.start)} & request.suspects
            ):
                blocks[-1] = Block(request.publication, kind, previous.start, slot + 1)
            else:
                blocks.append(Block(request.publication, kind, slot, slot + 1))
    return blocks
