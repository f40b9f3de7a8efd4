"""One episode: reset, act to its end, and return the environment's return and the strategy's
fitness.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import numpy as np

from es_queue.config.episode_rules import EpisodeRules, Patience, Stall
from es_queue.environments.interface import Environment, LivesEnvironment
from es_queue.errors import EsQueueError
from es_queue.numerics.arrays import Floats
from es_queue.numerics.normalization import FrozenStatistics, Moments
from es_queue.policies.actions import ActionMap
from es_queue.policies.base import Forward, Policy

#: Follows the steps of an episode: how many there were, and the return so far.
OnStep = Callable[[int, float], None]
#: Why an episode without a usable behaviour has failed.
NOT_FINITE = "the episode's behaviour contains a number that is not finite"


class Leaving(Exception):  # noqa: N818 - it is no error: the worker was asked to go
    """The worker leaves between two environment steps, or leaves this block because its publication
    has closed.
    """


class EpisodeFailed(EsQueueError):  # noqa: N818 - reads as what happened
    """The episode has no result: a return that is not finite, or an observation of another
    shape.
    """


@dataclass(frozen=True)
class Episode:
    """The outcome of one episode. ``at_limit``: it reached the step limit; ``cut``: only
    training's rules ended it.
    """

    total: float
    fitness: float
    steps: int
    at_limit: bool
    cut: bool
    moments: Moments | None
    behaviour: Floats | None = None


@dataclass
class WorkCounts:
    """What a worker has done since it took its seat.

    episodes: of results; failures: slots that failed; busy: seconds until the current block, and
    when that began
    """

    episodes: int = 0
    failures: int = 0
    busy: tuple[float, float | None] = (0.0, None)

    def begin_block(self) -> None:
        self.busy = self.busy_seconds(), time.monotonic()

    def end_slot(self, episodes: int, *, has_failed: bool) -> None:
        """A slot of so many episodes has a result, or has failed."""
        if has_failed:
            self.failures += 1
        else:
            self.episodes += episodes

    def end_block(self) -> None:
        self.busy = self.busy_seconds(), None

    def busy_seconds(self) -> float:
        seconds, began = self.busy
        return seconds if began is None else seconds + time.monotonic() - began


class EpisodeControl:
    """Flags that the episode's loop and the heartbeat thread share.

    leave_reason: why the worker leaves; empty while it stays
    halt:    whether the running episode must stop, because the worker leaves or the publication has
    closed
    serving: the publication of the block in progress; closed: the one that has closed meanwhile
    finish_reason: why it leaves after the episode, such as a process that is too large; empty while
    it stays
    episode_began: monotonic second at which the running episode began, None between episodes
    playing: generation, slot and environment seed of that episode
    steps:   environment steps since the worker took its seat
    poll: seconds between the heartbeat thread's polls, from the open task; None before the first
    task
    """

    def __init__(self) -> None:
        self.halt = False
        self._leave_reason = ""
        self.serving = self.closed = ""
        self.finish_reason = ""
        self.playing: dict[str, int] = {}
        self.episode_began: float | None = None
        self.steps = 0
        self.work = WorkCounts()
        self.poll: float | None = None

    @property
    def leave_reason(self) -> str:
        return self._leave_reason

    @leave_reason.setter
    def leave_reason(self, reason: str) -> None:
        self._leave_reason = reason
        if reason:
            self.halt = True

    def leave(self, reason: str) -> None:
        """Ask the worker to leave, for the first reason given."""
        if reason and not self._leave_reason:
            self.leave_reason = reason

    def finish(self, reason: str) -> None:
        """Ask the worker to leave after its episode, for the first reason given."""
        self.finish_reason = self.finish_reason or reason

    def set_poll(self, seconds: float) -> None:
        self.poll = seconds

    def begin_episode(self, playing: dict[str, int]) -> None:
        """An episode begins, or an environment is created, which can also hang."""
        self.playing, self.episode_began = playing, time.monotonic()

    def end_episode(self) -> None:
        self.episode_began = None

    def begin_steps(self, count: int = 1, episode_began: float | None = None) -> None:
        """That many episodes make one step each. ``episode_began``: their share of the time, if
        there are several. Raises Leaving.
        """
        if self.halt:
            raise Leaving
        self.steps += count
        self.episode_began = episode_began or self.episode_began

    def begin_block(self, publication: str) -> None:
        self.closed = ""
        self.work.begin_block()
        self._set_publication(publication)

    def end_block(self) -> None:
        """The block is finished, or abandoned."""
        self.work.end_block()
        self._set_publication("")

    def _set_publication(self, publication: str) -> None:
        self.serving, self.halt = publication, False
        if self._leave_reason:  # asked last: a signal may have come before ``halt`` was reset
            self.halt = True

    def close_publication(self, publication: str) -> None:
        """The publication has closed, so its episodes may stop."""
        if publication == self.serving:
            self.closed, self.halt = publication, True


class LifeCounter:
    def __init__(self, env: Environment) -> None:
        self._count = cast(LivesEnvironment, env).lives
        self._had = self._count()

    def has_lost_life(self) -> bool:
        before, self._had = self._had, self._count()
        return self._had < before


class ActionNoise:
    """Gaussian action noise of one episode: consecutive slices of the noise table, from a position
    that depends only on the slot.
    """

    def __init__(
        self, row: Callable[[int, int], Floats], places: int, key: int, outputs: int, scale: float
    ) -> None:
        self._row, self._places, self._outputs = row, places, outputs
        self._at = key % places
        self._scale = np.float32(scale)

    def next(self) -> Floats:
        noise = self._row(self._at, self._outputs)
        self._at = (self._at + self._outputs) % self._places
        return self._scale * noise


class Fitness:
    """Accumulates an episode's fitness, and detects its end by training's own rules (patience,
    stall).
    """

    def __init__(self, rules: EpisodeRules) -> None:
        self._shift, self._floor = rules.reward_shift, rules.reward_floor
        self._by_sign = rules.by_sign
        self._patience: Patience | None = rules.patience
        self._stall: Stall | None = rules.stall
        self._plain = rules.is_return
        self._best, self._since = 0.0, 0
        self._stalled = 0
        self.total = 0.0

    @property
    def is_return(self) -> bool:
        """Whether the fitness is the unchanged return, and ends no episode."""
        return self._plain and self._patience is None and self._stall is None

    def add(self, reward: float, observation: Floats) -> bool:
        """Count a step; True when the episode ends here."""
        if not self._plain:
            reward = self._shaped_reward(reward)
        self.total += reward
        return (self._patience is not None and self._is_out_of_patience()) or (
            self._stall is not None and self._is_stalled(observation)
        )

    def _shaped_reward(self, reward: float) -> float:
        reward -= self._shift
        if self._floor is not None and reward < self._floor:
            reward = self._floor
        return float((reward > 0) - (reward < 0)) if self._by_sign else reward

    def _is_out_of_patience(self) -> bool:
        assert self._patience is not None
        if self.total >= self._best + self._patience.gain and self.total > self._best:
            self._best, self._since = self.total, 0
            return False
        self._since += 1
        return self._since >= self._patience.steps

    def _is_stalled(self, observation: Floats) -> bool:
        assert self._stall is not None
        self._stalled = (
            self._stalled + 1 if abs(observation[self._stall.index]) < self._stall.below else 0
        )
        return self._stalled >= self._stall.steps


def make_actor(
    policy: Policy, parameters: Floats, statistics: FrozenStatistics | None
) -> Callable[[], Forward]:
    """The function that begins an individual's episode, for :func:`play`; ``statistics`` None means
    no normalisation.
    """
    begin = policy.bind(parameters[None]).begin
    if statistics is None:
        return begin
    normalize = statistics.normalize

    def begin_normalising() -> Forward:
        act = begin()
        return lambda observation: act(normalize(observation))

    return begin_normalising


def last_observation(observation: Floats) -> Floats:
    """The last observation of an episode, as its behaviour. Raises EpisodeFailed if it is not
    finite.
    """
    if not np.isfinite(observation).all():
        raise EpisodeFailed(NOT_FINITE)
    return observation


@dataclass(frozen=True)
class EpisodeOptions:
    """Options of an episode in addition to its rules.

    observe: collect the moments of all its observations
    noise:   its action noise
    on_step: called after each step
    behave:  makes the behaviour from the last observation, or from the environment's current state
    """

    observe: bool = False
    noise: ActionNoise | None = None
    on_step: OnStep | None = None
    behave: Callable[[Floats], Floats] | None = None


PLAIN = EpisodeOptions()


def play_episode(
    env: Environment,
    begin: Callable[[], Forward],
    actions: ActionMap,
    rules: EpisodeRules,
    seed: int,
    control: EpisodeControl,
    options: EpisodeOptions = PLAIN,
) -> Episode:
    """Play the episode of ``seed``. ``begin`` returns the policy with an empty memory: float32[d]
    observation -> float32[outputs].

    Raises Leaving when the worker must leave, EpisodeFailed for a non-finite return or an
    observation of another shape, NonFiniteOutput for a non-finite action, and every exception of
    the environment.
    """
    fitness, noise, behave = Fitness(rules), options.noise, options.behave
    apart = not fitness.is_return
    observation, act = env.reset(seed), begin()
    observations, shape = [observation], observation.shape
    lives = LifeCounter(env) if rules.life_loss else None
    total, steps, over, ended = 0.0, 0, False, False
    while not (over or ended or steps >= rules.limit):
        control.begin_steps()
        action = actions.act_one(act(observation), noise.next() if noise else None)
        observation, reward, over = env.step(action)
        if observation.shape != shape:  # numpy would stretch some of them
            raise EpisodeFailed(
                f"step {steps + 1} yields an observation of shape {list(observation.shape)}, "
                f"but reset yields {list(shape)}"
            )
        steps += 1
        total += reward
        if apart:
            ended = fitness.add(reward, observation)
        if lives is not None:
            ended = lives.has_lost_life() or ended
        if options.observe:
            observations.append(observation)
        if options.on_step is not None:
            options.on_step(steps, total)
    fitness_total = fitness.total if apart else total
    if not (math.isfinite(total) and math.isfinite(fitness_total)):
        raise EpisodeFailed("the episode's return is not a finite number")
    at_limit = not over and steps >= rules.limit
    moments = Moments.of(np.asarray(observations)) if options.observe else None
    return Episode(
        total,
        fitness_total,
        steps,
        at_limit,
        ended and not over,
        moments,
        None if behave is None else behave(observation),
    )
