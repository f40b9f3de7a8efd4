"""Episodes of a run's policies, one by one or many at once, to the same bits.

``Score`` is what an episode is worth, and when the rules of training end it. ``play_episode`` plays
one episode, and a ``Batch`` steps many with one call.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from es_queue.environments.episode_rules import EpisodeRules
from es_queue.environments.interface import (
    Environment,
    LivesEnvironment,
    VectorEnvironment,
)
from es_queue.errors import EsQueueError
from es_queue.numerics.arrays import Doubles, Floats, Mask
from es_queue.numerics.noise_table import NoiseTable
from es_queue.numerics.statistics import FrozenStatistics, Moments
from es_queue.policies.actions import ActionMap, NonFiniteOutput
from es_queue.policies.base import BoundPolicy, Forward, Policy
from workers.heartbeat import EpisodeControl

#: Follows the steps of an episode: how many there were, and the return so far.
OnStep = Callable[[int, float], None]
#: Returns the action noise of the next step, float32[n].
NextNoise = Callable[[], Floats]
Places = NDArray[np.intp]
#: Finished episodes leave a batch's parameters once they are this share of them: a copy at each end
#: would cost the square of the batch.
IDLE_SHARE = 0.25
#: Steps for which a batch has room at first.
FIRST_ROOM = 64


class EpisodeFailed(EsQueueError):  # noqa: N818 - reads as what happened
    """The episode has no result, such as one with a return that is not finite."""


@dataclass(frozen=True)
class EpisodeSpec:
    """An episode to play.

    parameters: float32[size] of the policy; seed: of the environment
    sampled: collect the moments of all its observations; behave: determine its behaviour
    key: of its action noise; None for none
    """

    parameters: Floats
    seed: int
    sampled: bool = False
    key: int | None = None
    behave: bool = False


@dataclass(frozen=True)
class Episode:
    """An episode that was played. ``at_limit``: it reached the step limit; ``cut``: only training's
    rules ended it; ``info``: float32 [k] of its last step, None if there is none.
    """

    total: float
    fitness: float
    steps: int
    at_limit: bool = False
    cut: bool = False
    moments: Moments | None = None
    behaviour: Floats | None = None
    info: Floats | None = None


#: An episode, or what it failed with.
Played = Episode | Exception


@contextmanager
def exits_refused() -> Iterator[None]:
    """An environment's sys.exit fails its episode, and does not end the worker."""
    try:
        yield
    except SystemExit as error:
        raise EpisodeFailed(f"the environment calls sys.exit({error.code!r})") from error


def begin_acting(
    bound: BoundPolicy, statistics: FrozenStatistics | None, numbers: Places | None = None
) -> Forward:
    """One individual's policy as an episode begins.

    numbers: of the observation that policy and statistics are for; None for all
    """
    act = bound.begin()
    if statistics is None:
        return act if numbers is None else lambda observation: act(observation[numbers])
    normalize = statistics.normalize
    if numbers is None:
        return lambda observation: act(normalize(observation))
    chosen: Any = numbers
    if np.array_equal(numbers, np.arange(numbers[0], numbers[0] + len(numbers))):
        chosen = slice(numbers[0], numbers[0] + len(numbers))  # twice as fast
    return lambda observation: act(normalize(observation[chosen]))


def action_noise(table: NoiseTable, numbers: int, scale: float, key: int) -> NextNoise:
    """Gaussian noise: consecutive slices of the table, from a place that depends only on the
    episode's key.
    """
    row, places, factor = table.row, table.size - numbers + 1, np.float32(scale)
    at = key % places

    def next_noise() -> Floats:
        nonlocal at
        noise = row(at, numbers)
        at = (at + numbers) % places
        return factor * noise

    return next_noise


# --- what an episode is worth


class Score:
    """The fitness so far, and whether the rules of training end the episode: of one episode
    (numbers), or of ``count`` at once (arrays). Both take the same operations, thus the same bits.
    """

    def __init__(self, rules: EpisodeRules, count: int | None = None) -> None:
        self._rules = rules
        self._where: Any = np.where if count is not None else lambda yes, a, b: a if yes else b
        zero: Any = 0.0 if count is None else np.zeros(count)
        self.total = self._best = self._since = self._stalled = zero

    def add(self, reward: Any, observation: Floats) -> Any:
        """Count a step of each; whether the episode ends with it."""
        rules, where = self._rules, self._where
        reward = reward - rules.reward_shift
        if rules.reward_floor is not None:
            reward = where(reward < rules.reward_floor, rules.reward_floor, reward)
        if rules.by_sign:
            reward = where(reward > 0, 1.0, where(reward < 0, -1.0, 0.0))
        self.total = self.total + reward
        ended: Any = False
        if rules.patience is not None:
            gained = (self.total >= self._best + rules.patience.gain) & (self.total > self._best)
            self._best = where(gained, self.total, self._best)
            self._since = where(gained, 0.0, self._since + 1)
            ended = self._since >= rules.patience.steps
        if rules.stall is not None:
            still = abs(observation.T[rules.stall.index]) < rules.stall.below
            self._stalled = where(still, self._stalled + 1, 0.0)
            ended = ended | (self._stalled >= rules.stall.steps)
        return ended

    def keep(self, places: Places) -> None:
        """Keep only the episodes at ``places``."""
        self.total, self._best = self.total[places], self._best[places]
        self._since, self._stalled = self._since[places], self._stalled[places]


def end_episode(
    total: float,
    fitness: float,
    steps: int,
    over: bool,
    ended: bool,
    rules: EpisodeRules,
    seen: Floats | Sequence[Floats] | None,
    last: Floats,
    behave: Callable[[Floats], Floats] | None,
) -> Episode:
    """The finished episode. Raises EpisodeFailed.

    over, ended: whether the environment and the rules of training ended it
    seen: the observations whose moments are required; behave: makes the behaviour from the last one
    """
    if not (math.isfinite(total) and math.isfinite(fitness)):
        raise EpisodeFailed("the episode's return is not a finite number")
    return Episode(
        total,
        fitness,
        steps,
        at_limit=not over and steps >= rules.limit,
        cut=ended and not over,
        moments=None if seen is None else Moments.of(np.asarray(seen)),
        behaviour=None if behave is None else behave(last),
    )


def last_observation(observation: Floats) -> Floats:
    """An episode's last observation, as its behaviour. Raises EpisodeFailed if it is not finite."""
    if not np.isfinite(observation).all():
        raise EpisodeFailed("the episode's behaviour contains a number that is not finite")
    return observation.copy()


def non_finite(observation: Floats, steps: int) -> EpisodeFailed | None:
    """The failure of an observation that is not finite, after which no output can be; else None."""
    places = np.flatnonzero(~np.isfinite(observation))
    if not len(places):
        return None
    place, where = int(places[0]), f"step {steps}" if steps else "reset"
    return EpisodeFailed(
        f"{where} yields an observation whose number {place} is {observation[place]}: an "
        "environment must keep its numbers finite"
    )


# --- one by one


def play_episode(
    env: Environment,
    act: Forward,
    actions: ActionMap,
    rules: EpisodeRules,
    seed: int,
    control: EpisodeControl,
    sampled: bool = False,
    noise: NextNoise | None = None,
    behave: Callable[[Floats], Floats] | None = None,
    on_step: OnStep | None = None,
) -> Episode:
    """Play the episode of ``seed``. ``behave`` makes the behaviour from the last observation.

    Raises Leaving, EpisodeFailed, NonFiniteOutput, and every exception of the environment.
    """
    score = None if rules.is_return else Score(rules)
    observation = env.reset(seed)
    seen, shape = [observation], observation.shape
    lives = cast(LivesEnvironment, env).lives() if rules.life_loss else 0
    total, steps, over, ended = 0.0, 0, False, False
    while not (over or ended or steps >= rules.limit):
        control.begin_steps()
        try:
            action = actions.act_one(act(observation), noise() if noise else None)
        except NonFiniteOutput as error:
            raise non_finite(observation, steps) or error from None
        observation, reward, over = env.step(action)
        if observation.shape != shape:  # numpy would stretch some of them
            raise EpisodeFailed(
                f"step {steps + 1} yields an observation of shape {list(observation.shape)}, "
                f"but reset yields {list(shape)}"
            )
        steps += 1
        total += reward
        if score is not None:
            ended = score.add(reward, observation)
        if rules.life_loss:
            before, lives = lives, cast(LivesEnvironment, env).lives()
            ended = ended or lives < before
        if sampled:
            seen.append(observation)
        if on_step is not None:
            on_step(steps, total)
    return end_episode(
        total,
        total if score is None else score.total,
        steps,
        over,
        ended,
        rules,
        seen if sampled else None,
        observation,
        behave,
    )


# --- many at once


class Batch:
    """Episodes that began together and have played equally many steps; finished ones leave.

    results: filled as episodes finish; the other arrays have a row for each unfinished one:
    rows: their indices, ascending; kept: where their observations are kept, -1 for nowhere
    held: their places among the bound policies, None for all
    numbers: of an observation that the policy receives, None for all
    """

    def __init__(
        self,
        specs: Sequence[EpisodeSpec],
        results: list[Played | None],
        policy: Policy,
        rules: EpisodeRules,
        noises: Sequence[NextNoise],
        numbers: Places | None = None,
    ) -> None:
        self._numbers = numbers
        self._specs, self._results, self._rules, self._noises = specs, results, rules, noises
        self._policy = policy
        self._held: Places | None = None
        self._bind(np.stack([spec.parameters for spec in specs]))
        self._steps = 0
        self._rows = np.arange(len(specs), dtype=np.int32)
        self._totals: Doubles = np.zeros(len(specs))
        self._score = None if rules.is_return else Score(rules, len(specs))
        observed = np.array([spec.sampled for spec in specs])
        self._kept = np.where(observed, np.cumsum(observed) - 1, -1)
        self._observed = np.flatnonzero(observed)

    def play(
        self,
        envs: VectorEnvironment,
        actions: ActionMap,
        statistics: FrozenStatistics | None,
        control: EpisodeControl,
    ) -> None:
        """Play all episodes to their ends. Raises Leaving between two steps."""
        began, count = time.monotonic(), len(self._specs)
        self._observations = envs.reset([spec.seed for spec in self._specs])
        room = min(FIRST_ROOM, self._rules.limit + 1)
        self._seen = np.empty((len(self._observed), room, self._observations.shape[1]), np.float32)
        self._seen[:, 0] = self._observations[self._observed]
        while len(self._rows):
            chosen = self._choose(actions, statistics)
            # The wall limit is of an episode, and they share the time; a step that hangs is seen
            # all the same.
            now = time.monotonic()
            control.begin_steps(len(chosen), now - (now - began) / count)
            if len(self._rows):
                self._count(*envs.step(self._rows, chosen))

    def _choose(self, actions: ActionMap, statistics: FrozenStatistics | None) -> NDArray[Any]:
        """The actions of the unfinished episodes. One with a non-finite output fails and leaves."""
        seen = self._observations
        if self._numbers is not None:
            seen = np.take(seen, self._numbers, axis=1)
        seen = seen if statistics is None else statistics.normalize(seen)
        if self._held is None:
            raw = self._act(seen)
        else:  # the finished ones act once more on their last observations, for nobody
            self._inputs[self._held] = seen
            raw = self._act(self._inputs)[self._held]
        rows = self._rows.tolist() if self._noises else []
        noise = np.stack([self._noises[row]() for row in rows]) if rows else None
        try:
            return actions.act(raw, noise)
        except NonFiniteOutput as error:
            for place in error.rows:
                failure = non_finite(self._observations[place], self._steps)
                self._results[self._rows.item(place)] = failure or NonFiniteOutput([0])
            finite = np.delete(np.arange(len(raw)), error.rows)
            self._keep(finite)
            return actions.act(raw[finite], None if noise is None else noise[finite])

    def _count(self, observations: Floats, rewards: Doubles, over: Mask) -> None:
        """Count a step of each unfinished episode."""
        self._steps += 1
        self._observations = observations
        self._totals = self._totals + rewards
        if len(self._observed):
            self._keep_observations()
        fitness, ended = self._totals, np.zeros(len(self._rows), np.bool_)
        if self._score is not None:
            ended = ended | self._score.add(rewards, observations)
            fitness = self._score.total
        done = over | ended | (self._steps >= self._rules.limit)
        if not np.count_nonzero(done):
            return
        for place in np.flatnonzero(done).tolist():
            row, kept = self._rows.item(place), self._kept.item(place)
            try:
                self._results[row] = end_episode(
                    self._totals.item(place),
                    fitness.item(place),
                    self._steps,
                    over.item(place),
                    ended.item(place),
                    self._rules,
                    None if kept < 0 else self._seen[kept, : self._steps + 1],
                    observations[place],
                    last_observation if self._specs[row].behave else None,
                )
            except EpisodeFailed as error:
                self._results[row] = error
        self._keep(np.flatnonzero(~done))

    def _keep_observations(self) -> None:
        kept, room = self._kept[self._observed], self._seen.shape[1]
        if self._steps == room:
            room = min(2 * room, self._rules.limit + 1)
            wider: Floats = np.empty((len(kept), room, self._seen.shape[2]), np.float32)
            wider[:, : self._steps] = self._seen[kept]
            kept = self._kept[self._observed] = np.arange(len(kept))
            self._seen = wider
        self._seen[kept, self._steps] = self._observations[self._observed]

    def _keep(self, places: Places) -> None:
        """Keep only the episodes at ``places``."""
        self._rows, self._kept = self._rows[places], self._kept[places]
        self._observations, self._totals = self._observations[places], self._totals[places]
        self._observed = np.flatnonzero(self._kept >= 0)
        if self._score is not None:
            self._score.keep(places)
        held = places if self._held is None else self._held[places]
        if not len(held) or len(held) > (1 - IDLE_SHARE) * len(self._parameters):
            self._held = held
            return
        memory = self._act.memory
        self._bind(self._parameters[held])
        if self._policy.memory_size:
            self._act.memory[...] = memory[held]

    def _bind(self, parameters: Floats) -> None:
        self._parameters, self._act = parameters, self._policy.bind(parameters)
        self._held = None
        self._inputs: Floats = np.zeros(
            (len(parameters), self._policy.observation_size), np.float32
        )
