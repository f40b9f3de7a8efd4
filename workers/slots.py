"""Evaluates blocks: which episodes their slots are, the individuals that play them one by one or
many at once, and the results.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice

import numpy as np
from rq.timeouts import BaseTimeoutException

from es_queue.config.episode_rules import (
    EpisodeRules,
    evaluation_limit,
    evaluation_rules,
    training_rules,
)
from es_queue.config.run_config import ASYNC, RunConfig
from es_queue.config.scaling import LARGEST_SCALE, scaled
from es_queue.environments.interface import Environment, VectorEnvironment
from es_queue.environments.spaces import EnvironmentSpec
from es_queue.errors import StrategyFailure
from es_queue.numerics.arrays import Floats, Integers
from es_queue.numerics.noise_table import NoiseTable
from es_queue.numerics.normalization import FrozenStatistics, Moments
from es_queue.numerics.return_statistics import sum_in_order
from es_queue.numerics.slot_plan import (
    BEHAVIOUR,
    ELITE,
    EVALUATION_STREAMS,
    SlotPlan,
    evaluation_seeds,
    make_generation_plan,
    max_slots,
)
from es_queue.policies import initial_parameters
from es_queue.policies.base import Policy
from es_queue.protocol import messages
from es_queue.protocol.messages import Answer, Block, EpisodeMoments, SlotResult, Task
from es_queue.strategies.base import Strategy, strategy_failure, validate_individuals
from workers.episode import (
    Episode,
    EpisodeControl,
    EpisodeFailed,
    EpisodePlayer,
    EpisodeSpec,
    OnStep,
    Outcome,
)

MAX_EVALUATIONS = 100_000


@dataclass(frozen=True)
class RunParts:
    """``env`` plays episodes one by one, ``envs`` many at once."""

    config: RunConfig
    spec: EnvironmentSpec
    policy: Policy
    strategy: Strategy
    env: Environment
    envs: VectorEnvironment | None = None


@dataclass(frozen=True)
class SlotJob:
    """A slot to play: seeds int64[individuals, episodes]; ``key`` of its action noise, None for
    none.

    behave: whether its behaviour is required; centre: the number of a centre, if it is not
    perturbed
    """

    kind: str
    slot: int
    index: int
    seeds: Integers
    rules: EpisodeRules
    statistics: FrozenStatistics | None
    observe: bool = False
    key: int | None = None
    behave: bool = False
    centre: int = 0


class JobPlanner:
    """The episodes of a block's slots, which depend only on the config and the publication."""

    def __init__(self, parts: RunParts) -> None:
        config, strategy = parts.config, parts.strategy
        self._config, self._strategy, self._size = config, strategy, parts.policy.size
        self._evaluation = evaluation_rules(evaluation_limit(config, parts.spec))
        self._planned: tuple[int, SlotPlan] | None = None
        # A run can change its scale; one that evaluates again cannot, as its slots have numbers.
        widest = scaled(config if strategy.reevaluates else replace(config, scale=LARGEST_SCALE))
        self._max_slots = {
            kind: max_slots(widest, strategy.per_slot)[kind] for kind in messages.TRAINED
        }
        self._max_slots[messages.ELITE] *= strategy.reevaluates
        self._max_slots[messages.CENTRE] = strategy.max_centres

    def has_block(self, block: Block) -> bool:
        """Whether the run can have these slots; a block's text can contain any numbers.

        The number of evaluated episodes can change during the seat (in a resumed run), so only
        their maximum is known.
        """
        return block.stop <= self._max_slots.get(block.kind, MAX_EVALUATIONS)

    def jobs(self, task: Task, published: Floats, block: Block) -> list[SlotJob]:
        if block.kind == messages.TRAIN:
            return self.training_jobs(task, block)
        if block.kind == messages.CENTRE:
            return self._centre_jobs(task, published, block)
        if block.kind == messages.ELITE:
            return self._elite_jobs(task, block)
        return self._evaluation_jobs(task, block)

    def centre_job(self, task: Task, seeds: Sequence[int]) -> SlotJob:
        """The unperturbed policy as in an evaluation, on ``seeds``."""
        statistics = self._statistics(task)
        return SlotJob(messages.EVAL, 0, -1, np.array([seeds]), self._evaluation, statistics)

    def _rules(self, task: Task) -> EpisodeRules:
        return training_rules(self._config, task.step_limit, self._strategy.fitness_by_sign)

    def training_jobs(self, task: Task, block: Block) -> list[SlotJob]:
        slots = self._slots(task.generation, block.start, block.stop)
        rules, statistics = self._rules(task), self._statistics(task)
        return [
            SlotJob(
                block.kind,
                slot,
                int(slots.noise_indices[row]),
                slots.seeds[row],
                rules,
                statistics,
                bool(slots.sampled[row]),
                int(slots.noise_keys[row]),
                self._strategy.wants_behaviour,
            )
            for row, slot in enumerate(range(block.start, block.stop))
        ]

    def _centre_jobs(self, task: Task, published: Floats, block: Block) -> list[SlotJob]:
        """Slot 0 is the centre on slot 0's seeds, as training plays them; the others are centres on
        fresh seeds, without action noise.
        """
        first = self._slots(task.generation, 0, 1)
        behave = self._strategy.wants_behaviour
        rules = self._rules(task)
        fresh = evaluation_seeds(
            self._config, BEHAVIOUR, task.generation, self._config.behaviour_episodes
        ).reshape(1, -1)
        return [
            SlotJob(
                block.kind,
                slot,
                -1,
                fresh if slot else first.seeds[0, :1],
                rules,
                self._statistics(task, self._strategy.centre_statistics(published, slot)),
                False,
                None if slot else int(first.noise_keys[0]),
                behave,
                slot,
            )
            for slot in range(block.start, block.stop)
        ]

    def _slots(self, generation: int, start: int, stop: int) -> SlotPlan:
        """The plan of a range of slots. The whole generation's plan is made once; that of a
        population that grew is made again at twice the length, not for each block.
        """
        known, plan = self._planned or (generation, None)
        count = len(plan.noise_indices) if plan and known == generation else 0
        if plan is None or count < stop:
            whole = make_generation_plan(
                self._config, generation, self._size, self._strategy.per_slot
            )
            usual = self._strategy.config.population // self._strategy.per_slot
            count = max(stop, usual, min(2 * count, whole.index_count))
            plan = whole.slots(0, count)
            self._planned = generation, plan
        return plan.part(start, stop)

    def _elite_jobs(self, task: Task, block: Block) -> list[SlotJob]:
        """Training slots on fresh seeds, the same for all of them, without action noise; the slot
        after the last is the centre.
        """
        config = self._config
        seeds = evaluation_seeds(config, ELITE, task.generation, config.elite_episodes).reshape(
            1, -1
        )
        job = partial(
            SlotJob, block.kind, rules=self._rules(task), statistics=self._statistics(task)
        )
        slots = range(block.start, block.stop)
        if self._config.schedule == ASYNC:  # an episode a slot, of those whom the publication names
            return [job(slot, -1, seeds=seeds[:, slot % seeds.size, np.newaxis]) for slot in slots]
        stop = min(block.stop, self._max_slots[messages.TRAIN])
        plan = self._slots(task.generation, 0, stop)
        indices = [*plan.noise_indices.tolist(), -1]
        return [job(slot, indices[slot], seeds=seeds) for slot in slots]

    def _evaluation_jobs(self, task: Task, block: Block) -> list[SlotJob]:
        """The unperturbed policy, one episode per slot, under the environment's own rules."""
        seeds = evaluation_seeds(
            self._config, EVALUATION_STREAMS[block.kind], task.generation, block.stop
        )
        statistics = self._statistics(task)
        return [
            SlotJob(block.kind, slot, -1, seeds[slot].reshape(1, 1), self._evaluation, statistics)
            for slot in range(block.start, block.stop)
        ]

    def _statistics(
        self, task: Task, centre_statistics: tuple[Floats, Floats] | None = None
    ) -> FrozenStatistics | None:
        """The generation's, or a centre's ``centre_statistics``."""
        if not self._config.obs_norm:
            return None
        mean, std = centre_statistics or (
            np.frombuffer(task.obs_mean, "<f4"),
            np.frombuffer(task.obs_std, "<f4"),
        )
        return FrozenStatistics(
            mean.astype(np.float32), std.astype(np.float32), self._config.obs_clip
        )


@dataclass(frozen=True)
class FailedSlot:
    """The first episode of a slot that has no result."""

    seed: int
    error: Exception


@dataclass(frozen=True)
class FailureReport:
    """An episode that raised: a short text for the master, and a longer one for users."""

    kind: str
    slot: int
    seed: int
    reason: str
    trace: str


class Evaluator:
    """Evaluates blocks of one run. An episode depends only on the plan, the parameters, the frozen
    statistics, the episode rules and the back end.
    """

    def __init__(self, parts: RunParts, table: NoiseTable, control: EpisodeControl) -> None:
        self.config, self.spec, self.table, self.control = parts.config, parts.spec, table, control
        self.parts, self.planner = parts, JobPlanner(parts)
        self._episodes = EpisodePlayer(
            parts.config, parts.spec, parts.policy, control, parts.env, parts.envs, table
        )
        self._build = parts.strategy.builder(table)
        self._draw = partial(initial_parameters, parts.config, parts.policy)

    def fits(self, task: Task) -> bool:
        """Whether the task's vectors have the lengths of this run's policy."""
        return (
            self.parts.strategy.fits(task.size, self.spec.observation_size)
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
        jobs = self.planner.jobs(task, published, block)
        with np.errstate(all="ignore"):
            # The few centres may each have their own statistics.
            groups = [[job] for job in jobs] if block.kind == messages.CENTRE else [jobs]
            played = chain.from_iterable(self._play(task, published, group) for group in groups)
            for job in jobs:
                outcome = self._outcome(job, list(islice(played, job.seeds.size)))
                if isinstance(outcome, SlotResult):
                    self.control.episodes += job.seeds.size
                    results.append(outcome)
                else:
                    self.control.failures += 1
                    reason = failure_reason(outcome.error)[: messages.MAX_REASON]
                    failures.append((job.slot, reason))
                    trace = "".join(traceback.format_exception(outcome.error, limit=-12))
                    report(FailureReport(block.kind, job.slot, outcome.seed, reason, trace))
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

    def individuals(self, task: Task, published: Floats, job: SlotJob) -> Floats:
        """float32[individuals, size] of one slot."""
        strategy, size = self.parts.strategy, self.parts.policy.size
        if job.kind not in (messages.TRAIN, messages.ELITE):
            return strategy.centre_of(published, job.centre, self._draw)[None]
        try:
            individuals = self._build(published, task.sigma, task.generation, job.slot, job.index)
        except (OSError, MemoryError, BaseTimeoutException):
            raise
        except Exception as error:
            raise strategy_failure(strategy, "ask", error) from error
        validate_individuals(strategy, individuals, (len(job.seeds), size))
        return individuals

    def play_individual(
        self,
        task: Task,
        published: Floats,
        slot: int,
        individual: int,
        on_step: OnStep | None = None,
    ) -> list[Episode]:
        """One individual of a training slot, on its own episodes; ``on_step`` follows each step."""
        block = Block(task.publication, messages.TRAIN, slot, slot + 1)
        (job,) = self.planner.training_jobs(task, block)
        parameters = self.individuals(task, published, job)[individual]
        return self._play_alone(job, parameters, job.seeds[individual].tolist(), on_step)

    def play_centre(
        self, task: Task, published: Floats, seeds: Sequence[int], on_step: OnStep | None = None
    ) -> list[Episode]:
        """The unperturbed policy as it is evaluated, on ``seeds``; ``on_step`` follows
        each step.
        """
        job = self.planner.centre_job(task, seeds)
        return self._play_alone(job, self.parts.strategy.centre(published), seeds, on_step)

    def _play_alone(
        self, job: SlotJob, parameters: Floats, seeds: Sequence[int], on_step: OnStep | None
    ) -> list[Episode]:
        """Episodes of one individual. Raises what the first failed one has failed with."""
        specs = [EpisodeSpec(parameters, seed, job.observe, job.key, job.behave) for seed in seeds]
        episodes = []
        with np.errstate(all="ignore"):
            for outcome in self._episodes.play(
                specs, len(specs), job.rules, job.statistics, on_step
            ):
                if isinstance(outcome, Exception):
                    raise outcome
                episodes.append(outcome)
        return episodes

    def _play(self, task: Task, published: Floats, jobs: Sequence[SlotJob]) -> Iterator[Outcome]:
        """The outcomes of all episodes of slots with equal rules and statistics."""
        specs = (spec for job in jobs for spec in self._specs(task, published, job))
        count = sum(job.seeds.size for job in jobs)
        return self._episodes.play(specs, count, jobs[0].rules, jobs[0].statistics)

    def _specs(
        self, task: Task, published: Floats, job: SlotJob
    ) -> Iterator[EpisodeSpec | Exception]:
        seed = int(job.seeds[0, 0])
        self.control.begin_episode({"generation": task.generation, "slot": job.slot, "seed": seed})
        try:
            each = self.individuals(task, published, job)
        except BaseTimeoutException:
            raise
        except Exception as error:  # the user's strategy, or a noise table that cannot be read
            self.control.end_episode()
            yield from [error] * job.seeds.size
            return
        for parameters, seeds in zip(each, job.seeds.tolist(), strict=True):
            for seed in seeds:
                yield EpisodeSpec(parameters, seed, job.observe, job.key, job.behave)

    def _outcome(self, job: SlotJob, outcomes: Sequence[Outcome]) -> SlotResult | FailedSlot:
        """The slot's result from the outcomes of its episodes in the order of ``job.seeds``, unless
        one failed, or has a return that the master would refuse.
        """
        episodes = []
        for seed, outcome in zip(job.seeds.flat, outcomes, strict=True):
            if isinstance(outcome, Exception):
                return FailedSlot(int(seed), outcome)
            if not max(abs(outcome.total), abs(outcome.fitness)) <= messages.MOST_RETURN:
                reason = f"the episode's return is beyond {messages.MOST_RETURN:g}"
                return FailedSlot(int(seed), EpisodeFailed(f"{reason}: scale its rewards down"))
            episodes.append(outcome)
        each = job.seeds.shape[1]
        return summarize_episodes(
            self.spec, job, [episodes[at : at + each] for at in range(0, len(episodes), each)]
        )


# --- what came of a slot


def failure_reason(error: Exception) -> str:
    """The failure, with a mark if it does not depend only on the slot: this host lacks something
    (disk, memory, files), or the user's own strategy failed.
    """
    if isinstance(error, StrategyFailure):
        return f"{messages.STRATEGY_FAILURE}{error}"
    host = messages.HOST_FAILURE if isinstance(error, OSError | MemoryError) else ""
    return f"{host}{type(error).__name__}: {error}"


def summarize_episodes(
    spec: EnvironmentSpec, job: SlotJob, played: Sequence[Sequence[Episode]]
) -> SlotResult:
    return SlotResult(
        job.slot,
        job.index,
        int(job.seeds[0, 0]),
        fitness=tuple(mean([episode.fitness for episode in episodes]) for episodes in played),
        returns=tuple(mean([episode.total for episode in episodes]) for episodes in played),
        steps=tuple(sum(episode.steps for episode in episodes) for episodes in played),
        at_limit=tuple(sum(episode.at_limit for episode in episodes) for episodes in played),
        cut=tuple(
            sum(was_cut(spec, episode, job.rules) for episode in episodes) for episodes in played
        ),
        moments=tuple(
            pack_moments(episode.moments)
            for episodes in played
            for episode in episodes
            if episode.moments
        ),
        behaviour=b"".join(
            mean_behaviour(
                [episode.behaviour for episode in episodes if episode.behaviour is not None]
            )
            for episodes in played
        ),
    )


def was_cut(spec: EnvironmentSpec, episode: Episode, rules: EpisodeRules) -> bool:
    """Whether training's rules ended it before the environment did."""
    shorter = spec.step_limit is None or rules.limit < spec.step_limit
    return episode.cut or (episode.at_limit and shorter)


def mean(values: list[float]) -> float:
    """Summed in order, in float64; the mean of one value is that value to the bit."""
    return sum_in_order(values) / len(values)


def mean_behaviour(episodes: list[Floats]) -> bytes:
    """The mean over an individual's episodes, summed in order in float64, as little-endian float32;
    empty without episodes.
    """
    if not episodes:
        return b""
    total = episodes[0].astype(np.float64)
    for behaviour in episodes[1:]:
        total = total + behaviour
    return (total / len(episodes)).astype("<f4").tobytes()


def pack_moments(moments: Moments) -> EpisodeMoments:
    """The moments for a message, in which every number is finite: an episode with an infinite
    observation is left out, as in a merge.
    """
    if not (np.isfinite(moments.mean).all() and np.isfinite(moments.m2).all()):
        nothing = np.zeros(len(moments.mean), "<f8").tobytes()
        return EpisodeMoments(0, nothing, nothing)
    return EpisodeMoments(
        moments.count, moments.mean.astype("<f8").tobytes(), moments.m2.astype("<f8").tobytes()
    )
