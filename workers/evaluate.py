"""One block: build each individual of its slots, roll out, and put what came of it into an answer."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from rq.timeouts import BaseTimeoutException

from es_queue.config import RunConfig
from es_queue.environments import World
from es_queue.episode_rules import EpisodeRules, evaluation_limit, evaluation_rules, training_rules
from es_queue.figures import sum_in_order
from es_queue.noise import NoiseTable
from es_queue.normalization import FrozenStatistics, Moments
from es_queue.plan import CONFIRMATION, EVALUATION, FINAL, evaluation_seeds, most_slots, plan_for
from es_queue.policies import Policy
from es_queue.policies.actions import ActionMap
from es_queue.protocol import messages
from es_queue.protocol.messages import Answer, Block, EpisodeMoments, SlotResult, Task
from es_queue.spaces import EnvironmentSpec
from es_queue.strategies.base import Strategy
from workers.rollout import ActionNoise, Episode, Leaving, Watch, actor, play

Floats = NDArray[np.float32]
MOST_EVALUATIONS = 100_000
Attempt = tuple[int, int, Callable[[], SlotResult]]  # slot, its first environment seed, and what plays it
EVALUATION_STREAMS = {messages.EVAL: EVALUATION, messages.CONFIRM: CONFIRMATION, messages.FINAL: FINAL}


@dataclass(frozen=True)
class Failure:
    """An episode that raised: what to tell the master and, at more length, people."""

    slot: int
    seed: int
    reason: str
    trace: str


def blame(error: Exception) -> str:
    """Marks what this host lacked (disk, memory, files): such a failure is no pure function of the slot."""
    return messages.HOST_FAILURE if isinstance(error, OSError | MemoryError) else ""


class Evaluator:
    """Evaluates blocks of one run in this process. An episode depends on nothing but the plan, the parameters,
    the frozen statistics, the episode rules and the back end."""

    def __init__(
        self, config: RunConfig, spec: EnvironmentSpec, world: World, policy: Policy, strategy: Strategy, table: NoiseTable, watch: Watch
    ) -> None:
        self.config, self.spec, self.table, self.watch = config, spec, table, watch
        self._world, self._policy, self._strategy = world, policy, strategy
        self._actions = ActionMap(spec.action, config.action_bound)
        self._evaluation = evaluation_rules(evaluation_limit(config, spec))
        self._most = {kind: most_slots(config, strategy.per_slot)[kind] for kind in (messages.TRAIN, messages.CENTRE)}

    def fits(self, task: Task) -> bool:
        """Whether the task's vectors have the lengths that this run's policy has."""
        return task.size == self._strategy.published_size() and len(task.obs_mean) == 4 * self.spec.observation_size

    def has(self, block: Block) -> bool:
        """Whether the run can have these slots; a block's text may say anything.

        How many episodes are evaluated may change while we sit here (a resumed run): only their most is known.
        """
        return block.stop <= self._most.get(block.kind, MOST_EVALUATIONS)

    def evaluate(self, task: Task, published: Floats, block: Block, worker: str, report: Callable[[Failure], None]) -> Answer:
        """The answer to a block of ``task``'s publication; ``published`` is float32[task.size].

        Raises Leaving between steps. An episode that raises becomes a failure of its slot, told to ``report``.
        A process that has grown too large answers the slots that it has played; the others are owed again.
        """
        began = time.monotonic()
        roll = self._training if block.kind in (messages.TRAIN, messages.CENTRE) else self._evaluating
        results, failures = [], []
        with np.errstate(all="ignore"):
            for slot, seed, attempt in roll(task, published, block):
                self.watch.playing = {"generation": task.generation, "slot": slot, "seed": seed}
                try:
                    results.append(attempt())
                except (Leaving, BaseTimeoutException):  # RQ's own timeout is no failure of the episode
                    raise
                except Exception as error:  # whatever a user's environment raises is that slot's failure
                    reason = f"{blame(error)}{type(error).__name__}: {error}"[: messages.MAX_REASON]
                    failures.append((slot, reason))
                    report(Failure(slot, self.watch.playing["seed"], reason, traceback.format_exc(limit=-12)))
                finally:
                    self.watch.began = None
                if self.watch.full:  # the rest of the block is for a smaller process
                    break
        return Answer(task.publication, block.kind, worker, time.monotonic() - began, tuple(results), tuple(failures))

    def _training(self, task: Task, published: Floats, block: Block) -> list[Attempt]:
        """Perturbed slots, or the centre on slot 0's seeds, under training's rules."""
        centre = block.kind == messages.CENTRE
        plan = plan_for(self.config, task.generation, self._policy.size, self._strategy.per_slot)
        slots = plan.slots(0, 1) if centre else plan.slots(block.start, block.stop)
        rules = training_rules(self.config, task.step_limit, self._strategy.fitness_by_sign)
        statistics = self._statistics(task)
        attempts: list[Attempt] = []
        for row, slot in enumerate(range(block.start, block.stop)):
            index = -1 if centre else int(slots.noise_indices[row])
            seeds = slots.seeds[row, :1] if centre else slots.seeds[row]
            observe = bool(slots.sampled[row]) and not centre
            play_slot = partial(self._perturbed, task, published, slot, index, seeds, rules, statistics, observe, int(slots.noise_keys[row]))
            attempts.append((slot, int(seeds[0, 0]), play_slot))
        return attempts

    def _perturbed(
        self, task: Task, published: Floats, slot: int, index: int, seeds: NDArray[np.int64], rules: EpisodeRules,
        statistics: FrozenStatistics | None, observe: bool, key: int,
    ) -> SlotResult:  # fmt: skip
        individuals = self._individuals(published, task.sigma, index)
        return self._slot(slot, index, seeds, individuals, rules, statistics, observe, key)

    def _evaluating(self, task: Task, published: Floats, block: Block) -> list[Attempt]:
        """The unperturbed policy, one episode a slot, under the environment's own rules."""
        seeds = evaluation_seeds(self.config, EVALUATION_STREAMS[block.kind], task.generation, block.stop)
        centre = self._strategy.centre(published)[None]
        statistics = self._statistics(task)
        attempts: list[Attempt] = []
        for slot in range(block.start, block.stop):
            own = seeds[slot].reshape(1, 1)
            attempts.append((slot, int(seeds[slot]), partial(self._slot, slot, -1, own, centre, self._evaluation, statistics, False, None)))
        return attempts

    def _individuals(self, published: Floats, sigma: float, index: int) -> Floats:
        """float32[individuals, size] of one slot."""
        if index < 0:
            return self._strategy.centre(published)[None]
        noise: Floats = self.table.row(index, self._policy.size)
        individuals: Floats = self._strategy.individuals(published, sigma, noise[None])[0]
        return individuals

    def _statistics(self, task: Task) -> FrozenStatistics | None:
        if not self.config.obs_norm:
            return None
        mean, std = np.frombuffer(task.obs_mean, "<f4"), np.frombuffer(task.obs_std, "<f4")
        return FrozenStatistics(mean.astype(np.float32), std.astype(np.float32), self.config.obs_clip)

    def _slot(
        self, slot: int, index: int, seeds: NDArray[np.int64], individuals: Floats, rules: EpisodeRules,
        statistics: FrozenStatistics | None, observe: bool, key: int | None,
    ) -> SlotResult:  # fmt: skip
        """``seeds`` int64[individuals, episodes], ``individuals`` float32[individuals, size]; ``key`` of action noise, None for none."""
        played = []
        for parameters, own_seeds in zip(individuals, seeds, strict=True):
            act = actor(self._policy, parameters, statistics)
            played.append([self._episode(act, rules, int(seed), observe, key) for seed in own_seeds])
        return SlotResult(
            slot, index, int(seeds[0, 0]),
            fitness=tuple(mean([one.fitness for one in episodes]) for episodes in played),
            returns=tuple(mean([one.total for one in episodes]) for episodes in played),
            steps=tuple(sum(one.steps for one in episodes) for episodes in played),
            at_limit=tuple(sum(one.at_limit for one in episodes) for episodes in played),
            cut=tuple(sum(self._was_cut(one, rules) for one in episodes) for episodes in played),
            moments=tuple(packed(one.moments) for episodes in played for one in episodes if one.moments),
        )  # fmt: skip

    def _was_cut(self, episode: Episode, rules: EpisodeRules) -> bool:
        """Whether training ended it before the environment would have."""
        shorter = self.spec.step_limit is None or rules.limit < self.spec.step_limit
        return episode.cut or (episode.at_limit and shorter)

    def _episode(
        self, act: Callable[[Floats], Floats], rules: EpisodeRules, seed: int, observe: bool, key: int | None
    ) -> Episode:
        noise = None
        if key is not None and self.config.action_noise > 0 and self.spec.action.kind == "box":
            outputs = self.spec.action.outputs
            noise = ActionNoise(self.table.row, self.table.size - outputs + 1, key, outputs, self.config.action_noise)
        self.watch.playing = {**self.watch.playing, "seed": seed}
        self.watch.began = time.monotonic()
        return play(self._world, act, self._actions, rules, seed, self.watch, observe=observe, noise=noise)


def mean(values: list[float]) -> float:
    """Summed in order, in float64; one value stays itself to the bit."""
    return sum_in_order(values) / len(values)


def packed(moments: Moments) -> EpisodeMoments:
    """For the wire, where every number is finite: an episode with an infinite observation is left out, as merging would leave it out."""
    if not (np.isfinite(moments.mean).all() and np.isfinite(moments.m2).all()):
        nothing = np.zeros(len(moments.mean), "<f8").tobytes()
        return EpisodeMoments(0, nothing, nothing)
    return EpisodeMoments(moments.count, moments.mean.astype("<f8").tobytes(), moments.m2.astype("<f8").tobytes())
