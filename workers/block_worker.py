"""A seated worker: claim → perturb → roll out → push, until it must leave."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np
from rq.timeouts import BaseTimeoutException

from es_queue import __version__
from es_queue.config.run_config import ASYNC
from es_queue.errors import DecodeError, EsQueueError
from es_queue.numerics.arrays import Floats
from es_queue.numerics.noise_table import NoiseTable
from es_queue.protocol import messages
from es_queue.protocol.channel import WorkerChannel
from es_queue.protocol.messages import Answer, Block, SlotResult, Task
from es_queue.protocol.timing import Clocks
from es_queue.strategies.base import (
    centre_of,
    make_builder,
    strategy_failure,
    validate_individuals,
)
from es_queue.strategies.capabilities.hooks import SlotDraw
from workers.episode import Episode, EpisodeControl, Leaving, OnStep
from workers.heartbeat import send_report
from workers.parameter_cache import ParameterCache
from workers.slots import (
    BatchPlayer,
    FailedSlot,
    FailureReport,
    JobPlanner,
    RunParts,
    SlotJob,
    SlotPlayer,
    failure_reason,
)


class Evaluator:
    """Evaluates blocks of one run. An episode depends only on the plan, the parameters, the frozen
    statistics, the episode rules and the back end.
    """

    def __init__(self, parts: RunParts, table: NoiseTable, control: EpisodeControl) -> None:
        self.config, self.spec, self.table, self.control = parts.config, parts.spec, table, control
        self._policy, self._strategy = parts.policy, parts.strategy
        self._build = make_builder(parts.strategy, table)
        self._player = SlotPlayer(parts, table, control)
        self._batch_player = (
            None if parts.envs is None else BatchPlayer(parts, table, control, parts.envs)
        )
        self.planner = JobPlanner(parts)

    def fits(self, task: Task) -> bool:
        """Whether the task's vectors have the lengths of this run's policy."""
        return (
            self._strategy.fits(task.size, self.spec.observation_size)
            and len(task.obs_mean) == 4 * self.spec.observation_size
        )

    def evaluate(
        self,
        task: Task,
        published: Floats,
        block: Block,
        worker: str,
        report: Callable[[FailureReport], None],
    ) -> Answer:
        """The answer to a block of ``task``'s publication; ``published`` is float32[task.size].

        Raises Leaving between steps. An episode that raises becomes a failure of its slot, sent to
        ``report``. If the process has grown too large, it returns only the slots that it has
        played.
        """
        began = time.monotonic()
        results, failures = [], []
        with np.errstate(all="ignore"):
            for group in self._groups(block, self.planner.jobs(task, published, block)):
                for job, outcome in zip(
                    group, self._play_group(task, published, group), strict=True
                ):
                    has_failed = isinstance(outcome, FailedSlot)
                    self.control.work.end_slot(job.seeds.size, has_failed=has_failed)
                    if isinstance(outcome, SlotResult):
                        results.append(outcome)
                        continue
                    reason = failure_reason(outcome.error)[: messages.MAX_REASON]
                    failures.append((job.slot, reason))
                    report(
                        FailureReport(
                            block.kind,
                            job.slot,
                            outcome.seed,
                            reason,
                            "".join(traceback.format_exception(outcome.error, limit=-12)),
                        )
                    )
                if self.control.finish_reason:  # the rest of the block is for a smaller process
                    break
        return Answer(
            task.publication,
            block.kind,
            worker,
            time.monotonic() - began,
            tuple(results),
            tuple(failures),
        )

    def play_individual(
        self,
        task: Task,
        published: Floats,
        slot: int,
        individual: int,
        on_step: OnStep | None = None,
    ) -> list[Episode]:
        """One individual of a training slot, on its own episodes; ``on_step`` follows each step."""
        (job,) = self.planner.training_jobs(
            task, Block(task.publication, messages.TRAIN, slot, slot + 1)
        )
        parameters = self._individuals(task, published, job)[individual]
        with np.errstate(all="ignore"):
            return self._player.play_individual(
                parameters, job, job.seeds[individual].tolist(), on_step
            )

    def play_centre(
        self, task: Task, published: Floats, seeds: Sequence[int], on_step: OnStep | None = None
    ) -> list[Episode]:
        """The unperturbed policy as it is evaluated, on ``seeds``; ``on_step`` follows
        each step.
        """
        job = self.planner.centre_job(task, seeds)
        with np.errstate(all="ignore"):
            return self._player.play_individual(
                self._strategy.centre(published), job, seeds, on_step
            )

    def _groups(self, block: Block, jobs: list[SlotJob]) -> Sequence[Sequence[SlotJob]]:
        """Jobs to play together. The few centres may each have their own statistics."""
        batches = self._batch_player
        if block.kind == messages.CENTRE or batches is None or not batches.is_worthwhile(jobs):
            return [[job] for job in jobs]
        return batches.split(jobs)

    def _play_group(
        self, task: Task, published: Floats, group: Sequence[SlotJob]
    ) -> list[SlotResult | FailedSlot]:
        """The outcome of each job. Raises Leaving between steps."""
        seed = int(group[0].seeds[0, 0])
        self.control.begin_episode(
            {"generation": task.generation, "slot": group[0].slot, "seed": seed}
        )
        batches = self._batch_player
        player = self._player if batches is None or not batches.is_worthwhile(group) else batches
        try:
            return player.play(partial(self._individuals, task, published), group)
        finally:
            self.control.end_episode()

    def _individuals(self, task: Task, published: Floats, job: SlotJob) -> Floats:
        """float32[individuals, size] of one slot."""
        if job.index < 0 and not (job.kind == messages.ELITE and self.config.schedule == ASYNC):
            return centre_of(self._strategy, published, job.centre)[None]
        noise: Floats = self.table.row(max(0, job.index), self._policy.size)
        drawn = SlotDraw(job.kind, task.generation, job.slot, job.index, noise)
        try:
            individuals = self._build(published, task.sigma, drawn)
        except (OSError, MemoryError, BaseTimeoutException):
            raise
        except Exception as error:
            raise strategy_failure(self._strategy, "ask", error) from error
        validate_individuals(self._strategy, individuals, (len(job.seeds), self._policy.size))
        return individuals


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
    """An open publication, as fetched."""

    task: Task
    parameters: Floats


class BlockWorker:
    """Serves blocks of one run over a channel. The worker's hash shows ``late``, ``blocks`` and
    ``block``.
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
        publication = self._publication
        return (
            publication
            if publication is not None and publication.task.publication == block.publication
            else None
        )

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
        """Report an episode that raised."""
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
    name = (
        "".join(
            letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "_"
            for letter in host
        )[:100]
        or "host"
    )
    return f"{name}-{os.getpid()}-{os.urandom(3).hex()}"
