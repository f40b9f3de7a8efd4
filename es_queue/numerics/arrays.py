"""Array types, and the check of arrays from a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_queue.errors import RunFolderError

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]


def typed_array(
    arrays: Mapping[str, NDArray[Any]], name: str, kind: type, shape: tuple[int | None, ...]
) -> NDArray[Any]:
    """An array with exactly this type and shape, in which None is any length. Raises RunFolderError
    if it differs, or holds a number that is not finite.
    """
    if name not in arrays:
        raise RunFolderError(f"it has no array {name!r}")
    array = arrays[name]
    pairs = zip(shape, array.shape, strict=False)
    sides = tuple(length if side is None else side for side, length in pairs)
    if array.dtype != kind or array.ndim != len(shape) or array.shape != sides:
        expected = ", ".join("any" if side is None else f"{side:,}" for side in shape)
        raise RunFolderError(
            f"its array {name!r} is {array.dtype.name} {list(array.shape)}, not "
            f"{np.dtype(kind).name} [{expected}]"
        )
    if not np.isfinite(array).all():
        raise RunFolderError(f"its array {name!r} holds a number that is not finite")
    return array
