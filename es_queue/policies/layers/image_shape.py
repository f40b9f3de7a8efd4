"""The image in a flat observation: rows, columns and channels."""

from __future__ import annotations

from dataclasses import dataclass

from es_queue.errors import UsageError
from es_queue.numerics.arrays import Floats


@dataclass(frozen=True)
class ImageShape:
    """An image of ``height`` x ``width`` pixels with ``channels`` numbers each (colours, or the
    frames of a stack).

    channels_first: whether the flat observation is [channels, height, width] in C order, else
    [height, width, channels]
    """

    height: int
    width: int
    channels: int
    channels_first: bool

    def upright(self, flat: Floats) -> Floats:
        """float32[d] as float32[height, width, channels], a view."""
        if self.channels_first:
            return flat.reshape(self.channels, self.height, self.width).transpose(1, 2, 0)
        return flat.reshape(self.height, self.width, self.channels)


def image_shape_of(shape: tuple[int, ...], policy: str) -> ImageShape:
    """The image in an observation of ``shape``: [h, w], or with channels in the smaller of the
    first and the last dimension.

    Raises UsageError if it is not an image.
    """
    if len(shape) == 2:
        return ImageShape(*shape, channels=1, channels_first=True)
    if len(shape) != 3:
        described = f"arrays of shape {list(shape)}" if shape else "vectors"
        raise UsageError(
            f"policy is {policy}, which takes images of shape [stack, height, width] or "
            f"[height, width, colours], "
            f"but the observations are {described}: use linear, mlp, rnn, lstm or gru"
        )
    if shape[0] < shape[2]:
        return ImageShape(shape[1], shape[2], shape[0], channels_first=True)
    return ImageShape(*shape, channels_first=False)
