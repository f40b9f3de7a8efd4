"""Gymnasium's spaces in our terms: observations as flat float32 arrays, action spaces as ActionSpec."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from es_queue.errors import EnvironmentFailure
from es_queue.spaces import ActionSpec

Encoder = Callable[[Any], NDArray[np.float32]]
Adapter = Callable[[Any], Any]


def observation_encoder(space: spaces.Space[Any], environment: str) -> tuple[int, Encoder]:
    """Size of the flat observation, and the function that makes a new one from what ``space`` yields.

    Box and MultiBinary are flattened in C order; Discrete and each part of MultiDiscrete become one-hot.
    Raises EnvironmentFailure for any other space.
    """
    if isinstance(space, spaces.Box | spaces.MultiBinary):
        return int(np.prod(space.shape)), _flatten
    if isinstance(space, spaces.Discrete):
        return _one_hot(np.array([space.n]), np.array([space.start]))
    if isinstance(space, spaces.MultiDiscrete):
        return _one_hot(space.nvec.reshape(-1), space.start.reshape(-1))
    raise EnvironmentFailure(
        f"the observations of {environment} are a {type(space).__name__}; es-queue takes Box, Discrete, "
        "MultiDiscrete and MultiBinary (a wrapper such as gymnasium.wrappers:FlattenObservation may help)"
    )


def _flatten(observation: Any) -> NDArray[np.float32]:
    flat = np.array(observation, np.float32)
    return flat if flat.ndim == 1 else flat.reshape(-1)


def _one_hot(sizes: NDArray[Any], starts: NDArray[Any]) -> tuple[int, Encoder]:
    total = int(sizes.sum())
    offsets = np.cumsum(sizes) - sizes - starts

    def encode(observation: Any) -> NDArray[np.float32]:
        flat = np.zeros(total, np.float32)
        flat[offsets + np.asarray(observation).reshape(-1)] = 1.0
        return flat

    return total, encode


def action_spec(space: spaces.Space[Any], environment: str) -> ActionSpec:
    """The ActionSpec of ``space``; EnvironmentFailure for one that no policy can serve."""
    if isinstance(space, spaces.Box):
        low, high = (tuple(map(float, bound.reshape(-1))) for bound in (space.low, space.high))
        return ActionSpec("box", shape=space.shape, low=low, high=high)
    if isinstance(space, spaces.Discrete):
        return ActionSpec("discrete", sizes=(int(space.n),), starts=(int(space.start),))
    if isinstance(space, spaces.MultiDiscrete):
        sizes, starts = (tuple(map(int, array.reshape(-1))) for array in (space.nvec, space.start))
        return ActionSpec("multidiscrete", shape=space.nvec.shape, sizes=sizes, starts=starts)
    if isinstance(space, spaces.MultiBinary):
        return ActionSpec("multibinary", shape=space.shape, sizes=(int(np.prod(space.shape)),), starts=(0,))
    raise EnvironmentFailure(
        f"the actions of {environment} are a {type(space).__name__}; es-queue takes Box, Discrete, "
        "MultiDiscrete and MultiBinary"
    )


def action_adapter(space: spaces.Space[Any]) -> Adapter:
    """What makes of a policy's action one that the environment takes: a box of integers gets the nearest."""
    if isinstance(space, spaces.Box) and not np.issubdtype(space.dtype, np.floating):
        return lambda action: np.rint(action).astype(space.dtype)
    return lambda action: action


def idle_action(spec: ActionSpec) -> Any:
    """A harmless action for trying an environment out: zero, or the bound nearest to it."""
    if spec.kind == "box":
        return np.clip(0.0, spec.low, spec.high).astype(np.float32).reshape(spec.shape)
    if spec.kind == "discrete":
        return spec.starts[0]
    if spec.kind == "multidiscrete":
        return np.array(spec.starts, np.int64).reshape(spec.shape)
    return np.zeros(spec.shape, np.int8)
