"""Plays slots, one episode after another or many at once, and makes their results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import cast

import numpy as np
from rq.timeouts import BaseTimeoutException

from es_queue.config.episode_rules import EpisodeRules
from es_queue.environments.behaviour_descriptor import LAST
from es_queue.environments.interface import (
    BehaviourEnvironment,
    VectorEnvironment,
    best_batch_size,
)
from es_queue.environments.spaces import EnvironmentSpec
from es_queue.errors import StrategyFailure
from es_queue.numerics.arrays import Floats
from es_queue.numerics.noise_table import NoiseTable
from es_queue.numerics.normalization import Moments
from es_queue.numerics.return_limits import (
    MOST_RETURN,
    first_unrelated_row,
    impossible_return_reason,
)
from es_queue.numerics.return_statistics import sum_in_order
from es_queue.policies.actions import ActionMap
from es_queue.policies.base import Forward
from es_queue.protocol import messages
from es_queue.protocol.messages import EpisodeMoments, SlotResult
from workers.batched_episodes import EpisodeSpec, Outcome, play_batch
from workers.episode import (
    ActionNoise,
    Episode,
    EpisodeControl,
    EpisodeFailed,
    EpisodeOptions,
    Leaving,
    OnStep,
    last_observation,
    make_actor,
    play_episode,
)
from workers.slots.jobs import RunParts, SlotJob

#: float32[individuals, size] of a slot
Individuals = Callable[[SlotJob], Floats]


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


class SlotPlayer:
    """Plays slots one episode after the other. Its methods raise Leaving between steps."""

    def __init__(self, parts: RunParts, table: NoiseTable, control: EpisodeControl) -> None:
        self._parts, self._table, self._control = parts, table, control
        self._actions = ActionMap(parts.spec.action, parts.config.action_bound)

    def play(
        self, individuals: Individuals, jobs: Sequence[SlotJob]
    ) -> list[SlotResult | FailedSlot]:
        """What came of each job."""
        return [self._play_slot(individuals, job) for job in jobs]

    def play_individual(
        self, parameters: Floats, job: SlotJob, seeds: Sequence[int], on_step: OnStep | None = None
    ) -> list[Episode]:
        """The episodes of one individual of a slot; ``on_step`` follows each step."""
        begin = make_actor(self._parts.policy, parameters, job.statistics)
        return [self._play_episode(begin, job, seed, on_step) for seed in seeds]

    def _play_slot(self, individuals: Individuals, job: SlotJob) -> SlotResult | FailedSlot:
        episodes: list[Episode] = []
        try:
            for parameters, seeds in zip(individuals(job), job.seeds.tolist(), strict=True):
                episodes += self.play_individual(parameters, job, seeds)
        except (Leaving, BaseTimeoutException):  # RQ's own timeout is no failure of the episode
            raise
        except Exception as error:  # whatever a user's environment raises is that slot's failure
            return FailedSlot(self._control.playing["seed"], error)
        return make_result(self._parts.spec, job, episodes)

    def _play_episode(
        self, begin: Callable[[], Forward], job: SlotJob, seed: int, on_step: OnStep | None
    ) -> Episode:
        self._control.begin_episode({**self._control.playing, "seed": seed})
        options = EpisodeOptions(
            job.observe, self._noise(job.key), on_step, self._behave if job.behave else None
        )
        return play_episode(
            self._parts.env, begin, self._actions, job.rules, seed, self._control, options
        )

    def _noise(self, key: int | None) -> ActionNoise | None:
        action, scale = self._parts.spec.action, self._parts.config.action_noise
        if key is None or scale <= 0 or action.kind != "box":
            return None
        numbers = len(action.low)
        return ActionNoise(self._table.row, self._table.size - numbers + 1, key, numbers, scale)

    def _behave(self, observation: Floats) -> Floats:
        """How the episode that is over behaved. Raises EpisodeFailed for what is not finite, or
        another number of numbers.
        """
        spec = self._parts.spec
        if spec.behaviour in ("", LAST):
            return last_observation(observation)
        descriptor = cast(BehaviourEnvironment, self._parts.env).behaviour()
        if len(descriptor) != spec.behaviour_size:
            raise EpisodeFailed(
                f"the behaviour has {len(descriptor)} numbers, and "
                f"{spec.behaviour_size} in other episodes"
            )
        return descriptor


class BatchPlayer(SlotPlayer):
    """Plays all episodes of several slots at once, in ``envs``."""

    def __init__(
        self,
        parts: RunParts,
        table: NoiseTable,
        control: EpisodeControl,
        envs: VectorEnvironment,
    ) -> None:
        super().__init__(parts, table, control)
        self._envs = envs

    @property
    def _batch_size(self) -> int:
        return best_batch_size(self._envs.max_episodes, self._parts.policy.size)

    def is_worthwhile(self, jobs: Sequence[SlotJob]) -> bool:
        """``min_episodes`` is 1 where nothing but ``envs`` plays these episodes."""
        fewest = self._parts.min_episodes
        has_room = fewest == 1 or self._batch_size >= fewest
        return has_room and sum(job.seeds.size for job in jobs) >= fewest

    def split(self, jobs: Sequence[SlotJob]) -> list[Sequence[SlotJob]]:
        """As many whole slots together as make batches of about equal size."""
        at_once = max(1, self._batch_size // jobs[0].seeds.size)
        groups = -(-len(jobs) // at_once)
        cuts = [len(jobs) * number // groups for number in range(groups + 1)]
        return [jobs[start:stop] for start, stop in pairwise(cuts)]

    def play(
        self, individuals: Individuals, jobs: Sequence[SlotJob]
    ) -> list[SlotResult | FailedSlot]:
        """More episodes than a batch holds are played batch after batch."""
        slot_specs = [self._episode_specs(individuals, job) for job in jobs]
        specs = [spec for each in slot_specs if isinstance(each, list) for spec in each]
        outcomes: list[Outcome] = []
        for start in range(0, len(specs), self._batch_size):
            self._control.begin_episode(self._control.playing)
            outcomes += play_batch(
                self._envs,
                self._parts.policy,
                specs[start : start + self._batch_size],
                self._actions,
                jobs[0].rules,
                jobs[0].statistics,
                self._control,
            )
        left = iter(outcomes)
        return [
            each if isinstance(each, FailedSlot) else self._result(job, [next(left) for _ in each])
            for job, each in zip(jobs, slot_specs, strict=True)
        ]

    def _episode_specs(
        self, individuals: Individuals, job: SlotJob
    ) -> list[EpisodeSpec] | FailedSlot:
        try:
            each = individuals(job)
        except BaseTimeoutException:
            raise
        except Exception as error:  # a noise table that cannot be read
            return FailedSlot(int(job.seeds[0, 0]), error)
        return [
            EpisodeSpec(parameters, seed, job.observe, partial(self._noise, job.key), job.behave)
            for parameters, seeds in zip(each, job.seeds.tolist(), strict=True)
            for seed in seeds
        ]

    def _result(self, job: SlotJob, outcomes: Sequence[Outcome]) -> SlotResult | FailedSlot:
        episodes = []
        for seed, outcome in zip(job.seeds.flat, outcomes, strict=True):
            if isinstance(outcome, Exception):
                return FailedSlot(int(seed), outcome)
            episodes.append(outcome)
        return make_result(self._parts.spec, job, episodes)


# --- what came of a slot


def failure_reason(error: Exception) -> str:
    """What failed, marked where it is no pure function of the slot: this host lacked something
    (disk, memory, files), or the user's own strategy failed.
    """
    if isinstance(error, StrategyFailure):
        return f"{messages.STRATEGY_FAILURE}{error}"
    host = messages.HOST_FAILURE if isinstance(error, OSError | MemoryError) else ""
    return f"{host}{type(error).__name__}: {error}"


def make_result(
    spec: EnvironmentSpec, job: SlotJob, episodes: Sequence[Episode]
) -> SlotResult | FailedSlot:
    """The slot's result from its episodes in the order of ``job.seeds``, unless an episode has a
    return that the master would refuse.
    """
    for seed, episode in zip(job.seeds.flat, episodes, strict=True):
        reason = impossible_return_reason(spec, episode.total, episode.steps)
        if not reason and abs(episode.fitness) > MOST_RETURN:
            reason = f"the episode's fitness is beyond {MOST_RETURN:g}: scale its rewards down"
        if reason:
            return FailedSlot(int(seed), EpisodeFailed(reason))
    each = job.seeds.shape[1]
    result = summarize_episodes(
        spec, job, [episodes[start : start + each] for start in range(0, len(episodes), each)]
    )
    unrelated = first_unrelated_row(job.rules, spec, result, each)
    if unrelated is not None:
        row, reason = unrelated
        return FailedSlot(int(job.seeds[row, 0]), EpisodeFailed(reason))
    return result


def summarize_episodes(
    spec: EnvironmentSpec, job: SlotJob, played: Sequence[Sequence[Episode]]
) -> SlotResult:
    """``played``: the episodes of each individual."""
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
    """Whether training ended it before the environment would have."""
    shorter = spec.step_limit is None or rules.limit < spec.step_limit
    return episode.cut or (episode.at_limit and shorter)


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
