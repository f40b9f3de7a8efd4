"""Checks results against what a valid result of each slot contains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from es_queue.config.run_config import ASYNC, RunConfig
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

LARGEST = float(np.finfo(np.float32).max)
MOST_STEPS = 2**40


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
        step_limits: tuple[int, int] = (MOST_STEPS, MOST_STEPS),
        plan: PlannedSlots | None = None,
    ) -> None:
        """``slot_limits``: the most slots of each kind in this publication; ``step_limits``: of an
        episode in training and in evaluation; ``plan``: of its training slots, if it is already
        made.
        """
        self.slot_limits, self._step_limits = slot_limits, step_limits
        self.generation, self._config, self._shape = generation, config, shape
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
        """Why the result is refused, or empty."""
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
        limit = self._step_limits[kind not in messages.TRAINED]
        if not _has_plausible_steps(result, expected.episodes, limit):
            return "wrong-length"
        if max(map(abs, result.fitness + result.returns)) > messages.MOST_RETURN:
            return "wrong-return"
        return "" if are_float32(result.moments) else "wrong-moments"


def are_float32(moments: tuple[EpisodeMoments, ...]) -> bool:
    """Whether means and deviations can be published, as float32."""
    counted = [episode for episode in moments if episode.count]
    if not counted:
        return True
    means = np.frombuffer(b"".join([episode.mean for episode in counted]), "<f8")
    m2s = np.frombuffer(b"".join([episode.m2 for episode in counted]), "<f8")
    counts = np.array([episode.count for episode in counted], np.float64).reshape(-1, 1)
    most = counts * LARGEST**2
    rows = m2s.reshape(len(counted), -1)
    return bool((np.abs(means) <= LARGEST).all() and (rows >= 0).all() and (rows <= most).all())


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
