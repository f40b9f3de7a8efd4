"""What each slot of a publication must be answered with, and whether an answer is that."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from es_queue.config import RunConfig
from es_queue.plan import CONFIRMATION, ELITE, EVALUATION, FINAL, SlotPlan, evaluation_seeds, plan_for
from es_queue.protocol import messages
from es_queue.protocol.messages import EpisodeMoments, SlotResult

MOST_STEPS = 2**40
LARGEST = float(np.finfo(np.float32).max)
STREAMS = {messages.EVAL: EVALUATION, messages.CONFIRM: CONFIRMATION, messages.FINAL: FINAL}


@lru_cache(maxsize=2)
def planned(config: RunConfig, generation: int, size: int, individuals: int, count: int) -> SlotPlan:
    """The plan of a generation's first ``count`` slots. Made ahead of its use while answers are awaited, so it is kept."""
    return plan_for(config, generation, size, individuals).slots(0, count)


@dataclass(frozen=True)
class Expected:
    """What an answer for one slot must say, or it is refused."""

    noise_index: int
    seed: int
    individuals: int
    moments: int
    episodes: int = 1


class Expectations:
    """What each slot of a publication must be answered with; a pure function of the config and the generation.

    bytes, slots: how many the largest honest answer has
    """

    def __init__(
        self, config: RunConfig, generation: int, size: int, individuals: int, observation_size: int, most: dict[str, int], limits: tuple[int, int] = (MOST_STEPS, MOST_STEPS),
    ) -> None:  # fmt: skip
        """``most``: how many slots each kind may ever have in this publication; ``limits``: steps of an episode in training and in evaluation."""
        self.most, self._limits = most, limits
        self.generation, self.environment = generation, config.task
        self._individuals, self._moment_bytes = individuals, 8 * observation_size
        self._per_sampled, self._episodes = individuals * config.episodes, config.episodes
        self._plan = planned(config, generation, size, individuals, max(1, most.get(messages.TRAIN, 0)))
        self._seeds = {
            kind: evaluation_seeds(config, stream, generation, most[kind]) for kind, stream in STREAMS.items() if most.get(kind)
        }
        self._elite_episodes = config.elite_episodes
        self._elite_seed = int(evaluation_seeds(config, ELITE, generation, config.elite_episodes)[0])
        sampled = int(self._plan.sampled.sum()) * self._per_sampled
        self.slots = min(messages.MAX_BLOCK, max(most.values(), default=1))
        self.bytes = messages.answer_bytes(self.slots, individuals, sampled, observation_size)

    def of(self, kind: str, slot: int) -> Expected | None:
        """None for a slot that this publication can never have."""
        if slot >= self.most.get(kind, 0):
            return None
        if kind == messages.TRAIN:
            sampled = self._per_sampled if self._plan.sampled[slot] else 0
            return Expected(int(self._plan.noise_indices[slot]), int(self._plan.seeds[slot, 0, 0]), self._individuals, sampled, self._episodes)
        if kind == messages.CENTRE:
            return Expected(-1, int(self._plan.seeds[0, 0, 0]), 1, 0, self._episodes)
        if kind == messages.ELITE:  # the last of them is the centre
            index = -1 if slot == self.most[messages.TRAIN] else int(self._plan.noise_indices[slot])
            return Expected(index, self._elite_seed, 1, 0, self._elite_episodes)
        return Expected(-1, int(self._seeds[kind][slot]), 1, 0)

    def named(self, kind: str, slot: int) -> str:
        """A slot in words: what a person needs to play its first episode again."""
        expected = self.of(kind, slot)
        seed = "" if expected is None else f", environment seed {expected.seed}"
        return f"{kind} slot {slot} (generation {self.generation} of {self.environment}{seed})"

    def accepts(self, kind: str, result: SlotResult) -> str:
        """Empty, or why the result is refused."""
        expected = self.of(kind, result.slot)
        if expected is None:
            return "unknown-slot"
        if (result.noise_index, result.seed) != (expected.noise_index, expected.seed):
            return "wrong-index"
        if len(result.fitness) != expected.individuals or len(result.moments) != expected.moments:
            return "wrong-shape"
        if any(len(one.mean) != self._moment_bytes for one in result.moments):
            return "wrong-shape"
        limit = self._limits[kind not in messages.TRAINED]
        if not _plausible(result, expected.episodes, limit):
            return "wrong-length"
        return "" if _observable(result.moments) else "wrong-moments"


def _observable(moments: tuple[EpisodeMoments, ...]) -> bool:
    """Whether float32 observations can have these moments: the statistics are float32 again when they are published."""
    for one in moments:
        mean, m2 = np.frombuffer(one.mean, "<f8"), np.frombuffer(one.m2, "<f8")
        if one.count and (np.abs(mean).max(initial=0.0) > LARGEST or np.abs(m2).max(initial=0.0) > one.count * LARGEST**2):
            return False
    return True


def _plausible(result: SlotResult, episodes: int, limit: int) -> bool:
    """Whether each individual can have played so many episodes: a step or more in each, at most ``limit``, and observations one more than steps."""
    each = len(result.moments) // len(result.steps)
    observed = [sum(one.count for one in result.moments[at * each : (at + 1) * each]) for at in range(len(result.steps))]
    return (
        episodes <= min(result.steps)
        and max(result.steps) <= episodes * limit
        and max(*result.at_limit, *result.cut) <= episodes
        and all(count <= steps + episodes for count, steps in zip(observed, result.steps, strict=True))
    )
