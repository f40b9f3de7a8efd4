"""A seated worker: claim → fetch → play → answer, until it must leave."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from functools import partial

import numpy as np

from es_queue import __version__
from es_queue.errors import DecodeError, EsQueueError
from es_queue.numerics.arrays import Floats
from es_queue.protocol.messages import Block, Task
from es_queue.protocol.store import WorkerStore
from es_queue.protocol.timing import Clocks
from es_queue.slots import worker_mark
from workers.episode import Leaving
from workers.heartbeat import send_report
from workers.parameter_cache import ParameterCache
from workers.player import Failure, Player

#: Seconds that a claim may wait, well below the socket's own time-out.
MAX_WAIT = 2.0


class Refusal(EsQueueError):  # noqa: N818 - the worker refuses; nothing is broken
    """This worker cannot work for the run; the sentence names the difference."""


def load_task(raw: bytes, digest: str) -> Task:
    """The run's task. Raises Refusal if this es-queue cannot read it, or if this host's noise table
    differs.
    """
    try:
        task = Task.decode(raw)
    except DecodeError as error:
        raise Refusal(
            f"protocol: es-queue {__version__} here cannot read the run's task ({error}): "
            "install the master's version"
        ) from None
    if task.noise != digest:
        raise Refusal(f"noise digest: this host's table is {digest}, the run's is {task.noise}")
    return task


class Service:
    """Serves blocks of one run. The worker's hash shows ``late``, ``blocks`` and ``block``."""

    def __init__(
        self, store: WorkerStore, player: Player, clocks: Clocks, noise_digest: str
    ) -> None:
        self._store, self._player, self._clocks = store, player, clocks
        self._noise = noise_digest
        self._mark = worker_mark(store.worker)
        self._cache = ParameterCache(store.run)
        self.late = self.blocks = 0
        self.block = ""

    @property
    def generation(self) -> int | None:
        return None if self._player.task is None else self._player.task.generation

    def run(self) -> None:
        """Work until asked to leave; unfinished blocks go back to the head of todo (rule 13).

        Raises Refusal for a task that this worker cannot read or play, because it would take the
        other workers' blocks.
        """
        control = self._player.control
        try:
            while not control.leave_reason:
                block = self._next_block()
                if block is not None:
                    self._process(block)
                # A process that is too large from the start still plays a slot.
                if control.finish_reason and self.blocks:
                    control.leave(control.finish_reason)
        except Leaving:
            pass
        finally:
            # Redis may be away: the master issues what we hold again when our beat has lapsed.
            with suppress(Leaving):
                self._store.give_back(self._store.held_blocks())

    def _next_block(self) -> Block | None:
        """The next block; blocks already held come first, because the reply to an earlier claim may
        have been lost (rule 5).
        """
        if held := self._store.held_blocks():
            return held[0]
        # A large fleet asks less often, as its heartbeat threads do.
        longest = min(self._player.control.poll or 0.0, MAX_WAIT)
        return self._store.claim(max(self._clocks.claim_wait, longest))

    def _process(self, block: Block) -> None:
        if not self._open(block):
            self._store.drop(block)
            return
        control = self._player.control
        self.block = f"{block.kind} {block.start} {block.stop}"
        control.begin_block(block.publication)
        try:
            answer = self._player.play(block, self._mark)
        except Leaving:
            if control.leave_reason:
                raise
            if control.closed == block.publication:  # another copy was first
                self.late += 1
                self._store.drop(block)
            return
        finally:
            self.block = ""
            control.end_block()
        for failure in answer.failures:
            self._report(failure)
        self.blocks += 1
        if not self._store.give(block, answer.results.tobytes(), answer.moments.tobytes()):
            self.late += 1

    def _open(self, block: Block) -> bool:
        """Fetch what the block belongs to, if it is new. False if that has closed (rule 2)."""
        for _ in range(2):  # a header that another worker stored may lack the newest rows
            if self._player.has(block):
                return True
            with self._cache.fetch_lock():
                fetched = self._fetch(block)
            if fetched is None:
                return False
            self._player.open(*fetched)
        return self._player.has(block)

    def _fetch(self, block: Block) -> tuple[Task, Floats] | None:
        """The open publication; its header from another worker of the host if possible. That of a
        table that has grown is read again.
        """
        name, known = block.publication, self._player.task
        has_grown = known is not None and known.publication == name
        shared = None if has_grown else self._cache.read_header(name)
        raw = shared or self._store.task()
        if raw is None:
            return None
        task = load_task(raw, self._noise)
        if task.publication != name:
            return None
        if has_grown:
            return task, self._player.published
        if not self._player.fits(task):
            raise Refusal(
                "policy: its parameters or observations differ in size from the run's: install "
                "the run's versions of es-queue and of the environment"
            )
        size = 4 * task.size
        fetch = partial(self._store.parameters, name, size)
        data = self._cache.get(name, size, task.digest, fetch)
        if data is None:
            return None
        if changed := self._player.noise.recheck():
            send_report(self._store, changed)
        if shared is None:
            self._cache.write_header(name, raw)
        self._player.control.poll = task.poll
        return task, np.frombuffer(data, "<f4").astype(np.float32, copy=False)

    def _report(self, failure: Failure) -> None:
        send_report(
            self._store,
            failure.reason,
            environment=self._player.config.task,
            seed=failure.seed,
            kind=failure.kind,
            slot=failure.slot,
            generation=failure.generation,
            trace=failure.trace,
        )


def make_worker_id(host: str) -> str:
    """``<host>-<pid>-<6 hex>``, new for each seat, so that no claims list is shared."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", host)[:100] or "host"
    return f"{name}-{os.getpid()}-{os.urandom(3).hex()}"
