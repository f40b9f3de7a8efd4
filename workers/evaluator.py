"""One block: builds the individuals of its slots, plays their episodes, and encodes the results."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from rq.timeouts import BaseTimeoutException

from es_queue.config.run_config import ASYNC
from es_queue.numerics.arrays import Floats
from es_queue.numerics.noise_table import NoiseTable
from es_queue.protocol import messages
from es_queue.protocol.messages import Answer, Block, SlotResult, Task
from es_queue.strategies.base import (
    centre_of,
    make_builder,
    strategy_failure,
    validate_individuals,
)
from es_queue.strategies.capabilities.hooks import SlotDraw
from workers.episode import Episode, EpisodeControl, OnStep
from workers.slots.jobs import JobPlanner, RunParts, SlotJob
from workers.slots.player import (
    BatchPlayer,
    FailedSlot,
    FailureReport,
    SlotPlayer,
    failure_reason,
)


class Evaluator:
    """Evaluates blocks of one run in this process. An episode depends on nothing but the plan, the
    parameters, the frozen statistics, the episode rules and the back end.
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
        """Whether the task's vectors have the lengths that this run's policy has."""
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

        Raises Leaving between steps. An episode that raises becomes a failure of its slot, told to
        ``report``. A process that has grown too large answers the slots that it has played; the
        others are owed again.
        """
        began = time.monotonic()
        results, failures = [], []
        with np.errstate(all="ignore"):
            for group in self._groups(block, self.planner.jobs(task, published, block)):
                for job, outcome in zip(
                    group, self._play_group(task, published, group), strict=True
                ):
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
        """Jobs that are played together. Centres are few, and each may have statistics of its
        own.
        """
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
