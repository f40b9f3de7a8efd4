"""EnvironmentRequest, Environment, and VectorEnvironment (many episodes at once)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from es_queue.config.run_config import AUTO, RunConfig, users_of
from es_queue.numerics.arrays import Doubles, Floats, Mask


@dataclass(frozen=True)
class EnvironmentRequest:
    """An environment as the command line names it.

    id:        a Gymnasium id; ``module:Id-v0`` imports the user's module first
    arguments: keyword arguments for ``gymnasium.make``
    wrappers:  ``module:Class`` each, applied in order as ``Class(env)``
    behaviour: the behaviour that is compared, see ``behaviour_descriptor.resolve_behaviour``; empty
    for none
    action_bins: values that a box action is discretised to, see ``action_bins.parse_bins``
    parameters: length of an objective's vector (``id`` is then its ``module:function``); 0 for an
    environment
    backend:   "auto" (EnvPool if it is installed and known to be equal to lean, else lean if it
    exists, else stock), "lean" (es-queue's BipedalWalker and vectorised CartPole), "envpool",
    "stock", "gym" (the old gym's), or "any" (lean or EnvPool, whichever a host has, if both give
    the same bits)
    """

    id: str
    arguments: tuple[tuple[str, Any], ...] = ()
    wrappers: tuple[str, ...] = ()
    backend: str = "auto"
    parameters: int = 0
    behaviour: str = ""
    action_bins: str = "none"

    @classmethod
    def of(cls, config: RunConfig) -> EnvironmentRequest:
        behaviour = (
            config.behaviour
            if config.strategy in users_of("behaviour") or config.behaviour != AUTO
            else ""
        )
        return cls(
            config.task,
            config.env_arg,
            config.wrapper,
            config.backend,
            config.parameters,
            behaviour,
            config.action_bins,
        )


#: Of the parameters of episodes that are played at once: every step reads all of them, so they must
#: stay in the cache.
MAX_BATCH_BYTES = 2**23


def best_batch_size(max_episodes: int, parameters: int) -> int:
    """The best number of episodes to play at once, at most ``max_episodes``, for policies of that
    size.
    """
    return max(1, min(max_episodes, MAX_BATCH_BYTES // (4 * max(1, parameters))))


class Environment(Protocol):
    """Plays episodes, each independent of those before.

    It applies no step limit: the rollout does, from ``EnvironmentSpec.step_limit``.
    """

    def reset(self, seed: int) -> Floats:
        """Begin the episode of ``seed``; returns the first observation [observation_size]."""
        ...

    def step(self, action: Any) -> tuple[Floats, float, bool]:
        """Observation [observation_size], reward, and whether the environment ended the episode.

        action: float32 array of the box's shape, Python int (discrete), int64 array (multidiscrete)
        or int8 array (multibinary)

        The caller owns the observation.
        """
        ...

    def close(self) -> None: ...


class BehaviourEnvironment(Environment, Protocol):
    """An Environment that reports behaviours that its observations do not contain."""

    def behaviour(self) -> Floats:
        """Float32 [b] of the episode so far."""
        ...


class LivesEnvironment(Environment, Protocol):
    def lives(self) -> int: ...


class RenderedEnvironment(Environment, Protocol):
    """An Environment that was opened with a render mode."""

    @property
    def fps(self) -> float:
        """Frames per second by the environment's own clock, one per step."""
        ...

    def render(self) -> NDArray[np.uint8] | None:
        """The current frame, [height, width, 3], under "rgb_array"; None under "human"."""
        ...


class VectorEnvironment(Protocol):
    """Many episodes played at once, one per row. Like an Environment, it applies no step limit.

    min_episodes: the fewest episodes that are faster together than one by one
    max_episodes: the best number of episodes to play together
    """

    min_episodes: int
    max_episodes: int

    def reset(self, seeds: Sequence[int]) -> Floats:
        """Begin one episode per seed and forget all former ones. Returns the first observations [B,
        observation_size].
        """
        ...

    def step(self, rows: NDArray[np.int32], actions: NDArray[Any]) -> tuple[Floats, Doubles, Mask]:
        """Step the episodes ``rows`` [R], ascending, with one action each. An episode that is over
        or was left out cannot be stepped again.

        Returns observations [R, observation_size] in C order, rewards [R], and which episodes ended
        [R]. The caller owns the arrays.
        """
        ...

    def close(self) -> None: ...
