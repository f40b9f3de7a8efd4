"""Many episodes at once: one call steps all environments, one stacked product acts for all policies.

Each episode is to the bit what ``rollout.play`` makes of it alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rq.timeouts import BaseTimeoutException

from es_queue.environments import Worlds
from es_queue.episode_rules import EpisodeRules
from es_queue.normalization import FrozenStatistics, Moments
from es_queue.policies import Policy
from es_queue.policies.actions import ActionMap, NonFiniteOutput
from workers.rollout import ActionNoise, Episode, EpisodeFailed, Leaving, Watch

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Game:
    """An episode to be played: parameters float32[size], environment seed, whether its moments are wanted.

    noise: makes its action noise, from the start each time
    """

    parameters: Floats
    seed: int
    observe: bool = False
    noise: Callable[[], ActionNoise | None] = lambda: None


Outcome = Episode | Exception


class Fitnesses:
    """``rollout.Fitness`` of many episodes, a row each; the same float64 operations in the same order."""

    def __init__(self, rules: EpisodeRules, count: int) -> None:
        self._rules = rules
        self.totals: Doubles = np.zeros(count)
        self._best: Doubles = np.zeros(count)
        self._since = np.zeros(count, np.int64)
        self._stalled = np.zeros(count, np.int64)

    def keep(self, rows: Mask) -> None:
        self.totals, self._best = self.totals[rows], self._best[rows]
        self._since, self._stalled = self._since[rows], self._stalled[rows]

    def add(self, rewards: Doubles, observations: Floats) -> Mask:
        """Count a step of every row; which rows end here by training's rules."""
        self.totals = self.totals + self._seen(rewards)
        ended: Mask = np.zeros(len(rewards), np.bool_)
        if self._rules.patience is not None:
            gained = (self.totals >= self._best + self._rules.patience.gain) & (self.totals > self._best)
            self._best = np.where(gained, self.totals, self._best)
            self._since = np.where(gained, 0, self._since + 1)
            ended |= self._since >= self._rules.patience.steps
        if self._rules.stall is not None:
            stuck = abs(observations[:, self._rules.stall.index]) < self._rules.stall.below
            self._stalled = np.where(stuck, self._stalled + 1, 0)
            # One by one, an episode that patience ends is not asked whether it stalls; either way it is over.
            ended |= self._stalled >= self._rules.stall.steps
        return ended

    def _seen(self, rewards: Doubles) -> Doubles:
        rules = self._rules
        if rules.reward_shift:
            rewards = rewards - rules.reward_shift
        if rules.reward_floor is not None:
            rewards = np.where(rewards < rules.reward_floor, rules.reward_floor, rewards)
        if rules.by_sign:
            rewards = (rewards > 0).astype(np.float64) - (rewards < 0)
        return rewards


class Batch:
    """Games that began together, so that all have played as many steps; what is over leaves.

    rows: which of the games are still played, ascending; the other arrays have a row for each of them
    """

    def __init__(self, games: Sequence[Game], policy: Policy, rules: EpisodeRules, first: Floats) -> None:
        self._policy, self._rules = policy, rules
        self.outcomes: list[Outcome | None] = [None] * len(games)
        self.rows = np.arange(len(games), dtype=np.int32)
        self.steps = 0
        self._observations = first
        self._parameters: Floats = np.stack([game.parameters for game in games])
        self._act = policy.bind(self._parameters)
        self._totals: Doubles = np.zeros(len(games))
        self._fitness = Fitnesses(rules, len(games))
        self._seen = {row: [first[row]] for row, game in enumerate(games) if game.observe}
        self._noise = {row: noise for row, noise in enumerate(game.noise() for game in games) if noise is not None}

    def actions(self, statistics: FrozenStatistics | None, actions: ActionMap) -> NDArray[np.generic]:
        """The actions of the games still played; one whose policy puts out what is not finite has failed and leaves."""
        raw = self._act(self._observations if statistics is None else statistics.normalize(self._observations))
        finite = np.asarray(np.isfinite(raw).all(axis=1), np.bool_)
        if not finite.all():
            self.fail(~finite, NonFiniteOutput([0]))
            raw = raw[finite]
        noise = [self._noise[row].next() for row in self.rows.tolist()] if self._noise else []
        return actions.act(raw, np.stack(noise) if noise else None)

    def count(self, observations: Floats, rewards: Doubles, over: Mask) -> None:
        """Take in a step of every game still played."""
        self.steps += 1
        self._observations = observations
        self._totals = self._totals + rewards
        ended = self._fitness.add(rewards, observations)
        if self._seen:
            for place, row in enumerate(self.rows.tolist()):
                if row in self._seen:
                    self._seen[row].append(observations[place])
        at_limit = self.steps >= self._rules.limit
        if at_limit or over.any() or ended.any():
            done = np.full(len(self.rows), True) if at_limit else over | ended
            for place in np.flatnonzero(done).tolist():
                self.outcomes[self.rows[place]] = self._episode(place, bool(over[place]), bool(ended[place]))
            self._keep(~done)

    def fail(self, which: Mask, error: Exception) -> None:
        for row in self.rows[which]:
            self.outcomes[row] = error
        self._keep(~which)

    def _keep(self, which: Mask) -> None:
        self.rows, self._observations = self.rows[which], self._observations[which]
        self._totals, self._parameters = self._totals[which], self._parameters[which]
        self._fitness.keep(which)
        if len(self.rows):
            self._act = self._policy.bind(self._parameters)

    def _episode(self, place: int, over: bool, ended: bool) -> Outcome:
        total, fitness = float(self._totals[place]), float(self._fitness.totals[place])
        if not (np.isfinite(total) and np.isfinite(fitness)):
            return EpisodeFailed("the episode's return is not a finite number")
        seen = self._seen.pop(int(self.rows[place]), None)
        moments = None if seen is None else Moments.of(np.asarray(seen))
        return Episode(total, fitness, self.steps, not over and self.steps >= self._rules.limit, ended and not over, moments)


def play_together(
    worlds: Worlds, policy: Policy, games: Sequence[Game], actions: ActionMap, rules: EpisodeRules, statistics: FrozenStatistics | None, watch: Watch
) -> list[Outcome]:
    """Play each game once: what came of it, an Episode or the exception that it failed with, in the order of ``games``.

    Where the environments raise, nobody knows which of them did: those that are not over are played again, each alone.
    Raises Leaving between two steps.
    """
    batch: Batch | None = None
    outcomes: list[Outcome | None] = [None] * len(games)
    fault: Exception = EpisodeFailed("the episode was not played")
    try:
        batch = Batch(games, policy, rules, worlds.reset([game.seed for game in games]))
        outcomes = batch.outcomes
        while len(batch.rows):
            if watch.leaving:
                raise Leaving
            chosen = batch.actions(statistics, actions)
            if len(batch.rows):
                batch.count(*worlds.step(batch.rows, chosen))
                watch.steps += len(chosen)
    except (Leaving, BaseTimeoutException):  # RQ's own timeout is no failure of the episodes
        raise
    except Exception as error:  # whatever the environments raise
        fault = error

    def again(game: Game) -> Outcome:
        return fault if len(games) == 1 else play_together(worlds, policy, [game], actions, rules, statistics, watch)[0]

    return [again(game) if one is None else one for game, one in zip(games, outcomes, strict=True)]
