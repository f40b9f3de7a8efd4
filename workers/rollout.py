"""One episode: reset, act until it is over, and two numbers, the environment's return and the strategy's fitness."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from es_queue.environments import World
from es_queue.environments.request import LivingWorld
from es_queue.episode_rules import EpisodeRules, Patience, Stall
from es_queue.errors import EsQueueError
from es_queue.normalization import FrozenStatistics, Moments
from es_queue.policies import Policy
from es_queue.policies.actions import ActionMap
from es_queue.policies.base import Forward

Floats = NDArray[np.float32]


#: Why an episode without a usable behaviour has failed.
NOT_FINITE = "the episode's behaviour holds what is not finite"


class Leaving(Exception):  # noqa: N818 - it is no error: the worker was asked to go
    """The worker leaves between two environment steps, or leaves this block because its publication has closed."""


class EpisodeFailed(EsQueueError):  # noqa: N818 - reads as what happened
    """The episode gave no result: a return that is not finite, or an observation of another shape."""


@dataclass(frozen=True)
class Episode:
    """What one episode gave. ``at_limit``: it reached the step limit; ``cut``: training alone ended it."""

    total: float
    fitness: float
    steps: int
    at_limit: bool
    cut: bool
    moments: Moments | None
    behaviour: Floats | None = None


class Watch:
    """What the episode's loop looks at between steps, and what the life thread looks at from outside.

    leaving: why the worker leaves, empty while it stays
    halt:    whether the running episode must stop: the worker leaves, or what it plays for has closed
    serving: the publication of the block that is played; closed: the one that has closed meanwhile
    full:    why it leaves once the episode is over, empty while it stays: a process that has grown too large
    began:   monotonic second at which the running episode began, None between episodes
    playing: generation, slot and environment seed of that episode
    steps:   environment steps since the worker took its seat
    poll:    seconds between the life thread's looks, as the open task asks; None before the first task
    """

    def __init__(self) -> None:
        self.halt = False
        self._leaving = ""
        self.serving = self.closed = ""
        self.full = ""
        self.playing: dict[str, int] = {}
        self.began: float | None = None
        self.steps = 0
        self.poll: float | None = None

    @property
    def leaving(self) -> str:
        return self._leaving

    @leaving.setter
    def leaving(self, reason: str) -> None:
        self._leaving = reason
        if reason:
            self.halt = True

    def serve(self, publication: str) -> None:
        """A block of that publication begins."""
        self.closed = ""
        self._turn_to(publication)

    def served(self) -> None:
        """The block is over, or given up."""
        self._turn_to("")

    def _turn_to(self, publication: str) -> None:
        self.serving, self.halt = publication, False
        if self._leaving:  # asked last: a signal may have come before ``halt`` was reset
            self.halt = True

    def close(self, publication: str) -> None:
        """It has closed; whoever plays for it may stop."""
        if publication == self.serving:
            self.closed, self.halt = publication, True


class Lives:
    """Tells when a life has been lost."""

    def __init__(self, world: World) -> None:
        self._count = cast(LivingWorld, world).lives
        self._had = self._count()

    def lost(self) -> bool:
        before, self._had = self._had, self._count()
        return self._had < before


class ActionNoise:
    """Gaussian action noise of one episode: consecutive slices of the noise table, from a place the slot's key names."""

    def __init__(self, row: Callable[[int, int], Floats], places: int, key: int, outputs: int, scale: float) -> None:
        self._row, self._places, self._outputs = row, places, outputs
        self._at = key % places
        self._scale = np.float32(scale)

    def next(self) -> Floats:
        noise = self._row(self._at, self._outputs)
        self._at = (self._at + self._outputs) % self._places
        return self._scale * noise


class Fitness:
    """The fitness of an episode as it grows, and when training's own rules end it (patience, stall)."""

    def __init__(self, rules: EpisodeRules) -> None:
        self._shift, self._floor, self._by_sign = rules.reward_shift, rules.reward_floor, rules.by_sign
        self._patience: Patience | None = rules.patience
        self._stall: Stall | None = rules.stall
        self._plain = rules.is_return
        self._best, self._since = 0.0, 0
        self._stalled = 0
        self.total = 0.0

    @property
    def is_return(self) -> bool:
        """Whether it is the sum of the rewards as they are, and ends no episode."""
        return self._plain and self._patience is None and self._stall is None

    def add(self, reward: float, observation: Floats) -> bool:
        """Count a step; True when the episode ends here."""
        if not self._plain:
            reward = self._seen(reward)
        self.total += reward
        return (self._patience is not None and self._impatient()) or (self._stall is not None and self._stuck(observation))

    def _seen(self, reward: float) -> float:
        reward -= self._shift
        if self._floor is not None and reward < self._floor:
            reward = self._floor
        return float((reward > 0) - (reward < 0)) if self._by_sign else reward

    def _impatient(self) -> bool:
        assert self._patience is not None
        if self.total >= self._best + self._patience.gain and self.total > self._best:
            self._best, self._since = self.total, 0
            return False
        self._since += 1
        return self._since >= self._patience.steps

    def _stuck(self, observation: Floats) -> bool:
        assert self._stall is not None
        self._stalled = self._stalled + 1 if abs(observation[self._stall.index]) < self._stall.below else 0
        return self._stalled >= self._stall.steps


def actor(policy: Policy, parameters: Floats, statistics: FrozenStatistics | None) -> Callable[[], Forward]:
    """What begins an episode of one individual, as :func:`play` takes it; ``statistics`` None normalises nothing."""
    begin = policy.bind(parameters[None]).begin
    if statistics is None:
        return begin
    normalize = statistics.normalize

    def begin_normalising() -> Forward:
        act = begin()
        return lambda observation: act(normalize(observation))

    return begin_normalising


def last_observation(observation: Floats) -> Floats:
    """What an episode ended with, as its behaviour. Raises EpisodeFailed where it is not finite."""
    if not np.isfinite(observation).all():
        raise EpisodeFailed(NOT_FINITE)
    return observation


def play(
    world: World,
    begin: Callable[[], Forward],
    actions: ActionMap,
    rules: EpisodeRules,
    seed: int,
    watch: Watch,
    *,
    observe: bool = False,
    noise: ActionNoise | None = None,
    look: Callable[[], Any] | None = None,
    behave: Callable[[Floats], Floats] | None = None,
) -> Episode:
    """Play the episode of ``seed``. ``begin`` gives the policy with an empty memory: float32[d] observation -> float32[outputs];
    ``observe`` gathers the moments of all its observations; ``look`` follows each step;
    ``behave`` makes the behaviour of the last observation, or of the world as it then is.

    Raises Leaving when the worker was asked to go, EpisodeFailed for a return that is not finite or an observation of another shape,
    NonFiniteOutput for an action that is not, and whatever the environment raises.
    """
    fitness = Fitness(rules)
    apart = not fitness.is_return
    observation, act = world.reset(seed), begin()
    seen, shape = [observation], observation.shape
    lives = Lives(world) if rules.life_loss else None
    total, steps, over, ended = 0.0, 0, False, False
    while not (over or ended or steps >= rules.limit):
        if watch.halt:
            raise Leaving
        action = actions.act_one(act(observation), noise.next() if noise else None)
        observation, reward, over = world.step(action)
        if observation.shape != shape:  # numpy would stretch some of them
            raise EpisodeFailed(f"step {steps + 1} yields an observation of shape {list(observation.shape)}, the reset one of {list(shape)}")
        steps += 1
        watch.steps += 1
        total += reward
        if apart:
            ended = fitness.add(reward, observation)
        if lives is not None:
            ended = lives.lost() or ended
        if observe:
            seen.append(observation)
        if look is not None:
            look()
    fit = fitness.total if apart else total
    if not (math.isfinite(total) and math.isfinite(fit)):
        raise EpisodeFailed("the episode's return is not a finite number")
    at_limit = not over and steps >= rules.limit
    moments = Moments.of(np.asarray(seen)) if observe else None
    return Episode(total, fit, steps, at_limit, ended and not over, moments, None if behave is None else behave(observation))
