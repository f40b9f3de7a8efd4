"""Small worlds for tests: one whose rewards are written down, and Gymnasium environments of a few
steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from es_queue.environments.interface import ActionSpec, EnvironmentSpec

QUAD, MOODY, SLOW = (f"tests.tiny:{name}-v0" for name in ("Quad", "Moody", "Slow"))
BOX = ActionSpec("box", shape=(1,), low=(-1.0,), high=(1.0,))


def eventually(condition: Callable[[], Any], seconds: float = 10.0) -> bool:
    """Wait until ``condition`` holds; False when the deadline passes."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def spec_of(size: int = 2, limit: int | None = None, action: ActionSpec = BOX) -> EnvironmentSpec:
    return EnvironmentSpec("Script", size, action, limit, None, None, "stock")


class Script:
    """An Environment that pays the written rewards, then ends if it ``ends``; the last reward is
    paid on if it does not.

    seen: every (seed, step, action) so far; hook: called with (seed, step) before each step counts.
    """

    def __init__(
        self,
        rewards: Sequence[float] = (1.0,) * 5,
        *,
        ends: bool = True,
        size: int = 2,
        hook: Callable[[int, int], None] = lambda seed, step: None,
    ) -> None:
        self.rewards, self.ends, self.size, self.hook = list(rewards), ends, size, hook
        self.seen: list[tuple[int, int, Any]] = []
        self.seeds: list[int] = []
        self._step = 0

    def observation(self, step: int) -> np.ndarray:
        return np.arange(self.size, dtype=np.float32) + np.float32(step)

    def reset(self, seed: int) -> np.ndarray:
        self._step = 0
        self.seeds.append(seed)
        return self.observation(0)

    def step(self, action: Any) -> tuple[np.ndarray, float, bool]:
        self._step += 1
        self.hook(self.seeds[-1], self._step)
        self.seen.append((self.seeds[-1], self._step, np.array(action)))
        reward = self.rewards[min(self._step, len(self.rewards)) - 1]
        return self.observation(self._step), reward, self.ends and self._step >= len(self.rewards)

    def close(self) -> None: ...


class Quad(gymnasium.Env[Any, Any]):
    """Five steps, each paying minus the squared distance of the action from a fixed point; 0 is the
    best return.
    """

    observation_space = spaces.Box(-10, 10, (3,), np.float32)
    action_space = spaces.Box(-2, 2, (2,), np.float32)
    GOAL = np.array([0.5, -1.0])

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = 5
        return self._look(), {}

    def _look(self) -> Any:
        return np.array([1.0, *self.np_random.uniform(-0.1, 0.1, 2)], np.float32)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        reward = -float(np.square(np.asarray(action, np.float64) - self.GOAL).sum())
        return self._look(), reward, self.left == 0, False, {}


class Moody(Quad):
    """Quad with a fault: "some" seeds raise in the second step, "all" do, "never" repeats itself no
    episode, "carry" lets the seed of the episode before show.
    """

    calls = 0
    previous = 0

    def __init__(self, fault: str = "") -> None:
        self.fault, self.seed = fault, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        first = super().reset(seed=seed)
        self.seed, self.carried, Moody.previous = seed or 0, Moody.previous, seed or 0
        return first

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, *rest = super().step(action)
        if self.left == 3 and (
            self.fault == "all" or (self.fault == "some" and self.seed % 4 == 3)
        ):
            raise RuntimeError(f"seed {self.seed} fell over")
        if self.fault == "never":
            Moody.calls += 1
            reward += Moody.calls
        if self.fault == "carry":
            reward += self.carried
        result: Any = (observation, reward, *rest)
        return result  # type: ignore[no-any-return]


class Slow(Quad):
    """Quad whose episodes take a while."""

    SECONDS = 0.25

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        time.sleep(self.SECONDS)
        return super().reset(seed=seed)


_CLASSES: dict[str, Any] = {"Quad-v0": Quad, "Moody-v0": Moody, "Slow-v0": Slow}
for _name, _class in _CLASSES.items():
    if _name not in gymnasium.registry:
        gymnasium.register(_name, _class, max_episode_steps=5, reward_threshold=-0.5)
