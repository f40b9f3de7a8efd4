"""A seated worker: claim → perturb → roll out → push, until it is told to leave."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from es_queue.protocol.channel import WorkerChannel
from es_queue.protocol.clocks import Clocks
from es_queue.protocol.messages import Answer, Block, Task
from workers.evaluate import Evaluator, Failure, Floats
from workers.host_cache import HostCache
from workers.join import Refusal, readable_task
from workers.rollout import Leaving

#: Seconds that a claim may wait, well below the socket's own time-out.
MOST_WAIT = 2.0


@dataclass(frozen=True)
class Published:
    """An open publication as this worker holds it."""

    task: Task
    parameters: Floats


class Server:
    """Serves blocks of one run over a channel. ``late``, ``blocks`` and ``block`` are shown in the worker's hash."""

    def __init__(self, channel: WorkerChannel, evaluator: Evaluator, clocks: Clocks, noise_digest: str) -> None:
        self._channel, self._evaluator, self._clocks, self._noise = channel, evaluator, clocks, noise_digest
        self._cache = HostCache(channel.run)
        self._open: Published | None = None
        self.late = 0
        self.blocks = 0
        self.block = ""

    @property
    def generation(self) -> int | None:
        return None if self._open is None else self._open.task.generation

    def serve(self) -> None:
        """Until the watch says leave; unfinished blocks go back to the head of todo (rule 13).

        Raises Refusal for a task that this worker cannot read or may not work: it would eat the blocks of the others.
        """
        watch = self._evaluator.watch
        try:
            while not watch.leaving:
                block = self._next_block()
                if block is not None:
                    self._work(block)
                if watch.full and self.blocks:  # a process that is too large from the start still plays a slot
                    watch.leaving = watch.leaving or watch.full
        except Leaving:
            pass
        finally:
            with suppress(Leaving):  # Redis is away: reconcile returns what we hold when our beat has lapsed
                self._channel.give_back(self._channel.claimed())

    def _next_block(self) -> Block | None:
        """What I hold already comes first: the reply to an earlier claim may have been lost (rule 5)."""
        held = self._channel.claimed()
        # A large fleet asks less often, as its life threads do.
        return held[0] if held else self._channel.claim(max(self._clocks.claim_wait, min(self._evaluator.watch.poll or 0.0, MOST_WAIT)))

    def _work(self, block: Block) -> None:
        published = self._published(block)
        if published is None or not self._evaluator.has(block):
            self._channel.drop(block)
            return
        self.block = f"{block.kind} {block.start} {block.stop}"
        try:
            answer = self._evaluate(published, block)
        except Leaving:
            if self._evaluator.watch.leaving:
                raise
            self._given_up(block)
            return
        finally:
            self.block = ""
        self.blocks += 1
        if not self._channel.answer(block, answer.encode()):
            self.late += 1

    def _evaluate(self, published: Published, block: Block) -> Answer:
        self._evaluator.watch.serve(block.publication)
        try:
            return self._evaluator.evaluate(published.task, published.parameters, block, self._channel.worker, self.report)
        finally:
            self._evaluator.watch.served()

    def _given_up(self, block: Block) -> None:
        """Its publication closed while it was played: somebody else's copy was first. Said of another block, it is played again."""
        if self._evaluator.watch.closed == block.publication:
            self.late += 1
            self._channel.drop(block)

    def _published(self, block: Block) -> Published | None:
        """The block's publication, None when it has closed (rule 2)."""
        if self._open is None or self._open.task.publication != block.publication:
            with self._cache.turn():
                self._open = self._fetch(block.publication)
        found = self._open
        return found if found is not None and found.task.publication == block.publication else None

    def _fetch(self, publication: str) -> Published | None:
        """What is open; its header from another worker of the host where that is the publication asked for."""
        shared = self._cache.header(publication)
        raw = shared or self._channel.task()
        if raw is None:
            return None
        task = readable_task(raw, self._noise)
        if not self._evaluator.fits(task):
            raise Refusal("policy: its parameters or observations are of other sizes here than in the run's task: another version of es-queue or of the environment")
        size = 4 * task.size
        data = self._cache.get(task.publication, size, task.digest, lambda: self._channel.parameters(task.publication, size))
        if data is None:
            return None
        if changed := self._evaluator.table.recheck():
            about = {"time": round(time.time(), 3), "worker": self._channel.worker, "reason": changed}
            self._channel.report(json.dumps(about))
        if shared is None:
            self._cache.keep(task.publication, raw)
        self._evaluator.watch.poll = task.poll
        return Published(task, np.frombuffer(data, "<f4").astype(np.float32, copy=False))

    def report(self, failure: Failure) -> None:
        """Tell people of an episode that raised."""
        config = self._evaluator.config
        self._channel.report(
            json.dumps(
                {
                    "time": round(time.time(), 3), "worker": self._channel.worker, "environment": config.task, "seed": failure.seed,
                    "slot": failure.slot, "generation": self.generation, "reason": failure.reason, "trace": failure.trace[-4000:],
                }
            )
        )  # fmt: skip


def worker_id(host: str) -> str:
    """``<host>-<pid>-<6 hex>``, new for each seat, so that no two lives share a claims list."""
    name = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "_" for letter in host)[:100] or "host"
    return f"{name}-{os.getpid()}-{os.urandom(3).hex()}"
