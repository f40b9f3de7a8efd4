"""Many episodes at once: one call steps all environments, and one stacked product acts for all
policies.

Each episode has the same bits as with ``episode.play_episode``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rq.timeouts import BaseTimeoutException

from es_queue.config.episode_rules import EpisodeRules
from es_queue.environments.interface import VectorEnvironment
from es_queue.numerics.arrays import Doubles, Floats, Mask
from es_queue.numerics.normalization import FrozenStatistics, Moments
from es_queue.policies.actions import ActionMap, NonFiniteOutput
from es_queue.policies.base import Policy
from workers.episode import NOT_FINITE, ActionNoise, Episode, EpisodeControl, EpisodeFailed, Leaving

Places = NDArray[np.intp]

#: The parameters of games that are over are held until they are this share: a copy whenever a game
#: ends would make the copies of a batch grow by the square of its games.
IDLE_SHARE = 0.25
#: Steps for which there is room in the observations of a game, at first.
FIRST_ROOM = 64


@dataclass(frozen=True)
class EpisodeSpec:
    """An episode to play: parameters float32[size], environment seed, whether its moments are
    required.

    noise: makes its action noise, from the start each time; behave: whether its last observation is
    required, as its behaviour
    """

    parameters: Floats
    seed: int
    observe: bool = False
    noise: Callable[[], ActionNoise | None] = lambda: None
    behave: bool = False


Outcome = Episode | Exception


class BatchedFitness:
    """``episode.Fitness`` of many episodes, one per row; the same float64 operations in the same
    order.
    """

    def __init__(self, rules: EpisodeRules, count: int) -> None:
        self._rules = rules
        self.totals: Doubles = np.zeros(count)
        self._best: Doubles = np.zeros(count)
        self._since = np.zeros(count, np.int64)
        self._stalled = np.zeros(count, np.int64)

    def keep(self, places: Places) -> None:
        self.totals = self.totals[places]
        if self._rules.patience is not None:
            self._best, self._since = self._best[places], self._since[places]
        if self._rules.stall is not None:
            self._stalled = self._stalled[places]

    def add(self, rewards: Doubles, observations: Floats) -> Mask:
        """Count a step of every row; returns which rows end by training's rules."""
        self.totals = self.totals + self._shaped_rewards(rewards)
        ended: Mask = np.zeros(len(rewards), np.bool_)
        if self._rules.patience is not None:
            gained = (self.totals >= self._best + self._rules.patience.gain) & (
                self.totals > self._best
            )
            self._best = np.where(gained, self.totals, self._best)
            self._since = np.where(gained, 0, self._since + 1)
            ended |= self._since >= self._rules.patience.steps
        if self._rules.stall is not None:
            stuck = abs(observations[:, self._rules.stall.index]) < self._rules.stall.below
            self._stalled = np.where(stuck, self._stalled + 1, 0)
            # One by one, an episode that patience ends is not asked whether it stalls; either way
            # it is over.
            ended |= self._stalled >= self._rules.stall.steps
        return ended

    def _shaped_rewards(self, rewards: Doubles) -> Doubles:
        rules = self._rules
        if rules.reward_shift:
            rewards = rewards - rules.reward_shift
        if rules.reward_floor is not None:
            rewards = np.where(rewards < rules.reward_floor, rules.reward_floor, rewards)
        if rules.by_sign:
            rewards = (rewards > 0).astype(np.float64) - (rewards < 0)
        return rewards


class BatchedPolicy:
    """The policies of the unfinished games, bound together; rows are independent."""

    def __init__(self, policy: Policy, parameters: Floats) -> None:
        self._policy = policy
        self._bind(parameters)

    def _bind(self, parameters: Floats) -> None:
        self._parameters = parameters
        self._act = self._policy.bind(parameters)  # nothing is remembered yet
        #: Of the games still played among those held, None for all.
        self._places: Places | None = None
        shape = len(parameters), self._policy.observation_size
        self._inputs: Floats = np.zeros(shape, np.float32)

    def keep(self, places: Places) -> None:
        places = places if self._places is None else self._places[places]
        if not len(places) or len(places) > (1 - IDLE_SHARE) * len(self._parameters):
            self._places = places
        else:
            remembered = self._act.memory
            self._bind(self._parameters[places])
            if self._policy.memory_size:
                self._act.memory[...] = remembered[places]

    def act(self, observations: Floats) -> Floats:
        """float32[R, outputs] for the observations of the R unfinished games."""
        if self._places is None:
            return self._act(observations)
        # The others act once more on their last observations, for nobody.
        self._inputs[self._places] = observations
        return self._act(self._inputs)[self._places]


class ObservationBuffer:
    """The observations of the games with required moments, from the reset on.

    rows: those games; first: the first observations of all games; max_rows: most observations of a
    game
    """

    def __init__(self, rows: Sequence[int], first: Floats, max_rows: int) -> None:
        self._rows = np.array(rows, np.int32)
        self._places: Places = np.array(rows, np.intp)  # among the games still played
        self._buffer_rows = np.arange(len(rows))  # where their observations are kept
        self._max_rows = max_rows
        shape = len(rows), min(FIRST_ROOM, max_rows), first.shape[1]
        self._buffer: Floats = np.empty(shape, np.float32)
        self._buffer[:, 0] = first[self._rows]

    def add(self, step: int, observations: Floats) -> None:
        """Observations of the unfinished games after step ``step``."""
        if not len(self._buffer_rows):
            return
        if step == self._buffer.shape[1]:
            self._widen()
        self._buffer[self._buffer_rows, step] = observations[self._places]

    def _widen(self) -> None:
        count, room, size = len(self._buffer_rows), self._buffer.shape[1], self._buffer.shape[2]
        wider: Floats = np.empty((count, min(2 * room, self._max_rows), size), np.float32)
        wider[:, :room] = self._buffer[self._buffer_rows]
        self._buffer, self._buffer_rows = wider, np.arange(count)

    def moments(self, row: int, steps: int) -> Moments | None:
        """Moments of an unfinished game after ``steps``; None if they are not required."""
        indices = np.flatnonzero(self._rows == row)
        if not len(indices):
            return None
        return Moments.of(self._buffer[self._buffer_rows[indices[0]], : steps + 1])

    def keep(self, rows: NDArray[np.int32]) -> None:
        """Keep only the games ``rows``, ascending."""
        if not len(self._buffer_rows):
            return
        places, left = np.searchsorted(rows, self._rows), np.zeros(len(self._rows), np.bool_)
        if len(rows):
            left = rows.take(places, mode="clip") == self._rows
        self._rows, self._buffer_rows = self._rows[left], self._buffer_rows[left]
        self._places = places[left]


class EpisodeBatch:
    """Games that began together and have played equally many steps; finished ones leave.

    rows: indices of the unfinished games, ascending; the other arrays have a row for each
    """

    def __init__(
        self, specs: Sequence[EpisodeSpec], policy: Policy, rules: EpisodeRules, first: Floats
    ) -> None:
        self._rules = rules
        self.outcomes: list[Outcome | None] = [None] * len(specs)
        self.rows = np.arange(len(specs), dtype=np.int32)
        self.steps = 0
        self._observations = first
        self._batched_policy = BatchedPolicy(policy, np.stack([spec.parameters for spec in specs]))
        self._totals: Doubles = np.zeros(len(specs))
        self._fitness = BatchedFitness(rules, len(specs))
        self._observation_buffer = ObservationBuffer(
            [row for row, spec in enumerate(specs) if spec.observe], first, rules.limit + 1
        )
        self._behave = frozenset(row for row, spec in enumerate(specs) if spec.behave)
        noises = enumerate(spec.noise() for spec in specs)
        self._noise = {row: noise for row, noise in noises if noise is not None}

    def actions(
        self, statistics: FrozenStatistics | None, actions: ActionMap
    ) -> NDArray[np.generic]:
        """The actions of the unfinished games. A game whose policy returns a non-finite output has
        failed and leaves.
        """
        raw = self._batched_policy.act(
            self._observations if statistics is None else statistics.normalize(self._observations)
        )
        rows = self.rows.tolist() if self._noise else []
        noise = np.stack([self._noise[row].next() for row in rows]) if rows else None
        try:
            return actions.act(raw, noise)
        except NonFiniteOutput as error:
            finite = np.delete(np.arange(len(raw)), error.rows)
            for row in self.rows[error.rows].tolist():
                self.outcomes[row] = NonFiniteOutput([0])
            self._keep(finite)
            return actions.act(raw[finite], None if noise is None else noise[finite])

    def add_step(self, observations: Floats, rewards: Doubles, over: Mask) -> None:
        self.steps += 1
        self._observations = observations
        self._totals = self._totals + rewards
        self._observation_buffer.add(self.steps, observations)
        ended = self._fitness.add(rewards, observations)
        done = np.full(len(self.rows), True) if self.steps >= self._rules.limit else over | ended
        if np.count_nonzero(done):
            self._finish(np.flatnonzero(done), over, ended)
            self._keep(np.flatnonzero(~done))

    def _finish(self, places: Places, over: Mask, ended: Mask) -> None:
        columns = (self.rows, self._totals, self._fitness.totals, over, ended)
        for place, row, *outcome in zip(
            places.tolist(), *(column[places].tolist() for column in columns), strict=True
        ):
            self.outcomes[row] = self._outcome(place, row, *outcome)

    def _outcome(
        self, place: int, row: int, total: float, fitness: float, over: bool, ended: bool
    ) -> Outcome:
        if not (math.isfinite(total) and math.isfinite(fitness)):
            return EpisodeFailed("the episode's return is not a finite number")
        at_limit = not over and self.steps >= self._rules.limit
        behaviour = self._observations[place].copy() if row in self._behave else None
        if behaviour is not None and not np.isfinite(behaviour).all():
            return EpisodeFailed(NOT_FINITE)
        return Episode(
            total,
            fitness,
            self.steps,
            at_limit,
            ended and not over,
            self._observation_buffer.moments(row, self.steps),
            behaviour,
        )

    def _keep(self, places: Places) -> None:
        self.rows, self._observations = self.rows[places], self._observations[places]
        self._totals = self._totals[places]
        self._fitness.keep(places)
        self._batched_policy.keep(places)
        self._observation_buffer.keep(self.rows)


def play_batch(
    envs: VectorEnvironment,
    policy: Policy,
    specs: Sequence[EpisodeSpec],
    actions: ActionMap,
    rules: EpisodeRules,
    statistics: FrozenStatistics | None,
    control: EpisodeControl,
) -> list[Outcome]:
    """Play each game once. Returns for each, in the order of ``specs``, an Episode or the exception
    that it failed with.

    If the environments raise, it is unknown which of them did: the unfinished games are played
    again, one by one. Raises Leaving between two steps.
    """
    batch: EpisodeBatch | None = None
    outcomes: list[Outcome | None] = [None] * len(specs)
    fault: Exception = EpisodeFailed("the episode was not played")
    began = time.monotonic()
    try:
        batch = EpisodeBatch(specs, policy, rules, envs.reset([spec.seed for spec in specs]))
        outcomes = batch.outcomes
        while len(batch.rows):
            chosen = batch.actions(statistics, actions)
            # The wall limit is of an episode, and they share the time; a step that hangs is seen
            # all the same.
            now = time.monotonic()
            control.begin_steps(len(chosen), now - (now - began) / len(specs))
            if len(batch.rows):
                batch.add_step(*envs.step(batch.rows, chosen))
    except (Leaving, BaseTimeoutException):  # RQ's own timeout is no failure of the episodes
        raise
    except Exception as error:  # whatever the environments raise
        fault = error

    def replay_alone(spec: EpisodeSpec) -> Outcome:
        if len(specs) == 1:
            return fault
        return play_batch(envs, policy, [spec], actions, rules, statistics, control)[0]

    return [
        replay_alone(spec) if outcome is None else outcome
        for spec, outcome in zip(specs, outcomes, strict=True)
    ]
