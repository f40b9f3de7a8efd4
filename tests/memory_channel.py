"""The store inside one process, without a server: the plainest statement of what its scripts do."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from es_queue.errors import FencedError
from es_queue.protocol.connection import Retry
from es_queue.protocol.messages import WORKER_ID, Block, token_number
from es_queue.protocol.store import (
    NO_WORKERS,
    NONE_REFUSED,
    Look,
    WorkerFlags,
    WorkerInfos,
    report_text,
)


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
