"""Converts Gymnasium's spaces: observations to flat float32 arrays, action spaces to ActionSpec."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from gymnasium import spaces

from es_queue.environments.observation_layout import (
    ObservationGroup,
    ObservationLeaf,
    ObservationTree,
    array_leaf,
    join_name,
)
from es_queue.environments.spaces import ActionSpec
from es_queue.errors import EnvironmentFailure

Adapter = Callable[[Any], Any]


def observation_tree(
    space: spaces.Space[Any], environment_id: str, name: str = ""
) -> ObservationTree:
    """What the observations of ``space`` are made of; ``name``: of the part that is looked at.

    Box and MultiBinary are flattened in C order; Discrete and each part of MultiDiscrete become
    one-hot; the parts of Dict and Tuple follow one another in the space's own order, in which
    Gymnasium sorts the names of a Dict. Raises EnvironmentFailure for any other space, and for a
    name that is no text.
    """
    if isinstance(space, spaces.Box | spaces.MultiBinary):
        return array_leaf(space.shape)
    if isinstance(space, spaces.Discrete):
        return _one_hot([int(space.n)], [int(space.start)])
    if isinstance(space, spaces.MultiDiscrete):
        return _one_hot(space.nvec.reshape(-1).tolist(), space.start.reshape(-1).tolist())
    if isinstance(space, spaces.Dict) and space.spaces:
        _validate_names(space.spaces, environment_id)
        return _group(list(space.spaces.items()), environment_id, name)
    if isinstance(space, spaces.Tuple) and space.spaces:
        return _group(list(enumerate(space.spaces)), environment_id, name)
    part = f" {name}" if name else ""
    raise EnvironmentFailure(
        f"the observations{part} of {environment_id} are a {type(space).__name__}; es-queue "
        f"supports Box, Discrete, MultiDiscrete, "
        "MultiBinary, and Dict and Tuple of them (your own wrapper can convert it to one of these)"
    )


def _group(
    items: list[tuple[Any, spaces.Space[Any]]], environment_id: str, name: str
) -> ObservationGroup:
    return ObservationGroup(
        tuple(key for key, _ in items),
        tuple(
            observation_tree(space, environment_id, join_name(name, key)) for key, space in items
        ),
    )


def _validate_names(names: Iterable[Any], environment_id: str) -> None:
    for name in names:
        if not isinstance(name, str) or not name.isprintable():
            raise EnvironmentFailure(
                f"the observations of {environment_id} have a part named {name!r}; use "
                "printable text"
            )


def _one_hot(sizes: list[int], starts: list[int]) -> ObservationLeaf:
    return ObservationLeaf(sum(sizes), tuple(sizes), tuple(starts))


def action_spec(space: spaces.Space[Any], environment_id: str) -> ActionSpec:
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
        return ActionSpec(
            "multibinary", shape=space.shape, sizes=(int(np.prod(space.shape)),), starts=(0,)
        )
    raise EnvironmentFailure(
        f"the actions of {environment_id} are a {type(space).__name__}; es-queue supports Box, "
        f"Discrete, "
        "MultiDiscrete and MultiBinary"
    )


def action_adapter(space: spaces.Space[Any]) -> Adapter:
    """What makes of a policy's action one that the environment takes: a box of integers gets the
    nearest.
    """
    if isinstance(space, spaces.Box) and not np.issubdtype(space.dtype, np.floating):
        return lambda action: np.rint(action).astype(space.dtype)
    return lambda action: action
