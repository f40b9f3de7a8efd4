"""Test environments that misbehave: CartPole, until a trap or a seed says otherwise.

A trap is a file ``trap-<name>`` beside this module's copy: the process that removes it commits the
fault, once. What happened is written to the file ``log`` there, a line each. The poison of a
``Poisoned`` hits every worker alike.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.classic_control import CartPoleEnv

HERE = Path(__file__).parent
#: Seconds that each step of this process takes besides.
SLOW = "ES_QUEUE_TEST_SLOW"
#: What a poisoned training seed may bring.
POISONS = ("raise", "shape", "nan-reward", "infinite-reward", "nan-observation")
EVERY = 6
#: Seeds of evaluations begin here.
EVALUATION = 2**30

_kept: list[np.ndarray] = []


def sprung(name: str) -> bool:
    """Whether this process has just removed the trap."""
    try:
        (HERE / f"trap-{name}").unlink()
    except FileNotFoundError:
        return False
    note(f"{name} {os.getpid()}")
    return True


def note(text: str) -> None:
    handle = os.open(HERE / "log", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    os.write(handle, f"{text}\n".encode())
    os.close(handle)


def crash() -> None:
    """A segmentation fault."""
    ctypes.string_at(0)


class Trapped(CartPoleEnv):
    """megabytes: how much the trap "eat" eats, for good"""

    def __init__(self, megabytes: int = 300, **more: Any) -> None:
        super().__init__(**more)
        self.megabytes = megabytes
        self.pause = float(os.environ.get(SLOW, "0"))

    def step(self, action: Any) -> Any:
        if self.pause:
            time.sleep(self.pause)
        if sprung("raise"):
            raise RuntimeError("the motor burnt")
        if sprung("abort"):
            os.abort()
        if sprung("hang"):
            time.sleep(3600)
        if sprung("eat"):
            _kept.append(np.ones(self.megabytes * 2**17))
            time.sleep(0.5)
        return super().step(action)


class Poisoned(CartPoleEnv):
    """Every sixth seed of training is poisoned.

    poison: one of POISONS, "at-once" for a crash of workers with every seed, "all" for each of
    POISONS by the seed
    """

    def __init__(self, poison: str = "all", **more: Any) -> None:
        super().__init__(**more)
        self.poison, self.evil, self.steps = poison, "", 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.evil, self.steps = poison_of(self.poison, seed or 0), 0
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        observation, reward, over, cut, about = super().step(action)
        self.steps += 1
        if self.steps < 3 or not self.evil:
            return observation, reward, over, cut, about
        if self.evil == "at-once":
            crash()
        if self.evil == "raise":
            raise RuntimeError("the motor burnt")
        wrong = {"shape": observation[:1], "nan-observation": observation * np.nan}.get(
            self.evil, observation
        )
        return (
            wrong,
            {"nan-reward": np.nan, "infinite-reward": np.inf}.get(self.evil, reward),
            over,
            cut,
            about,
        )


def poison_of(poison: str, seed: int) -> str:
    """What happens in the episode of a seed; empty for nothing."""
    if seed >= EVALUATION:
        return ""
    if poison == "at-once":
        return "" if "es-master" in sys.argv[0] else poison
    if seed % EVERY != EVERY - 1:  # no worker's check before it joins has such a seed
        return ""
    return POISONS[seed // EVERY % len(POISONS)] if poison == "all" else poison


class Endless(CartPoleEnv):
    """Never ends by itself, and nobody has given it a limit."""

    def step(self, action: Any) -> Any:
        self.steps_beyond_terminated = None  # CartPole would warn of steps after its end
        observation, _, _, _, about = super().step(action)
        if abs(observation[0]) > 2 or abs(observation[2]) > 1:
            self.state = np.zeros(4)
        return observation, float(1 - abs(observation[2])), False, False, about


class Blink(gymnasium.Env[Any, Any]):
    """One step, paid by the action: nothing is less."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return np.ones(1, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.ones(1, np.float32), float(action[0]), True, False, {}


for _name, _class, _limit in (
    ("Blink-v0", Blink, 1),
    ("Trapped-v0", Trapped, 500),
    ("Poisoned-v0", Poisoned, 500),
    ("Endless-v0", Endless, None),
):
    if _name not in gymnasium.registry:
        gymnasium.register(_name, _class, max_episode_steps=_limit)
