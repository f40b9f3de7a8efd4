"""The parts that a run's episodes need on this host, and the episodes of the slots of a block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from es_queue.config.episode_rules import (
    EpisodeRules,
    evaluation_limit,
    evaluation_rules,
    training_rules,
)
from es_queue.config.run_config import ASYNC, RunConfig
from es_queue.environments.interface import Environment, VectorEnvironment
from es_queue.environments.spaces import EnvironmentSpec
from es_queue.numerics.arrays import Floats, Integers
from es_queue.numerics.normalization import FrozenStatistics
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
from es_queue.protocol import messages
from es_queue.protocol.messages import Block, Task
from es_queue.strategies.base import Strategy
from es_queue.strategies.capabilities.hooks import centre_statistics, max_centres

MAX_EVALUATIONS = 100_000


@dataclass(frozen=True)
class RunParts:
    """``envs`` plays many episodes at once; without it, or for fewer than ``min_episodes``, ``env``
    plays one by one.
    """

    config: RunConfig
    spec: EnvironmentSpec
    policy: Policy
    strategy: Strategy
    env: Environment
    envs: VectorEnvironment | None = None
    min_episodes: int = 1


@dataclass(frozen=True)
class SlotJob:
    """A slot to be played: seeds int64[individuals, episodes]; ``key`` of its action noise, None
    for none.

    behave: whether it is asked how its individuals behave; centre: which, where it is not perturbed
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
