"""A worker at work: claim a block, fetch what it belongs to, play it, answer."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import asdict
from functools import partial

import numpy as np

from es_queue import __version__
from es_queue.errors import DecodeError, EsQueueError
from es_queue.numerics.arrays import Floats
from es_queue.protocol.keys import Clocks
from es_queue.protocol.messages import KINDS, Block, Task
from es_queue.protocol.store import WorkerStore
from es_queue.slots import worker_mark
from workers.episode import Leaving
from workers.parameter_cache import ParameterCache
from workers.player import Player

#: Seconds that a claim may wait, well below the socket's own time-out.
MAX_WAIT = 2.0


class Refusal(EsQueueError):  # noqa: N818 - the worker refuses; nothing is broken
    """This worker cannot work for the run; the sentence names the difference."""


class Service:
    """Serves blocks of one run. The worker's hash shows ``late``, ``blocks`` and ``block``."""

    def __init__(self, store: WorkerStore, player: Player, clocks: Clocks) -> None:
        self._store, self._player, self._clocks = store, player, clocks
        self._mark = worker_mark(store.worker)
        self._cache = ParameterCache(store.run)
        self.late = self.blocks = 0
        self.block = ""

    def run(self) -> None:
        """Work until asked to leave; unfinished blocks go back to the head of todo.

        Raises Refusal for a task that this worker cannot read or play, because it would take the
        other workers' blocks.
        """
        control = self._player.control
        try:
            while not control.leave_reason:
                block = self._next_block()
                if block is not None:
                    self._process(block)
                # Even a process that is too large from the start plays one block.
                if control.finish_reason and self.blocks:
                    control.leave(control.finish_reason)
        except Leaving:
            pass
        finally:
            # If Redis is away, the master issues the blocks again when the beat has lapsed.
            with suppress(Leaving):
                self._store.release(self._store.held_blocks())

    def _next_block(self) -> Block | None:
        """Those already held come first: the reply to an earlier claim may have been lost."""
        if held := self._store.held_blocks():
            return held[0]
        # A large fleet asks less often, as its heartbeat threads do.
        longest = min(self._player.control.poll or 0.0, MAX_WAIT)
        return self._store.claim(max(self._clocks.claim_wait, longest))

    def _process(self, block: Block) -> None:
        """Play a block and answer it; drop it if its publication has closed."""
        if not self._open(block):
            self._store.drop(block)
            return
        control = self._player.control
        self.block = f"{KINDS[block.kind]} {block.start} {block.stop}"
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
            about = {"environment": self._player.config.problem, **asdict(failure)}
            send_report(self._store, about.pop("reason"), **about)
        self.blocks += 1
        if not self._store.answer(block, answer.results.tobytes(), answer.moments.tobytes()):
            self.late += 1

    def _open(self, block: Block) -> bool:
        """Fetch what the block belongs to, if it is new. False if that has closed."""
        if not self._player.has(block):
            fetched = self._fetch(block.publication)
            if fetched is None:
                return False
            self._player.open(*fetched)
        return self._player.has(block)

    def _fetch(self, name: str) -> tuple[Task, Floats] | None:
        """The open publication's header and parameters; None if that is not ``name``."""
        player, raw = self._player, self._store.task()
        if raw is None:
            return None
        task = load_task(raw, player.noise.digest)
        if task.publication != name:
            return None
        if player.task is not None and player.task.publication == name:
            return task, player.published  # only its table has grown
        if not player.fits(task):
            raise Refusal(
                "policy: its parameters or observations differ in size from the run's: install "
                "the run's versions of es-queue and of the environment"
            )
        size = 4 * task.size
        fetch = partial(self._store.parameters, name, size)
        data = self._cache.get(name, size, task.digest, fetch)
        if data is None:
            return None
        if changed := player.noise.recheck():
            send_report(self._store, changed)
        player.control.poll = task.poll
        return task, np.frombuffer(data, "<f4").astype(np.float32, copy=False)

    def figures(self) -> dict[str, str]:
        """Texts for the worker's hash."""
        task = self._player.task
        return {
            "block": self.block,
            "late": str(self.late),
            "blocks": str(self.blocks),
            "generation": f"generation {task.generation}" if task else "",
        }


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


def send_report(store: WorkerStore, reason: str, **more: object) -> None:
    """Append a report to the run's list of errors. Raises what the store raises."""
    about = {"time": round(time.time(), 3), "worker": store.worker, "reason": reason}
    store.report(json.dumps({**about, **more}))
