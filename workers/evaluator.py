"""One block: build each individual of its slots, roll out, and put what came of it into
an answer.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, pairwise
from typing import cast

import numpy as np
from numpy.typing import NDArray
from rq.timeouts import BaseTimeoutException

from es_queue.config.episode_rules import (
    EpisodeRules,
    evaluation_limit,
    evaluation_rules,
    training_rules,
)
from es_queue.config.run_config import ASYNC, RunConfig
from es_queue.environments.behaviour_descriptor import LAST
from es_queue.environments.interface import (
    BehaviourEnvironment,
    Environment,
    VectorEnvironment,
    best_batch_size,
)
from es_queue.environments.spaces import EnvironmentSpec
from es_queue.errors import StrategyFailure
from es_queue.numerics.noise_table import NoiseTable
from es_queue.numerics.normalization import FrozenStatistics, Moments
from es_queue.numerics.return_limits import (
    MOST_RETURN,
    first_unrelated_row,
    impossible_return_reason,
)
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
from es_queue.policies import Policy
from es_queue.policies.actions import ActionMap
from es_queue.policies.base import Forward
from es_queue.protocol import messages
from es_queue.protocol.messages import Answer, Block, EpisodeMoments, SlotResult, Task
from es_queue.strategies.base import (
    Strategy,
    centre_of,
    make_builder,
    strategy_failure,
    validate_individuals,
)
from es_queue.strategies.capabilities.hooks import SlotDraw, centre_statistics, max_centres
from workers.batched_episodes import EpisodeSpec, Outcome, play_batch
from workers.episode import (
    ActionNoise,
    Episode,
    EpisodeControl,
    EpisodeFailed,
    EpisodeOptions,
    Leaving,
    last_observation,
    make_actor,
    play_episode,
)

Floats = NDArray[np.float32]
MAX_EVALUATIONS = 100_000


@dataclass(frozen=True)
class SlotJob:
    """A slot to be played: seeds int64[individuals, episodes]; ``key`` of its action noise, None
    for none.

    behave: whether it is asked how its individuals behave; centre: which, where it is not perturbed
    """

    kind: str
    slot: int
    index: int
    seeds: NDArray[np.int64]
    rules: EpisodeRules
    statistics: FrozenStatistics | None
    observe: bool = False
    key: int | None = None
    behave: bool = False
    centre: int = 0


@dataclass(frozen=True)
class FailedSlot:
    """The first episode of a slot that gave no result."""

    seed: int
    error: Exception


@dataclass(frozen=True)
class FailureReport:
    """An episode that raised: what to tell the master and, at more length, people."""

    kind: str
    slot: int
    seed: int
    reason: str
    trace: str


def failure_reason(error: Exception) -> str:
    """What failed, marked where it is no pure function of the slot: this host lacked something
    (disk, memory, files), or the user's own strategy failed.
    """
    if isinstance(error, StrategyFailure):
        return f"{messages.STRATEGY_FAILURE}{error}"
    host = messages.HOST_FAILURE if isinstance(error, OSError | MemoryError) else ""
    return f"{host}{type(error).__name__}: {error}"


@dataclass(frozen=True)
class RunParts:
    """What a run's episodes are made of on this host.

    envs: plays many episodes at once; without it, or for fewer than ``min_episodes``, ``env`` plays
    one by one
    """

    config: RunConfig
    spec: EnvironmentSpec
    policy: Policy
    strategy: Strategy
    env: Environment
    envs: VectorEnvironment | None = None
    min_episodes: int = 1


class JobPlanner:
    """Which episodes the slots of a block are: a function of the config and the publication."""

    def __init__(self, parts: RunParts) -> None:
        config, strategy = parts.config, parts.strategy
        self._config, self._strategy, self._size = config, strategy, parts.policy.size
        self._evaluation = evaluation_rules(evaluation_limit(config, parts.spec))
        self._planned: tuple[int, int, SlotPlan] | None = None
        self._max_slots = {
            kind: max_slots(config, strategy.per_slot)[kind] for kind in messages.TRAINED
        }
        self._max_slots[messages.ELITE] *= strategy.reevaluates
        self._max_slots[messages.CENTRE] = max_centres(strategy)

    def has_block(self, block: Block) -> bool:
        """Whether the run can have these slots; a block's text may say anything.

        How many episodes are evaluated may change while we sit here (a resumed run): only their
        most is known.
        """
        return block.stop <= self._max_slots.get(block.kind, MAX_EVALUATIONS)

    def jobs(self, task: Task, published: Floats, block: Block) -> list[SlotJob]:
        """The jobs of a block's slots, in order."""
        if block.kind == messages.TRAIN:
            return self.training_jobs(task, block)
        if block.kind == messages.CENTRE:
            return self._centre_jobs(task, published, block)
        if block.kind == messages.ELITE:
            return self._elite_jobs(task, block)
        return self._evaluation_jobs(task, block)

    def centre_job(self, task: Task, seeds: Sequence[int]) -> SlotJob:
        """The unperturbed policy as it is evaluated, on ``seeds``."""
        statistics = self._statistics(task)
        return SlotJob(messages.EVAL, 0, -1, np.array([seeds]), self._evaluation, statistics)

    def _rules(self, task: Task) -> EpisodeRules:
        return training_rules(self._config, task.step_limit, self._strategy.fitness_by_sign)

    def training_jobs(self, task: Task, block: Block) -> list[SlotJob]:
        """Perturbed slots, under training's rules."""
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
        first, behave = self._slots(task.generation, 0, 1), self._strategy.wants_behaviour
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
                self._statistics(task, centre_statistics(self._strategy, published, slot)),
                False,
                None if slot else int(first.noise_keys[0]),
                behave,
                slot,
            )
            for slot in range(block.start, block.stop)
        ]

    def _slots(self, generation: int, start: int, stop: int) -> SlotPlan:
        """The plan of a range of slots; that of a whole generation is made once."""
        if self._planned is None or self._planned[0] != generation or self._planned[1] < stop:
            plan = make_generation_plan(
                self._config, generation, self._size, self._strategy.per_slot
            )
            count = max(stop, self._config.population // self._strategy.per_slot)
            self._planned = generation, count, plan.slots(0, count)
        return self._planned[2].part(start, stop)

    def _elite_jobs(self, task: Task, block: Block) -> list[SlotJob]:
        """Training slots on fresh seeds, the same for all of them, without action noise; the slot
        after the last is the centre.
        """
        seeds = evaluation_seeds(
            self._config, ELITE, task.generation, self._config.elite_episodes
        ).reshape(1, -1)
        job = partial(
            SlotJob, block.kind, rules=self._rules(task), statistics=self._statistics(task)
        )
        slots = range(block.start, block.stop)
        if self._config.schedule == ASYNC:  # an episode a slot, of those whom the publication names
            return [job(slot, -1, seeds=seeds[:, slot % seeds.size, np.newaxis]) for slot in slots]
        plan = self._slots(task.generation, 0, min(block.stop, self._max_slots[messages.TRAIN]))
        indices = [*plan.noise_indices.tolist(), -1]
        return [job(slot, indices[slot], seeds=seeds) for slot in slots]

    def _evaluation_jobs(self, task: Task, block: Block) -> list[SlotJob]:
        """The unperturbed policy, one episode a slot, under the environment's own rules."""
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


class Evaluator:
    """Evaluates blocks of one run in this process. An episode depends on nothing but the plan, the
    parameters, the frozen statistics, the episode rules and the back end.
    """

    def __init__(self, parts: RunParts, table: NoiseTable, control: EpisodeControl) -> None:
        self.config, self.spec, self.table, self.control = parts.config, parts.spec, table, control
        self._policy, self._strategy = parts.policy, parts.strategy
        self._env, self._envs, self._min_episodes = parts.env, parts.envs, parts.min_episodes
        self._build = make_builder(parts.strategy, table)
        self._actions = ActionMap(parts.spec.action, parts.config.action_bound)
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
            jobs = self.planner.jobs(task, published, block)
            # Centres are few, and each may have statistics of its own.
            for group in (
                [[job] for job in jobs] if block.kind == messages.CENTRE else self._groups(jobs)
            ):
                for job, outcome in self._play_group(task, published, group):
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
        on_step: Callable[[], None] | None = None,
    ) -> list[Episode]:
        """One individual of a training slot, on its own episodes; ``on_step`` follows each step."""
        (job,) = self.planner.training_jobs(
            task, Block(task.publication, messages.TRAIN, slot, slot + 1)
        )
        return self._play_observed(
            self._individuals(task, published, job)[individual],
            job,
            job.seeds[individual].tolist(),
            on_step,
        )

    def play_centre(
        self,
        task: Task,
        published: Floats,
        seeds: Sequence[int],
        on_step: Callable[[], None] | None = None,
    ) -> list[Episode]:
        """The unperturbed policy as it is evaluated, on ``seeds``; ``on_step`` follows
        each step.
        """
        job = self.planner.centre_job(task, seeds)
        return self._play_observed(self._strategy.centre(published), job, seeds, on_step)

    def _play_observed(
        self,
        parameters: Floats,
        job: SlotJob,
        seeds: Sequence[int],
        on_step: Callable[[], None] | None,
    ) -> list[Episode]:
        with np.errstate(all="ignore"):
            begin = make_actor(self._policy, parameters, job.statistics)
            return [self._play_episode(begin, job, seed, on_step) for seed in seeds]

    def _groups(self, jobs: list[SlotJob]) -> list[list[SlotJob]]:
        """Jobs that are played together: each alone, or as many whole slots as make batches of
        about equal size.
        """
        if self._envs is None or not self._is_worth_batching(jobs):
            return [[job] for job in jobs]
        at_once = max(1, self._batch_size(self._envs) // jobs[0].seeds.size)
        groups = -(-len(jobs) // at_once)
        cuts = [len(jobs) * number // groups for number in range(groups + 1)]
        return [jobs[start:stop] for start, stop in pairwise(cuts)]

    def _batch_size(self, envs: VectorEnvironment) -> int:
        return best_batch_size(envs.max_episodes, self._policy.size)

    def _is_worth_batching(self, jobs: list[SlotJob]) -> bool:
        """``fewest`` is 1 where nothing but ``worlds`` plays these episodes."""
        has_room = self._min_episodes == 1 or (
            self._envs is not None and self._batch_size(self._envs) >= self._min_episodes
        )
        return has_room and sum(job.seeds.size for job in jobs) >= self._min_episodes

    def _play_group(
        self, task: Task, published: Floats, group: list[SlotJob]
    ) -> list[tuple[SlotJob, SlotResult | FailedSlot]]:
        """What came of each job. Raises Leaving between steps."""
        seed = int(group[0].seeds[0, 0])
        self.control.begin_episode(
            {"generation": task.generation, "slot": group[0].slot, "seed": seed}
        )
        try:
            if self._envs is not None and self._is_worth_batching(group):
                return self._play_batched(self._envs, task, published, group)
            return [(job, self._play_slot(task, published, job)) for job in group]
        finally:
            self.control.end_episode()

    def _play_slot(self, task: Task, published: Floats, job: SlotJob) -> SlotResult | FailedSlot:
        """The slot's episodes one after the other."""
        played = []
        try:
            for parameters, seeds in zip(
                self._individuals(task, published, job), job.seeds, strict=True
            ):
                begin = make_actor(self._policy, parameters, job.statistics)
                played.append([self._play_episode(begin, job, int(seed)) for seed in seeds])
        except (Leaving, BaseTimeoutException):  # RQ's own timeout is no failure of the episode
            raise
        except Exception as error:  # whatever a user's environment raises is that slot's failure
            return FailedSlot(self.control.playing["seed"], error)
        return self._validate_result(job, played)

    def _play_batched(
        self, envs: VectorEnvironment, task: Task, published: Floats, group: list[SlotJob]
    ) -> list[tuple[SlotJob, SlotResult | FailedSlot]]:
        """All episodes of all slots at once; more than a batch holds of them, batch after batch."""
        rules, statistics = group[0].rules, group[0].statistics
        slot_specs = {job.slot: self._episode_specs(task, published, job) for job in group}
        all_specs = [
            spec for specs in slot_specs.values() if isinstance(specs, list) for spec in specs
        ]
        outcomes: list[Outcome] = []
        most = self._batch_size(envs)
        for start in range(0, len(all_specs), most):
            self.control.begin_episode(self.control.playing)
            outcomes += play_batch(
                envs,
                self._policy,
                all_specs[start : start + most],
                self._actions,
                rules,
                statistics,
                self.control,
            )
        left = iter(outcomes)
        return [
            (
                job,
                specs
                if isinstance(specs, FailedSlot)
                else self._slot_outcome(job, [next(left) for _ in specs]),
            )
            for job, specs in zip(group, slot_specs.values(), strict=True)
        ]

    def _slot_outcome(self, job: SlotJob, outcomes: list[Outcome]) -> SlotResult | FailedSlot:
        """A slot's outcomes, in the order of its games."""
        for seed, outcome in zip(job.seeds.flat, outcomes, strict=True):
            if isinstance(outcome, Exception):
                return FailedSlot(int(seed), outcome)
        episode_count, episodes = (
            job.seeds.shape[1],
            [outcome for outcome in outcomes if isinstance(outcome, Episode)],
        )
        return self._validate_result(
            job,
            [episodes[at : at + episode_count] for at in range(0, len(episodes), episode_count)],
        )

    def _validate_result(
        self, job: SlotJob, played: list[list[Episode]]
    ) -> SlotResult | FailedSlot:
        """The slot's result, unless an episode has a return that the master would refuse."""
        for seed, episode in zip(job.seeds.flat, chain.from_iterable(played), strict=True):
            reason = impossible_return_reason(self.spec, episode.total, episode.steps)
            if not reason and abs(episode.fitness) > MOST_RETURN:
                reason = f"the episode's fitness is beyond {MOST_RETURN:g}: scale its rewards down"
            if reason:
                return FailedSlot(int(seed), EpisodeFailed(reason))
        result = self._result(job, played)
        unrelated = first_unrelated_row(job.rules, self.spec, result, job.seeds.shape[1])
        if unrelated is not None:
            row, reason = unrelated
            return FailedSlot(int(job.seeds[row, 0]), EpisodeFailed(reason))
        return result

    def _episode_specs(
        self, task: Task, published: Floats, job: SlotJob
    ) -> list[EpisodeSpec] | FailedSlot:
        try:
            individuals = self._individuals(task, published, job)
        except BaseTimeoutException:
            raise
        except Exception as error:  # a noise table that cannot be read
            return FailedSlot(int(job.seeds[0, 0]), error)
        return [
            EpisodeSpec(
                parameters, int(seed), job.observe, partial(self._noise, job.key), job.behave
            )
            for parameters, seeds in zip(individuals, job.seeds, strict=True)
            for seed in seeds
        ]

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

    def _result(self, job: SlotJob, played: list[list[Episode]]) -> SlotResult:
        """What the slot's episodes come to, by individual."""
        return SlotResult(
            job.slot,
            job.index,
            int(job.seeds[0, 0]),
            fitness=tuple(mean([episode.fitness for episode in episodes]) for episodes in played),
            returns=tuple(mean([episode.total for episode in episodes]) for episodes in played),
            steps=tuple(sum(episode.steps for episode in episodes) for episodes in played),
            at_limit=tuple(sum(episode.at_limit for episode in episodes) for episodes in played),
            cut=tuple(
                sum(self._was_cut(episode, job.rules) for episode in episodes)
                for episodes in played
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

    def _was_cut(self, episode: Episode, rules: EpisodeRules) -> bool:
        """Whether training ended it before the environment would have."""
        shorter = self.spec.step_limit is None or rules.limit < self.spec.step_limit
        return episode.cut or (episode.at_limit and shorter)

    def _noise(self, key: int | None) -> ActionNoise | None:
        if key is None or self.config.action_noise <= 0 or self.spec.action.kind != "box":
            return None
        numbers = len(self.spec.action.low)
        return ActionNoise(
            self.table.row, self.table.size - numbers + 1, key, numbers, self.config.action_noise
        )

    def _play_episode(
        self,
        begin: Callable[[], Forward],
        job: SlotJob,
        seed: int,
        on_step: Callable[[], None] | None = None,
    ) -> Episode:
        self.control.begin_episode({**self.control.playing, "seed": seed})
        options = EpisodeOptions(
            job.observe, self._noise(job.key), on_step, self._behave if job.behave else None
        )
        return play_episode(self._env, begin, self._actions, job.rules, seed, self.control, options)

    def _behave(self, observation: Floats) -> Floats:
        """How the episode that is over behaved. Raises EpisodeFailed."""
        if self.spec.behaviour in ("", LAST):
            return last_observation(observation)
        return self._measure_inside()

    def _measure_inside(self) -> Floats:
        """How the episode that is over behaved, as its environment tells. Raises EpisodeFailed for
        another number of numbers.
        """
        descriptor = cast(BehaviourEnvironment, self._env).behaviour()
        if len(descriptor) != self.spec.behaviour_size:
            raise EpisodeFailed(
                f"the behaviour has {len(descriptor)} numbers, and "
                f"{self.spec.behaviour_size} in other episodes"
            )
        return descriptor


def mean(values: list[float]) -> float:
    """Summed in order, in float64; one value stays itself to the bit."""
    return sum_in_order(values) / len(values)


def mean_behaviour(episodes: list[Floats]) -> bytes:
    """The mean of an individual's episodes, summed in order in float64, as little-endian float32;
    nothing of none.
    """
    if not episodes:
        return b""
    total = episodes[0].astype(np.float64)
    for behaviour in episodes[1:]:
        total = total + behaviour
    return (total / len(episodes)).astype("<f4").tobytes()


def pack_moments(moments: Moments) -> EpisodeMoments:
    """For the wire, where every number is finite: an episode with an infinite observation is left
    out, as merging would leave it out.
    """
    if not (np.isfinite(moments.mean).all() and np.isfinite(moments.m2).all()):
        nothing = np.zeros(len(moments.mean), "<f8").tobytes()
        return EpisodeMoments(0, nothing, nothing)
    return EpisodeMoments(
        moments.count, moments.mean.astype("<f8").tobytes(), moments.m2.astype("<f8").tobytes()
    )
