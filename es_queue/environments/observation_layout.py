"""Layout of an observation: a tree of arrays and choices, flattened into one float32 vector.

Plain data that needs only numpy. ``environments/stock.py`` makes it from an environment's
spaces, a checkpoint keeps it as JSON, and a loaded policy uses it to accept the environment's own
observations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from es_queue.numerics.arrays import Floats

Encoder = Callable[[Any], Floats]

#: More than a real observation has; a checkpoint may come from anyone.
MAX_NUMBERS, MAX_DEPTH = 2**26, 16


@dataclass(frozen=True)
class ObservationLeaf:
    """An array of ``size`` numbers, flattened in C order; with ``choices``, a one-hot for each of
    its whole numbers.

    choices: the number of values of each whole number; () for an array of plain numbers
    starts:  the smallest value of each
    """

    size: int
    choices: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()

    def write(self, value: Any, out: Floats, name: str) -> None:
        """Fill ``out``, float32[size] of zeros. Raises ValueError for a wrong size or an invalid
        choice.
        """
        flat = np.asarray(value).reshape(-1) if self.choices else flatten(value)
        if len(flat) != (len(self.choices) or self.size):
            raise ValueError(
                f"the observation{name and ' ' + name} has {len(flat)} numbers, but must have "
                f"{len(self.choices) or self.size}"
            )
        if not self.choices:
            out[:] = flat
            return
        at = 0
        for chosen, count, start in zip(flat.tolist(), self.choices, self.starts, strict=True):
            if not start <= chosen < start + count:
                raise ValueError(
                    f"the observation{name and ' ' + name} is {chosen}, but must be from "
                    f"{start} to {start + count - 1}"
                )
            out[at + int(chosen) - start] = 1
            at += count


@dataclass(frozen=True)
class ObservationGroup:
    """A group of observations: of a mapping by ``keys`` (texts), of a tuple by index (keys 0, 1,
    …).
    """

    keys: tuple[str | int, ...]
    items: tuple[ObservationLeaf | ObservationGroup, ...]

    @property
    def size(self) -> int:
        return sum(item.size for item in self.items)

    def write(self, value: Any, out: Floats, name: str) -> None:
        """Fill ``out``, float32[size] of zeros. Raises ValueError unless it has exactly these
        parts.
        """
        by_name = isinstance(self.keys[0], str)
        fits = (
            isinstance(value, Mapping) and all(key in value for key in self.keys)
            if by_name
            else isinstance(value, list | tuple)
        )
        if not fits or len(value) != len(self.keys):
            raise ValueError(
                f"the observation{name and ' ' + name} must have exactly the parts "
                f"{', '.join(map(str, self.keys))}"
            )
        at = 0
        for key, item in zip(self.keys, self.items, strict=True):
            item.write(value[key], out[at : at + item.size], join_name(name, key))
            at += item.size


ObservationTree = ObservationLeaf | ObservationGroup


def flatten(value: Any) -> Floats:
    """A new float32[size] of an array's numbers in C order; images of bytes (uint8, two or more
    dimensions) are scaled to 0 to 1.
    """
    flat = np.array(value, np.float32)
    if flat.ndim == 1:
        return flat
    if flat.ndim > 1 and getattr(value, "dtype", None) == np.uint8:
        np.divide(flat, np.float32(255), flat)
    return flat.reshape(-1)


def make_encoder(tree: ObservationTree) -> Encoder:
    """A function that encodes such an observation as a new float32[size]."""

    def encode(observation: Any) -> Floats:
        flat = np.zeros(tree.size, np.float32)
        tree.write(observation, flat, "")
        return flat

    return encode


def named_parts(
    tree: ObservationTree, name: str = "", start: int = 0
) -> tuple[tuple[str, int, int], ...]:
    """(name, start, size) of each leaf in the flat vector, such as ``arm.position`` for nested
    groups; no name if there is only one leaf.
    """
    if isinstance(tree, ObservationLeaf):
        return ((name, start, tree.size),)
    return tuple(_named_group_parts(tree, name, start))


def _named_group_parts(
    group: ObservationGroup, name: str, start: int
) -> Iterator[tuple[str, int, int]]:
    for key, item in zip(group.keys, group.items, strict=True):
        yield from named_parts(item, join_name(name, key), start)
        start += item.size


def join_name(name: str, key: str | int) -> str:
    return f"{name}.{key}" if name else str(key)


def format_parts(parts: tuple[tuple[str, int, int], ...]) -> str:
    """Parts for people: ``arm.position 0-2, camera 3-66``."""
    return ", ".join(
        f"{name} {start}" if size == 1 else f"{name} {start}-{start + size - 1}"
        for name, start, size in parts
    )


# --- as JSON


def to_json(tree: ObservationTree) -> dict[str, Any]:
    """Plain data for a checkpoint's meta."""
    if isinstance(tree, ObservationLeaf):
        return {"size": tree.size, "choices": list(tree.choices), "starts": list(tree.starts)}
    return {"keys": list(tree.keys), "items": [to_json(item) for item in tree.items]}


def from_json(values: Any, depth: int = MAX_DEPTH) -> ObservationTree:
    """The tree from ``to_json``. Raises ValueError for anything else."""
    if not isinstance(values, dict) or depth < 1:
        raise ValueError("the description of the observations is invalid")
    tree = _group_from_json(values, depth) if "keys" in values else _leaf_from_json(values)
    if not 0 < tree.size <= MAX_NUMBERS:
        raise ValueError(f"an observation of {tree.size} numbers is not possible")
    return tree


def _leaf_from_json(values: dict[str, Any]) -> ObservationLeaf:
    choices, starts = (_whole_numbers(values.get(name)) for name in ("choices", "starts"))
    (size,) = _whole_numbers([values.get("size")])
    if (
        len(choices) != len(starts)
        or min(choices, default=1) < 1
        or (choices and sum(choices) != size)
    ):
        raise ValueError("the choices of the observations are invalid")
    return ObservationLeaf(size, choices, starts)


def _group_from_json(values: dict[str, Any], depth: int) -> ObservationGroup:
    keys, items = values["keys"], values.get("items")
    if (
        not isinstance(keys, list)
        or not isinstance(items, list)
        or not keys
        or len(keys) != len(items)
    ):
        raise ValueError("the parts of the observations are invalid")
    if keys != list(range(len(keys))) and (
        any(type(key) is not str for key in keys) or len(set(keys)) != len(keys)
    ):
        raise ValueError("the names of the observations' parts are invalid")
    return ObservationGroup(tuple(keys), tuple(from_json(item, depth - 1) for item in items))


def _whole_numbers(values: Any) -> tuple[int, ...]:
    if not isinstance(values, list) or any(type(number) is not int for number in values):
        raise ValueError(
            "the description of the observations contains something other than whole numbers"
        )
    return tuple(values)


def array_leaf(shape: tuple[int, ...]) -> ObservationLeaf:
    return ObservationLeaf(math.prod(shape))
