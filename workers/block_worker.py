"""A seated worker: claim → perturb → roll out → push, until it must leave."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np

from es_queue import __version__
from es_queue.errors import DecodeError, EsQueueError
from es_queue.numerics.arrays import Floats
from es_queue.protocol.channel import WorkerChannel
from es_queue.protocol.messages import Answer, Block, Task
from es_queue.protocol.timing import Clocks
from workers.episode import Leaving
from workers.heartbeat import send_report
from workers.parameter_cache import ParameterCache
from workers.slots import Evaluator, FailureReport

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


@dataclass(frozen=True)
class FetchedPublication:
    task: Task
    parameters: Floats


class BlockWorker:
    """Serves blocks of one run over a channel. The worker's hash shows ``late``, ``blocks`` and
    ``block``.
    """

    def __init__(
        self,
        channel: WorkerChannel,
        evaluator: Evaluator,
        clocks: Clocks,
        noise_digest: str,
    ) -> None:
        self._channel, self._evaluator, self._clocks = channel, evaluator, clocks
        self._noise = noise_digest
        self._cache = ParameterCache(channel.run)
        self._publication: FetchedPublication | None = None
        self.late = 0
        self.blocks = 0
        self.block = ""

    @property
    def generation(self) -> int | None:
        return None if self._publication is None else self._publication.task.generation

    def run(self) -> None:
        """Work until asked to leave; unfinished blocks go back to the head of todo (rule 13).

        Raises Refusal for a task that this worker cannot read or play, because it would take the
        other workers' blocks.
        """
        control = self._evaluator.control
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
            # Redis may be away: reconcile returns what we hold when our beat has lapsed.
            with suppress(Leaving):
                self._channel.give_back(self._channel.held_blocks())

    def _next_block(self) -> Block | None:
        """The next block; blocks already held come first, because the reply to an earlier claim may
        have been lost (rule 5).
        """
        if held := self._channel.held_blocks():
            return held[0]
        # A large fleet asks less often, as its heartbeat threads do.
        longest = min(self._evaluator.control.poll or 0.0, MAX_WAIT)
        return self._channel.claim(max(self._clocks.claim_wait, longest))

    def _process(self, block: Block) -> None:
        published = self._load_publication(block)
        if published is None or not self._evaluator.planner.has_block(block):
            self._channel.drop(block)
            return
        self.block = f"{block.kind} {block.start} {block.stop}"
        try:
            answer = self._evaluate(published, block)
        except Leaving:
            if self._evaluator.control.leave_reason:
                raise
            self._drop_closed(block)
            return
        finally:
            self.block = ""
        self.blocks += 1
        if not self._channel.answer(block, answer.encode()):
            self.late += 1

    def _evaluate(self, published: FetchedPublication, block: Block) -> Answer:
        self._evaluator.control.begin_block(block.publication)
        try:
            return self._evaluator.evaluate(
                published.task, published.parameters, block, self._channel.worker, self.report
            )
        finally:
            self._evaluator.control.end_block()

    def _drop_closed(self, block: Block) -> None:
        """Drop a block whose publication closed while it was played, because another copy was
        first. An open block is played again.
        """
        if self._evaluator.control.closed == block.publication:
            self.late += 1
            self._channel.drop(block)

    def _load_publication(self, block: Block) -> FetchedPublication | None:
        """The block's publication, None when it has closed (rule 2)."""
        if self._publication is None or self._publication.task.publication != block.publication:
            with self._cache.fetch_lock():
                self._publication = self._fetch(block.publication)
        fetched = self._publication
        is_open = fetched is not None and fetched.task.publication == block.publication
        return fetched if is_open else None

    def _fetch(self, publication: str) -> FetchedPublication | None:
        """The open publication; its header from another worker of the host if possible."""
        shared = self._cache.read_header(publication)
        raw = shared or self._channel.task()
        if raw is None:
            return None
        task = load_task(raw, self._noise)
        if not self._evaluator.fits(task):
            raise Refusal(
                "policy: its parameters or observations differ in size from the run's: install "
                "the run's versions of es-queue and of the environment"
            )
        size = 4 * task.size
        fetch = partial(self._channel.parameters, task.publication, size)
        data = self._cache.get(task.publication, size, task.digest, fetch)
        if data is None:
            return None
        if changed := self._evaluator.table.recheck():
            send_report(self._channel, changed)
        if shared is None:
            self._cache.write_header(task.publication, raw)
        self._evaluator.control.poll = task.poll
        return FetchedPublication(task, np.frombuffer(data, "<f4").astype(np.float32, copy=False))

    def report(self, failure: FailureReport) -> None:
        send_report(
            self._channel,
            failure.reason,
            environment=self._evaluator.config.task,
            seed=failure.seed,
            kind=failure.kind,
            slot=failure.slot,
            generation=self.generation,
            trace=failure.trace[-4000:],
        )


def make_worker_id(host: str) -> str:
    """``<host>-<pid>-<6 hex>``, new for each seat, so that no claims list is shared."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", host)[:100] or "host"
    return f"{name}-{os.getpid()}-{os.urandom(3).hex()}"
