"""Observations of an Atari game: the cropped and reduced grey screen, the colour screen, or the
memory.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_queue.errors import UsageError
from es_queue.numerics.arrays import Floats

Bytes = NDArray[np.uint8]
#: uint8 of a fixed shape, into the array that is handed over.
Grab = Callable[[Bytes], object]
KINDS = ("grayscale", "rgb", "ram")


class AreaResize:
    """uint8[h, w] → uint8[height, width], each new pixel the mean of the area that it covers,
    rounded (half to even).

    The same on every machine: in units of the smallest area that both grids share, all sums are
    whole numbers below 2**24, which float32 holds exactly, whatever the order in which a BLAS adds.
    OpenCV's INTER_AREA differs by 1 if a mean ends in about a half, which is some pixel in
    3,500.
    """

    def __init__(self, before: tuple[int, int], after: tuple[int, int]) -> None:
        (self._groups, self._down, rows), (_, across, columns) = (
            _weights(*pair) for pair in zip(before, after, strict=True)
        )
        self._across = np.ascontiguousarray(_spread(across, before[1], after[1]).T)
        self._shape = after[0], before[1]
        self._tall = before[0] // self._groups, before[1]
        self._area = np.float32(rows * columns)

    def __call__(self, image: Bytes) -> Bytes:
        strips = image.astype(np.float32).reshape(self._groups, *self._tall)
        sums = np.matmul(self._down, strips).reshape(self._shape) @ self._across
        smaller: Bytes = np.rint(sums / self._area).astype(np.uint8)
        return smaller


def _weights(before: int, after: int) -> tuple[int, Floats, int]:
    """Along one side: groups that repeat, how much of each pixel a new one covers within a group,
    and the sum of that.
    """
    groups = math.gcd(before, after)
    old, new = before // groups, after // groups
    edges = np.arange(new + 1) * old  # in units of 1/new of an old pixel
    starts = np.arange(old) * new
    shared = np.minimum(edges[1:, None], starts + new) - np.maximum(edges[:-1, None], starts)
    return groups, np.maximum(shared, 0).astype(np.float32), old


def _spread(weights: Floats, before: int, after: int) -> Floats:
    """The whole matrix [after, before] of the groups."""
    groups = before // weights.shape[1]
    whole: Floats = np.kron(np.eye(groups, dtype=np.float32), weights)
    assert whole.shape == (after, before)
    return whole


class ScreenPreprocessor:
    """Looks at the game through ``grab``: the pictures, one or the brighter of two, as float32 of
    ``shape`` in 0…1.

    frame: the shape of what the emulator shows; rows: those that are kept, (top, bottom); size: the
    side of the square to which a grey screen is brought, 0 for as it is
    """

    def __init__(
        self, grab: Grab, frame: tuple[int, ...], rows: tuple[int, int], size: int
    ) -> None:
        self._grab, self._rows = grab, slice(*rows)
        self._screen, self._previous = np.zeros(frame, np.uint8), np.zeros(frame, np.uint8)
        kept = (rows[1] - rows[0], *frame[1:])
        self._resize = AreaResize((kept[0], kept[1]), (size, size)) if size else None
        self.shape = (size, size) if size else kept

    def capture_previous(self) -> None:
        """Remember the frame before the one that ``capture`` sees."""
        self._grab(self._previous)

    def capture(self, out: Floats, both: bool = False) -> None:
        """The frame as it is, into ``out`` [shape]; with ``both`` each pixel the brighter one of it
        and the one before.
        """
        self._grab(self._screen)
        image = np.maximum(self._screen, self._previous, out=self._screen) if both else self._screen
        image = image[self._rows]
        np.divide(
            image if self._resize is None else self._resize(image),
            np.float32(255),
            out=out,
            dtype=np.float32,
        )


def make_preprocessor(console: Any, kind: str, crop: str, size: int) -> ScreenPreprocessor:
    """How ``console``, an ALEInterface with a game in it, is looked at. Raises UsageError if
    that cannot be.
    """
    if kind not in KINDS:
        raise UsageError(f"env_arg obs_type is {kind!r}: use {', '.join(KINDS)}")
    if kind != "grayscale" and (crop != "none" or size):
        raise UsageError(
            f"env_arg obs_type is {kind}, but only grayscale is cropped and resized: leave "
            "crop at none and size at 0"
        )
    if kind == "ram":
        memory = int(console.getRAMSize())
        return ScreenPreprocessor(console.getRAM, (memory,), (0, memory), 0)
    height, width = console.getScreenDims()
    if kind == "rgb":
        return ScreenPreprocessor(console.getScreenRGB, (height, width, 3), (0, height), 0)
    rows = _parse_crop(crop, height)
    if not 0 <= size <= min(rows[1] - rows[0], width):
        raise UsageError(
            f"env_arg size is {size}: use a whole number up to "
            f"{min(rows[1] - rows[0], width)}, or 0 for the full screen"
        )
    return ScreenPreprocessor(console.getScreenGrayscale, (height, width), rows, size)


def _parse_crop(text: str, height: int) -> tuple[int, int]:
    """Read ``top:bottom``, the rows that are kept, or ``none``."""
    if text == "none":
        return 0, height
    match = re.fullmatch(r"(\d{1,3}):(\d{1,3})", str(text))
    if match is None or not 0 <= int(match[1]) < int(match[2]) <= height:
        raise UsageError(
            f"env_arg crop is {text!r}: use TOP:BOTTOM, the rows to keep of 0:{height}, or none"
        )
    return int(match[1]), int(match[2])
