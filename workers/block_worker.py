"""A seated worker: claim → perturb → roll out → push, until it must leave."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from es_queue.numerics.arrays import Floats
from es_queue.protocol.channel import WorkerChannel
from es_queue.protocol.messages import Answer, Block, Task
from es_queue.protocol.timing import Clocks
from workers.episode import Leaving
from workers.evaluator import Evaluator
from workers.heartbeat import send_report
from workers.join import Refusal, load_task
from workers.parameter_cache import ParameterCache
from workers.slots.player import FailureReport

#: Seconds that a claim may wait, well below the socket's own time-out.
MAX_WAIT = 2.0


@dataclass(frozen=True)
class FetchedPublication:
    """An open publication as this worker holds it."""

    task: Task
    parameters: Floats


class BlockWorker:
    """Serves blocks of one run over a channel. ``late``, ``blocks`` and ``block`` are shown in the
    worker's hash.
    """

    def __init__(
        self, channel: WorkerChannel, evaluator: Evaluator, clocks: Clocks, noise_digest: str
    ) -> None:
        self._channel, self._evaluator, self._clocks, self._noise = (
            channel,
            evaluator,
            clocks,
            noise_digest,
        )
        self._cache = ParameterCache(channel.run)
        self._publication: FetchedPublication | None = None
        self.late = 0
        self.blocks = 0
        self.block = ""

    @property
    def generation(self) -> int | None:
        return None if self._publication is None else self._publication.task.generation

    def run(self) -> None:
        """Until the watch says leave; unfinished blocks go back to the head of todo (rule 13).

        Raises Refusal for a task that this worker cannot read or may not work: it would eat the
        blocks of the others.
        """
        control = self._evaluator.control
        try:
            while not control.leave_reason:
                block = self._next_block()
                if block is not None:
                    self._process(block)
                if (
                    control.finish_reason and self.blocks
                ):  # a process that is too large from the start still plays a slot
                    control.leave(control.finish_reason)
        except Leaving:
            pass
        finally:
            with suppress(
                Leaving
            ):  # Redis is away: reconcile returns what we hold when our beat has lapsed
                self._channel.give_back(self._channel.held_blocks())

    def _next_block(self) -> Block | None:
        """The next block; blocks already held come first, because the reply to an earlier claim may
        have been lost (rule 5).
        """
        held = self._channel.held_blocks()
        # A large fleet asks less often, as its heartbeat threads do.
        return (
            held[0]
            if held
            else self._channel.claim(
                max(self._clocks.claim_wait, min(self._evaluator.control.poll or 0.0, MAX_WAIT))
            )
        )

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
        """Its publication closed while it was played: somebody else's copy was first. Said of
        another block, it is played again.
        """
        if self._evaluator.control.closed == block.publication:
            self.late += 1
            self._channel.drop(block)

    def _load_publication(self, block: Block) -> FetchedPublication | None:
        """The block's publication, None when it has closed (rule 2)."""
        if self._publication is None or self._publication.task.publication != block.publication:
            with self._cache.fetch_lock():
                self._publication = self._fetch(block.publication)
        publication = self._publication
        return (
            publication
            if publication is not None and publication.task.publication == block.publication
            else None
        )

    def _fetch(self, publication: str) -> FetchedPublication | None:
        """What is open; its header from another worker of the host where that is the publication
        asked for.
        """
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
        data = self._cache.get(
            task.publication,
            size,
            task.digest,
            lambda: self._channel.parameters(task.publication, size),
        )
        if data is None:
            return None
        if changed := self._evaluator.table.recheck():
            send_report(self._channel, changed)
        if shared is None:
            self._cache.write_header(task.publication, raw)
        self._evaluator.control.set_poll(task.poll)
        return FetchedPublication(task, np.frombuffer(data, "<f4").astype(np.float32, copy=False))

    def report(self, failure: FailureReport) -> None:
        """Tell people of an episode that raised."""
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
    """``<host>-<pid>-<6 hex>``, new for each seat, so that no two lives share a claims list."""
    name = (
        "".join(
            letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "_"
            for letter in host
        )[:100]
        or "host"
    )
    return f"{name}-{os.getpid()}-{os.urandom(3).hex()}"
