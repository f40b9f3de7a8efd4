"""One block: build each individual of its slots, roll out, and put what came of it into an answer."""

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

from es_queue.config import ASYNC, RunConfig
from es_queue.environments import World, Worlds
from es_queue.environments.behaviour import LAST
from es_queue.environments.request import BehavingWorld, held_at_once
from es_queue.episode_rules import EpisodeRules, evaluation_limit, evaluation_rules, training_rules
from es_queue.figures import sum_in_order
from es_queue.noise import NoiseTable
from es_queue.normalization import FrozenStatistics, Moments
from es_queue.plan import (
    BEHAVIOUR,
    CONFIRMATION,
    ELITE,
    EVALUATION,
    FINAL,
    SlotPlan,
    evaluation_seeds,
    most_slots,
    plan_for,
)
from es_queue.policies import Policy
from es_queue.policies.actions import ActionMap
from es_queue.policies.base import Forward
from es_queue.protocol import messages
from es_queue.protocol.messages import Answer, Block, EpisodeMoments, SlotResult, Task
from es_queue.returns import MOST_RETURN, excluded, unrelated
from es_queue.spaces import EnvironmentSpec
from es_queue.strategies.base import Drawn, Strategy
from workers.batch import Game, Outcome, play_together
from workers.rollout import (
    ActionNoise,
    Episode,
    EpisodeFailed,
    Leaving,
    Watch,
    actor,
    last_observation,
    play,
)

Floats = NDArray[np.float32]
MOST_EVALUATIONS = 100_000
EVALUATION_STREAMS = {messages.EVAL: EVALUATION, messages.CONFIRM: CONFIRMATION, messages.FINAL: FINAL}


@dataclass(frozen=True)
class Job:
    """A slot to be played: seeds int64[individuals, episodes]; ``key`` of its action noise, None for none.

    behave: whether it is asked how its individuals behave; centre: which, where it is not perturbed
    """

    kind: str
    slot: int
    index: int
    seeds: NDArray[np.int64]
    rules: EpisodeRules
    statistics: FrozenStatistics | None
    observe: bool
    key: int | None
    behave: bool = False
    centre: int = 0


@dataclass(frozen=True)
class Failed:
    """The first episode of a slot that gave no result."""

    seed: int
    error: Exception


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
        self, config: RunConfig, spec: EnvironmentSpec, world: World, policy: Policy, strategy: Strategy, table: NoiseTable, watch: Watch,
        worlds: Worlds | None = None, fewest: int = 1,
    ) -> None:  # fmt: skip
        """``worlds`` plays many episodes at once; without them, or for fewer than ``fewest``, ``world`` plays one by one."""
        self.config, self.spec, self.table, self.watch = config, spec, table, watch
        self._world, self._worlds, self._policy, self._strategy = world, worlds, policy, strategy
        self._build = strategy.builder(table)
        self._fewest = fewest
        self._planned: tuple[int, int, SlotPlan] | None = None
        self._actions = ActionMap(spec.action, config.action_bound)
        self._evaluation = evaluation_rules(evaluation_limit(config, spec))
        self._most = {kind: most_slots(config, strategy.per_slot)[kind] for kind in messages.TRAINED}
        self._most[messages.ELITE] *= strategy.reevaluates
        self._most[messages.CENTRE] = strategy.most_centres
        self._behave = last_observation if spec.behaviour in ("", LAST) else self._look_inside

    def fits(self, task: Task) -> bool:
        """Whether the task's vectors have the lengths that this run's policy has."""
        return self._strategy.fits(task.size, self.spec.observation_size) and len(task.obs_mean) == 4 * self.spec.observation_size

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
        rolls = {messages.TRAIN: self._training, messages.CENTRE: self._centres, messages.ELITE: self._again}
        roll = rolls.get(block.kind, self._evaluating)
        results, failures = [], []
        with np.errstate(all="ignore"):
            jobs = roll(task, published, block)
            # Centres are few, and each may have statistics of its own.
            for group in [[job] for job in jobs] if block.kind == messages.CENTRE else self._groups(jobs):
                for job, came in self._played(task, published, group):
                    if isinstance(came, SlotResult):
                        results.append(came)
                        continue
                    reason = f"{blame(came.error)}{type(came.error).__name__}: {came.error}"[: messages.MAX_REASON]
                    failures.append((job.slot, reason))
                    report(Failure(job.slot, came.seed, reason, "".join(traceback.format_exception(came.error, limit=-12))))
                if self.watch.full:  # the rest of the block is for a smaller process
                    break
        return Answer(task.publication, block.kind, worker, time.monotonic() - began, tuple(results), tuple(failures))

    def individual(self, task: Task, published: Floats, slot: int, individual: int, look: Callable[[], None] | None = None) -> list[Episode]:
        """One individual of a training slot, on its own episodes; ``look`` follows each step."""
        (job,) = self._training(task, published, Block(task.publication, messages.TRAIN, slot, slot + 1))
        return self._watched(self._individuals(task, published, job)[individual], job, job.seeds[individual].tolist(), look)

    def centre(self, task: Task, published: Floats, seeds: Sequence[int], look: Callable[[], None] | None = None) -> list[Episode]:
        """The unperturbed policy as it is evaluated, on ``seeds``; ``look`` follows each step."""
        job = Job(messages.EVAL, 0, -1, np.array([seeds]), self._evaluation, self._statistics(task), False, None)
        return self._watched(self._strategy.centre_of(published, 0), job, seeds, look)

    def _watched(self, parameters: Floats, job: Job, seeds: Sequence[int], look: Callable[[], None] | None) -> list[Episode]:
        with np.errstate(all="ignore"):
            begin = actor(self._policy, parameters, job.statistics)
            return [self._episode(begin, job, seed, look) for seed in seeds]

    def _training(self, task: Task, published: Floats, block: Block) -> list[Job]:
        """Perturbed slots, under training's rules."""
        slots = self._slots(task.generation, block.start, block.stop)
        rules = training_rules(self.config, task.step_limit, self._strategy.fitness_by_sign)
        statistics = self._statistics(task)
        jobs: list[Job] = []
        for row, slot in enumerate(range(block.start, block.stop)):
            observe, key = bool(slots.sampled[row]), int(slots.noise_keys[row])
            jobs.append(Job(block.kind, slot, int(slots.noise_indices[row]), slots.seeds[row], rules, statistics, observe, key, self._strategy.wants_behaviour))
        return jobs

    def _centres(self, task: Task, published: Floats, block: Block) -> list[Job]:
        """Slot 0 is the centre on slot 0's seeds, as training plays them; the others are centres on fresh seeds, without action noise."""
        first, behave = self._slots(task.generation, 0, 1), self._strategy.wants_behaviour
        rules = training_rules(self.config, task.step_limit, self._strategy.fitness_by_sign)
        fresh = evaluation_seeds(self.config, BEHAVIOUR, task.generation, self.config.behaviour_episodes).reshape(1, -1)
        return [
            Job(block.kind, slot, -1, fresh if slot else first.seeds[0, :1], rules, self._statistics(task, self._strategy.centre_statistics(published, slot)), False, None if slot else int(first.noise_keys[0]), behave, slot)
            for slot in range(block.start, block.stop)
        ]

    def _slots(self, generation: int, start: int, stop: int) -> SlotPlan:
        """The plan of a range of slots; that of a whole generation is made once."""
        if self._planned is None or self._planned[0] != generation or self._planned[1] < stop:
            plan = plan_for(self.config, generation, self._policy.size, self._strategy.per_slot)
            count = max(stop, self.config.population // self._strategy.per_slot)
            self._planned = generation, count, plan.slots(0, count)
        return self._planned[2].part(start, stop)

    def _again(self, task: Task, published: Floats, block: Block) -> list[Job]:
        """Training slots on fresh seeds, the same for all of them, without action noise; the slot after the last is the centre."""
        seeds = evaluation_seeds(self.config, ELITE, task.generation, self.config.elite_episodes).reshape(1, -1)
        rules = training_rules(self.config, task.step_limit, self._strategy.fitness_by_sign)
        job = partial(Job, block.kind, rules=rules, statistics=self._statistics(task), observe=False, key=None)
        slots = range(block.start, block.stop)
        if self.config.schedule == ASYNC:  # an episode a slot, of those whom the publication names
            return [job(slot, -1, seeds=seeds[:, slot % seeds.size, np.newaxis]) for slot in slots]
        plan = self._slots(task.generation, 0, min(block.stop, self._strategy.standing))
        indices = [*plan.noise_indices.tolist(), -1]
        return [job(slot, indices[slot], seeds=seeds) for slot in slots]

    def _evaluating(self, task: Task, published: Floats, block: Block) -> list[Job]:
        """The unperturbed policy, one episode a slot, under the environment's own rules."""
        seeds = evaluation_seeds(self.config, EVALUATION_STREAMS[block.kind], task.generation, block.stop)
        statistics = self._statistics(task)
        return [
            Job(block.kind, slot, -1, seeds[slot].reshape(1, 1), self._evaluation, statistics, False, None) for slot in range(block.start, block.stop)
        ]

    def _groups(self, jobs: list[Job]) -> list[list[Job]]:
        """Jobs that are played together: each alone, or as many whole slots as make batches of about equal size."""
        if self._worlds is None or not self._enough(jobs):
            return [[job] for job in jobs]
        at_once = max(1, self._at_once(self._worlds) // jobs[0].seeds.size)
        groups = -(-len(jobs) // at_once)
        cuts = [len(jobs) * number // groups for number in range(groups + 1)]
        return [jobs[start:stop] for start, stop in pairwise(cuts)]

    def _at_once(self, worlds: Worlds) -> int:
        return held_at_once(worlds.most, self._policy.size)

    def _enough(self, jobs: list[Job]) -> bool:
        """``fewest`` is 1 where nothing but ``worlds`` plays these episodes."""
        held = self._fewest == 1 or (self._worlds is not None and self._at_once(self._worlds) >= self._fewest)
        return held and sum(job.seeds.size for job in jobs) >= self._fewest

    def _played(self, task: Task, published: Floats, group: list[Job]) -> list[tuple[Job, SlotResult | Failed]]:
        """What came of each job. Raises Leaving between steps."""
        self.watch.playing = {"generation": task.generation, "slot": group[0].slot, "seed": int(group[0].seeds[0, 0])}
        try:
            if self._worlds is not None and self._enough(group):
                return self._together(self._worlds, task, published, group)
            return [(job, self._alone(task, published, job)) for job in group]
        finally:
            self.watch.began = None

    def _alone(self, task: Task, published: Floats, job: Job) -> SlotResult | Failed:
        """The slot's episodes one after the other."""
        played = []
        try:
            for parameters, seeds in zip(self._individuals(task, published, job), job.seeds, strict=True):
                begin = actor(self._policy, parameters, job.statistics)
                played.append([self._episode(begin, job, int(seed)) for seed in seeds])
        except (Leaving, BaseTimeoutException):  # RQ's own timeout is no failure of the episode
            raise
        except Exception as error:  # whatever a user's environment raises is that slot's failure
            return Failed(self.watch.playing["seed"], error)
        return self._checked(job, played)

    def _together(self, worlds: Worlds, task: Task, published: Floats, group: list[Job]) -> list[tuple[Job, SlotResult | Failed]]:
        """All episodes of all slots at once; more than a batch holds of them, batch after batch."""
        rules, statistics = group[0].rules, group[0].statistics
        games = {job.slot: self._games(task, published, job) for job in group}
        flat = [game for own in games.values() if isinstance(own, list) for game in own]
        outcomes: list[Outcome] = []
        most = self._at_once(worlds)
        for start in range(0, len(flat), most):
            self.watch.began = time.monotonic()
            outcomes += play_together(worlds, self._policy, flat[start : start + most], self._actions, rules, statistics, self.watch)
        left = iter(outcomes)
        return [(job, own if isinstance(own, Failed) else self._gathered(job, [next(left) for _ in own])) for job, own in zip(group, games.values(), strict=True)]

    def _gathered(self, job: Job, outcomes: list[Outcome]) -> SlotResult | Failed:
        """A slot's outcomes, in the order of its games."""
        for seed, one in zip(job.seeds.flat, outcomes, strict=True):
            if isinstance(one, Exception):
                return Failed(int(seed), one)
        per, episodes = job.seeds.shape[1], [one for one in outcomes if isinstance(one, Episode)]
        return self._checked(job, [episodes[at : at + per] for at in range(0, len(episodes), per)])

    def _checked(self, job: Job, played: list[list[Episode]]) -> SlotResult | Failed:
        """The slot's result, unless an episode has a return that the master would refuse."""
        for seed, one in zip(job.seeds.flat, chain.from_iterable(played), strict=True):
            reason = excluded(self.spec, one.total, one.steps)
            if not reason and abs(one.fitness) > MOST_RETURN:
                reason = f"the episode's fitness is beyond {MOST_RETURN:g}: scale its rewards down"
            if reason:
                return Failed(int(seed), EpisodeFailed(reason))
        result = self._result(job, played)
        if not (job.rules.is_return and result.fitness == result.returns):
            episodes = job.seeds.shape[1]
            for row, figures in enumerate(zip(result.fitness, result.returns, result.steps, strict=True)):
                fitness, total, steps = figures
                reason = unrelated(job.rules, self.spec, episodes * fitness, episodes * total, steps)
                if reason:
                    return Failed(int(job.seeds[row, 0]), EpisodeFailed(reason))
        return result

    def _games(self, task: Task, published: Floats, job: Job) -> list[Game] | Failed:
        try:
            individuals = self._individuals(task, published, job)
        except BaseTimeoutException:
            raise
        except Exception as error:  # a noise table that cannot be read
            return Failed(int(job.seeds[0, 0]), error)
        return [
            Game(parameters, int(seed), job.observe, partial(self._noise, job.key), job.behave)
            for parameters, seeds in zip(individuals, job.seeds, strict=True)
            for seed in seeds
        ]

    def _individuals(self, task: Task, published: Floats, job: Job) -> Floats:
        """float32[individuals, size] of one slot."""
        if job.index < 0 and not (job.kind == messages.ELITE and self.config.schedule == ASYNC):
            return self._strategy.centre_of(published, job.centre)[None]
        noise: Floats = self.table.row(max(0, job.index), self._policy.size)
        return self._build(published, task.sigma, Drawn(job.kind, task.generation, job.slot, job.index, noise))

    def _statistics(self, task: Task, own: tuple[Floats, Floats] | None = None) -> FrozenStatistics | None:
        """The generation's, or a centre's ``own``."""
        if not self.config.obs_norm:
            return None
        mean, std = own or (np.frombuffer(task.obs_mean, "<f4"), np.frombuffer(task.obs_std, "<f4"))
        return FrozenStatistics(mean.astype(np.float32), std.astype(np.float32), self.config.obs_clip)

    def _result(self, job: Job, played: list[list[Episode]]) -> SlotResult:
        """What the slot's episodes come to, by individual."""
        return SlotResult(
            job.slot, job.index, int(job.seeds[0, 0]),
            fitness=tuple(mean([one.fitness for one in episodes]) for episodes in played),
            returns=tuple(mean([one.total for one in episodes]) for episodes in played),
            steps=tuple(sum(one.steps for one in episodes) for episodes in played),
            at_limit=tuple(sum(one.at_limit for one in episodes) for episodes in played),
            cut=tuple(sum(self._was_cut(one, job.rules) for one in episodes) for episodes in played),
            moments=tuple(packed(one.moments) for episodes in played for one in episodes if one.moments),
            behaviour=b"".join(mean_behaviour([one.behaviour for one in episodes if one.behaviour is not None]) for episodes in played),
        )  # fmt: skip

    def _was_cut(self, episode: Episode, rules: EpisodeRules) -> bool:
        """Whether training ended it before the environment would have."""
        shorter = self.spec.step_limit is None or rules.limit < self.spec.step_limit
        return episode.cut or (episode.at_limit and shorter)

    def _noise(self, key: int | None) -> ActionNoise | None:
        if key is None or self.config.action_noise <= 0 or self.spec.action.kind != "box":
            return None
        numbers = len(self.spec.action.low)
        return ActionNoise(self.table.row, self.table.size - numbers + 1, key, numbers, self.config.action_noise)

    def _episode(self, begin: Callable[[], Forward], job: Job, seed: int, look: Callable[[], None] | None = None) -> Episode:
        self.watch.playing = {**self.watch.playing, "seed": seed}
        self.watch.began = time.monotonic()
        behave = self._behave if job.behave else None
        return play(self._world, begin, self._actions, job.rules, seed, self.watch, observe=job.observe, noise=self._noise(job.key), look=look, behave=behave)

    def _look_inside(self, observation: Floats) -> Floats:
        """How the episode that is over behaved, as its environment tells. Raises EpisodeFailed for another number of numbers."""
        found = cast(BehavingWorld, self._world).behaviour()
        if len(found) != self.spec.behaviour_size:
            raise EpisodeFailed(f"the behaviour has {len(found)} numbers, and {self.spec.behaviour_size} in other episodes")
        return found


def mean(values: list[float]) -> float:
    """Summed in order, in float64; one value stays itself to the bit."""
    return sum_in_order(values) / len(values)


def mean_behaviour(episodes: list[Floats]) -> bytes:
    """The mean of an individual's episodes, summed in order in float64, as little-endian float32; nothing of none."""
    if not episodes:
        return b""
    total = episodes[0].astype(np.float64)
    for one in episodes[1:]:
        total = total + one
    return (total / len(episodes)).astype("<f4").tobytes()


def packed(moments: Moments) -> EpisodeMoments:
    """For the wire, where every number is finite: an episode with an infinite observation is left out, as merging would leave it out."""
    if not (np.isfinite(moments.mean).all() and np.isfinite(moments.m2).all()):
        nothing = np.zeros(len(moments.mean), "<f8").tobytes()
        return EpisodeMoments(0, nothing, nothing)
    return EpisodeMoments(moments.count, moments.mean.astype("<f8").tobytes(), moments.m2.astype("<f8").tobytes())
