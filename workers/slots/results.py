"""The result of a slot, or the failure of an episode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from es_queue.config.episode_rules import EpisodeRules
from es_queue.environments.spaces import EnvironmentSpec
from es_queue.errors import StrategyFailure
from es_queue.numerics.arrays import Floats
from es_queue.numerics.normalization import Moments
from es_queue.numerics.return_limits import (
    MOST_RETURN,
    first_unrelated_row,
    impossible_return_reason,
)
from es_queue.numerics.return_statistics import sum_in_order
from es_queue.protocol import messages
from es_queue.protocol.messages import EpisodeMoments, SlotResult
from workers.episode import Episode, EpisodeFailed
from workers.slots.jobs import SlotJob


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
