"""A user's own policy, strategy, environment, wrapper and behaviour, for the table of digests."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from es_queue.numerics.arrays import norm, weighted_rows
from es_queue.policies import NumpyPolicy
from es_queue.strategies.gradient import AdaptiveSigma


class Fading(NumpyPolicy):
    """Linear in the observation and in the squares of a fading mean of the observations."""

    def __init__(self, observation_size: int, outputs: int) -> None:
        size = 2 * observation_size * outputs
        super().__init__(observation_size, outputs, size=size, memory_size=observation_size)

    def act(self, parameters: Any, observation: Any, memory: Any) -> Any:
        memory[:] = 0.9 * memory + 0.1 * observation
        linear, squares = parameters.reshape(2, self.observation_size, self.outputs)
        return observation @ linear + memory**2 @ squares


class CrossEntropy(AdaptiveSigma):
    """Individuals are μ + σ⊙ε; μ moves to the mean of the best quarter, half of the way."""

    per_slot = 1
    SIGMA = 0.3

    def ask(self, published: Any, sigma: float, noise: Any) -> Any:
        return (self.centre(published) + published[self.size :] * noise)[:, np.newaxis]

    def tell(self, state: Any, batch: Any) -> Any:
        fitness = np.where(np.isfinite(batch.fitness[:, 0]), batch.fitness[:, 0], -np.inf)
        best = np.sort(np.argsort(-fitness, kind="stable")[: len(fitness) // 4])
        weights = np.full(len(best), 1 / len(best))
        mean = weighted_rows(batch.noise, batch.noise_indices[best], weights, self.size)
        step = (0.5 * state["sigma"] * mean).astype(np.float32)
        after = {**state, "parameters": self.moved(state["parameters"], step)}
        return after, self.figures(after, norm(mean), norm(step))


class Drift(gymnasium.Env[Any, Any]):
    """A point on a line that pushes from ``low`` to 1 move. A reward for the distance from a hidden
    place; an image with that many pixels a side instead of numbers, if ``image`` is not 0.
    """

    def __init__(self, image: int = 0, gain: float = 0.2, low: float = -1.0) -> None:
        self.image, self.gain = image, gain
        shape = (image, image, 1) if image else (3,)
        kind: Any = np.uint8 if image else np.float32
        least, most = (0, 255) if image else (-9.0, 9.0)
        self.observation_space = spaces.Box(least, most, shape, kind)
        self.action_space = spaces.Box(low, 1.0, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.goal = self.np_random.uniform(-1, 1, 2)
        self.left = 12
        return self._look(), {}

    def _look(self) -> Any:
        if not self.image:
            return np.array([self.place, self.goal, self.left / 12], np.float32)
        side = self.image
        line = np.zeros((side, side, 1), np.uint8)
        line[int(np.clip((0.5 + 0.4 * self.place) * side, 0, side - 1))] = 200
        line[:, int(np.clip((0.5 + 0.4 * self.goal) * side, 0, side - 1))] += 50
        return line

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        push, lift = np.asarray(action, np.float64)
        self.place += self.gain * push - 0.02 * lift
        self.left -= 1
        reward = 1.0 - abs(self.place - self.goal)
        return self._look(), reward, abs(self.place) > 2, self.left == 0, {}


gymnasium.register("Drift-v0", Drift, max_episode_steps=12)


def track(env: Any) -> list[float]:
    """Behaviour: where the point is at the end of the episode, and how far from its goal."""
    drift = env.unwrapped
    return [float(drift.place), float(drift.place - drift.goal)]


class Halved(gymnasium.RewardWrapper):  # type: ignore[type-arg]
    def reward(self, reward: Any) -> float:
        return float(reward) / 2 - 0.7
