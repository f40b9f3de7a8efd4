"""Checks results against what a valid result of each slot contains."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np

from es_queue.config.episode_rules import evaluation_rules, training_rules
from es_queue.config.run_config import ASYNC, RunConfig
from es_queue.environments.spaces import EnvironmentSpec
from es_queue.numerics.arrays import Doubles
from es_queue.numerics.normalization import RunningMoments
from es_queue.numerics.return_limits import (
    MOST_RETURN,
    first_unrelated_row,
    impossible_return_reason,
)
from es_queue.numerics.slot_plan import (
    BEHAVIOUR,
    ELITE,
    EVALUATION_STREAMS,
    SlotPlan,
    evaluation_seeds,
    make_generation_plan,
    resolve_seed_sharing,
)
from es_queue.protocol import messages
from es_queue.protocol.messages import EpisodeMoments, SlotResult

#: An episode's mean and deviation may be so many times the scale of observations.
REACH = 10.0
#: What a run accumulates raises that scale to so many times the master's own at most.
MOST_GROWTH = 100.0
LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class ObservationLimits:
    """low, high: float64[d] of an episode's means; spread: float64[d] of its deviations."""

    low: Doubles
    high: Doubles
    spread: Doubles

    @classmethod
    @cache
    def unbounded(cls, size: int) -> ObservationLimits:
        """Any float32 observations: statistics are published as float32."""
        most = np.full(size, LARGEST)
        return cls(-most, most, most)

    @classmethod
    def of(cls, spec: EnvironmentSpec, moments: RunningMoments) -> ObservationLimits:
        """``moments``: those of the run when the generation begins."""
        size = spec.observation_size
        if spec.observation_scale is None:
            return cls.unbounded(size)
        reach = np.full(size, REACH * observation_scale(spec.observation_scale, moments))
        low, high = -reach, reach
        spread = reach
        if spec.observation_low:
            declared_low = np.array(spec.observation_low)
            declared_high = np.array(spec.observation_high)
            with np.errstate(invalid="ignore"):
                width = declared_high - declared_low
            # Half as much on either side: many environments take their bounds lightly.
            bounded = np.isfinite(width)
            low = np.where(bounded, declared_low - width / 2, low)
            high = np.where(bounded, declared_high + width / 2, high)
            spread = np.where(bounded, width, spread)
        return cls(
            np.maximum(low, -LARGEST), np.minimum(high, LARGEST), np.minimum(spread, LARGEST)
        )

    @cached_property
    def least_reach(self) -> float:
        """A mean of smaller magnitude is always allowed, per number of an observation."""
        return max(0.0, float(np.minimum(-self.low, self.high).min(initial=LARGEST)))

    @cached_property
    def least_variance(self) -> float:
        """A mean squared deviation that is always allowed, per number of an observation."""
        return float(self.spread.min(initial=LARGEST)) ** 2

    def allow(self, counts: Doubles, means: Doubles, m2s: Doubles) -> bool:
        """float64[k, 1], [k, d] and [k, d] of k episodes."""
        inside = (means >= self.low) & (means <= self.high)
        return bool(inside.all() and (m2s <= counts * self.spread**2).all())


def observation_scale(seen: float, moments: RunningMoments) -> float:
    """The largest magnitude that a number of an observation ordinarily has."""
    initial_scale = max(1.0, seen)
    if not moments.count:
        return initial_scale
    with np.errstate(all="ignore"):
        usual = np.abs(moments.mean) + np.sqrt(np.maximum(moments.m2, 0.0) / moments.count)
    largest = float(np.nan_to_num(usual).max(initial=initial_scale))
    return min(largest, MOST_GROWTH * initial_scale)


def format_implausible(worker: str, generation: int) -> str:
    return (
        f"generation {generation}: {worker} sent observation statistics far beyond the "
        f"observation space and all earlier ones; these and similar ones are ignored: check "
        f"that worker, or declare finite bounds in the environment's observation_space"
    )


MOST_STEPS = 2**40
#: The one reason for which not the slot is refused, but its moments are left out.
IMPLAUSIBLE = "implausible-moments"


@dataclass(frozen=True)
class PlannedSlots:
    """Expected values of results for a plan's training slots. plan: all of it."""

    plan: SlotPlan
    noise_indices: list[int]
    seeds: list[int]
    sampled: list[bool]


@dataclass(frozen=True)
class ResultShape:
    """parameters: of a policy; individuals: of a training slot; observation, behaviour: numbers in
    an observation and in a description of behaviour
    """

    parameters: int
    individuals: int
    observation: int
    behaviour: int = 0


@dataclass(frozen=True)
class ResultBounds:
    """Limits of the values in a result.

    steps: of an episode in training and in evaluation; observed: of moments; spec: its rewards
    limit the returns; by_sign: whether the strategy learns from the signs of rewards
    """

    steps: tuple[int, int] = (MOST_STEPS, MOST_STEPS)
    observed: ObservationLimits | None = None
    spec: EnvironmentSpec | None = None
    by_sign: bool = False


def plan_slots(config: RunConfig, generation: int, shape: ResultShape, count: int) -> PlannedSlots:
    plan = make_generation_plan(config, generation, shape.parameters, shape.individuals)
    slots = plan.slots(0, count)
    return PlannedSlots(
        slots, slots.noise_indices.tolist(), slots.seeds[:, 0, 0].tolist(), slots.sampled.tolist()
    )


class ExpectedAnswer(NamedTuple):
    """Expected values of one slot's result; others are refused. behaviour: its bytes."""

    noise_index: int
    seed: int
    individuals: int
    moments: int
    episodes: int = 1
    behaviour: int = 0


class AnswerChecker:
    """Expected results of each slot of a publication, which depend only on the config and the
    generation.

    largest_bytes, largest_slots: of the largest valid result
    """

    def __init__(
        self,
        config: RunConfig,
        generation: int,
        shape: ResultShape,
        slot_limits: dict[str, int],
        bounds: ResultBounds | None = None,
        plan: PlannedSlots | None = None,
    ) -> None:
        """``slot_limits``: the most slots of each kind in this publication; ``plan``: of its
        training slots, if it is already made.
        """
        bounds = bounds or ResultBounds()
        self.slot_limits, self._bounds = slot_limits, bounds
        self.generation, self._config, self._shape = generation, config, shape
        trained = training_rules(config, bounds.steps[0], bounds.by_sign)
        evaluated = evaluation_rules(bounds.steps[1])
        self._rules = {
            kind: trained if kind in messages.TRAINED else evaluated for kind in messages.KINDS
        }
        count = max(1, slot_limits.get(messages.TRAIN, 0))
        self.plan = plan or plan_slots(config, generation, shape, count)
        self._seeds = {
            kind: evaluation_seeds(config, stream, generation, slot_limits[kind])
            for kind, stream in EVALUATION_STREAMS.items()
            if slot_limits.get(kind)
        }
        self._elite_seeds = evaluation_seeds(
            config, ELITE, generation, config.elite_episodes
        ).tolist()
        self._behaviour_fields = (
            int(evaluation_seeds(config, BEHAVIOUR, generation, 1)[0]),
            1,
            0,
            config.behaviour_episodes,
        )
        sampled = sum(self.plan.sampled) * shape.individuals * config.episodes
        self.largest_slots = min(messages.MAX_BLOCK, max(slot_limits.values(), default=1))
        self.largest_bytes = messages.max_answer_bytes(
            self.largest_slots, shape.individuals, sampled, shape.observation, shape.behaviour
        )

    def expected_answer(self, kind: str, slot: int) -> ExpectedAnswer | None:
        """None for a slot that this publication can never have."""
        if slot >= self.slot_limits.get(kind, 0):
            return None
        plan, each, episodes = self.plan, self._shape.individuals, self._config.episodes
        behaviour = 4 * self._shape.behaviour
        if kind == messages.TRAIN:
            sampled = each * episodes if plan.sampled[slot] else 0
            index, seed = plan.noise_indices[slot], plan.seeds[slot]
            return ExpectedAnswer(index, seed, each, sampled, episodes, each * behaviour)
        if kind == messages.CENTRE:  # the first under training's own seeds, the others to compare
            centre = self._behaviour_fields if slot else (plan.seeds[0], 1, 0, episodes)
            return ExpectedAnswer(-1, *centre, behaviour)
        if kind == messages.ELITE and self._config.schedule == ASYNC:
            return ExpectedAnswer(-1, self._elite_seeds[slot % len(self._elite_seeds)], 1, 0)
        if kind == messages.ELITE:  # the last of them is the centre
            index = -1 if slot == self.slot_limits[messages.TRAIN] else plan.noise_indices[slot]
            return ExpectedAnswer(index, self._elite_seeds[0], 1, 0, len(self._elite_seeds))
        return ExpectedAnswer(-1, int(self._seeds[kind][slot]), 1, 0)

    @property
    def advice(self) -> str:
        """Advice if one environment seed fails on every worker; empty if each slot has its own
        seed.
        """
        return (
            ": all of them had the same environment seed; --env-seeds slot gives each its own"
            if resolve_seed_sharing(self._config, self._shape.individuals) == "generation"
            else ""
        )

    def format_slot(self, kind: str, slot: int) -> str:
        """A slot in words: what a person needs to play its first episode again."""
        expected = self.expected_answer(kind, slot)
        seed = "" if expected is None else f", environment seed {expected.seed}"
        return f"{kind} slot {slot} (generation {self.generation} of {self._config.task}{seed})"

    def refusal(self, kind: str, result: SlotResult) -> str:
        """Why the result is refused, or empty; IMPLAUSIBLE if only its moments are."""
        expected = self.expected_answer(kind, result.slot)
        if expected is None:
            return "unknown-slot"
        if (result.noise_index, result.seed) != (expected.noise_index, expected.seed):
            return "wrong-index"
        if (len(result.fitness), len(result.moments), len(result.behaviour)) != (
            expected.individuals,
            expected.moments,
            expected.behaviour,
        ):
            return "wrong-shape"
        if result.moments:
            width = 8 * self._shape.observation
            if any(len(moments.mean) != width for moments in result.moments):
                return "wrong-shape"
        limit = self._bounds.steps[kind not in messages.TRAINED]
        if not _has_plausible_steps(result, expected.episodes, limit):
            return "wrong-length"
        if not self._is_possible_return(result, expected.episodes):
            return "wrong-return"
        spec = self._bounds.spec  # most often return and fitness are one number
        if first_unrelated_row(self._rules[kind], spec, result, expected.episodes) is not None:
            return "wrong-fitness"
        return self._moments_refusal(result.moments) if result.moments else ""

    def check(self, kind: str, result: SlotResult) -> tuple[str, SlotResult]:
        """Why a result is refused (empty if it is not), and the part of it that counts.

        Implausible moments are dropped, not refused: in an odd environment, a slot refused for them
        would never be answered.
        """
        refusal = self.refusal(kind, result)
        return ("", without_moments(result)) if refusal == IMPLAUSIBLE else (refusal, result)

    def counted_result(self, kind: str, result: SlotResult) -> SlotResult:
        return self.check(kind, result)[1]

    def _is_possible_return(self, result: SlotResult, episodes: int) -> bool:
        """Whether the environment's rewards can sum up to the returns."""
        if max(map(abs, result.fitness + result.returns)) > MOST_RETURN:
            return False
        spec = self._bounds.spec
        if spec is None or (spec.highest_reward is None and spec.lowest_reward is None):
            return True
        pairs = zip(result.returns, result.steps, strict=True)
        return not any(
            impossible_return_reason(spec, episodes * total, steps) for total, steps in pairs
        )

    def _moments_refusal(self, moments: tuple[EpisodeMoments, ...]) -> str:
        """Why moments of a slot do not count; empty if they do."""
        counted = [episode for episode in moments if episode.count]
        if not counted:
            return ""
        means = np.frombuffer(b"".join([episode.mean for episode in counted]), "<f8")
        m2s = np.frombuffer(b"".join([episode.m2 for episode in counted]), "<f8")
        if m2s.min(initial=0.0) < 0:
            return "wrong-moments"
        limits = self._bounds.observed or ObservationLimits.unbounded(self._shape.observation)
        greatest, most = np.abs(means).max(initial=0.0), m2s.max(initial=0.0)
        # What the narrowest number and the fewest observations can have, all can.
        least = min(episode.count for episode in counted)
        if greatest <= limits.least_reach and most <= least * limits.least_variance:
            return ""
        counts = np.array([episode.count for episode in counted], np.float64).reshape(-1, 1)
        means, m2s = means.reshape(len(counted), -1), m2s.reshape(len(counted), -1)
        # The statistics are float32 again when they are published.
        if greatest > LARGEST or not (m2s <= counts * LARGEST**2).all():
            return "wrong-moments"
        return "" if limits.allow(counts, means, m2s) else IMPLAUSIBLE


def without_moments(result: SlotResult) -> SlotResult:
    nothing = bytes(len(result.moments[0].mean))
    return replace(result, moments=(EpisodeMoments(0, nothing, nothing),) * len(result.moments))


def _has_plausible_steps(result: SlotResult, episodes: int, limit: int) -> bool:
    """Whether each individual's step count is possible: one or more per episode, at most ``limit``,
    and one observation more than steps.
    """
    steps = result.steps
    if (
        not episodes <= min(steps)
        or max(steps) > episodes * limit
        or max(*result.at_limit, *result.cut) > episodes
    ):
        return False
    if not result.moments:
        return True
    each = len(result.moments) // len(steps)
    counts = [moments.count for moments in result.moments]
    return all(
        sum(counts[at * each : (at + 1) * each]) <= played + episodes
        for at, played in enumerate(steps)
    )
